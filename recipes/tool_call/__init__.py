"""Tool calls: ToolRL's data, and the questions of the Berkeley Function-Calling Leaderboard."""

from types import ModuleType

from gdpo_verl.lab.tasks.data_set import DataSet


def _rows() -> ModuleType:
    from gdpo_verl.recipes.tool_call import rows

    return rows


def _bfcl() -> ModuleType:
    from gdpo_verl.recipes.tool_call import bfcl

    return bfcl


def _bfcl_v3() -> ModuleType:
    from gdpo_verl.recipes.tool_call import bfcl_v3

    return bfcl_v3


DATA_SETS = {
    "rlla": DataSet(_rows, 2048, source="given"),
    "bfcl": DataSet(_bfcl, 2048, source="own"),
    "bfcl-v3": DataSet(_bfcl_v3, 31744, source="any", trained=False),
}
