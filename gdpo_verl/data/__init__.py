"""Data sets in verl's parquet columns; `catalog.DATASETS` names them.

Each module of a data set has one ``prepare(out_dir, …)`` that writes ``train.parquet``,
``validation.parquet`` and ``provenance.json``, and returns the provenance. Those with outside
rows share `source` (where rows come from), `rows` (what a usable row is) and `build`.
"""
