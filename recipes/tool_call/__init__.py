"""Tool calls: ToolRL's data, and the questions of the Berkeley Function-Calling Leaderboard."""

from gdpo_verl.lab.tasks.catalog import DataSet

DATA_SETS = {
    "rlla": DataSet(f"{__name__}.rows", 2048, source="given"),
    "bfcl": DataSet(f"{__name__}.bfcl", 2048, source="own"),
    "bfcl-v3": DataSet(f"{__name__}.bfcl_v3", 31744, source="any", trained=False),
}
