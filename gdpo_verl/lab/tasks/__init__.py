"""The tasks, one file each: where the rows come from, and their prompt.

A task's ``prepare(out_dir, …)`` writes rows in verl's parquet columns with their provenance;
`catalog` names them. Tasks with outside rows share
`source` (where rows come from), `rows` (what a usable row is) and `build`; those that draw their
rows, `generated`.
"""
