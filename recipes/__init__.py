"""The recipes, one folder a task, in the wheel as `gdpo_verl.recipes`.

A folder's package declares the data sets that `gdpo-verl prepare` writes for it (`DATA_SETS`);
beside it stand the modules that make their rows, the configurations, and in ``cases.jsonl`` what
its rewards promise.
"""
