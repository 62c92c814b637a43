"""The parts that tasks share: sources of rows, and what a usable row is.

A task's own rows are in its recipe's folder, as ``gdpo_verl.recipes.NAME.rows``: its
``prepare(out_dir, …)`` writes them in verl's parquet columns with their provenance. All of them
share `rows` and `build`, those with outside rows `source`, and those that draw theirs `generated`.
A prompt with its truth is an `Example` (`examples`), drawn or read.
"""
