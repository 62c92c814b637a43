"""The toolbox: a synthetic tool-calling task, small enough for a laptop."""

from gdpo_verl.lab.tasks.catalog import DataSet

DATA_SETS = {"toolbox": DataSet(f"{__name__}.rows", 64, source="own")}
