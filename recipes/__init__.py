"""The recipes, one folder for each task; they are installed as `gdpo_verl.recipes`.

The package of a folder declares the data sets that `gdpo-verl prepare` writes for it (`DATA_SETS`).
The folder also contains the modules that make their rows, the configurations, and ``cases.jsonl``
with examples of what its rewards return.
"""
