"""Data sets in verl's parquet columns: ``toolbox`` (synthetic) and ``bfcl`` (real questions).

Each module has one ``prepare(out_dir, …)`` that writes ``train.parquet``,
``validation.parquet`` and ``provenance.json``, and returns the provenance.
"""
