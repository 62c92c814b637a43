"""Word problems that need several tool calls, which run while the policy is sampled."""

from gdpo_verl.lab.tasks.catalog import DataSet

DATA_SETS = {"tool-turns": DataSet(f"{__name__}.rows", 64, source="own")}
