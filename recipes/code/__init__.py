"""Programming tasks: Eurus-2's competition problems with their tests."""

from gdpo_verl.lab.tasks.catalog import DataSet

DATA_SETS = {"eurus2-code": DataSet(f"{__name__}.rows", 1024)}
