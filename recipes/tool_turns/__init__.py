"""Word problems that need several tool calls, which are executed during the rollout."""

from types import ModuleType

from gdpo_verl.lab.tasks.data_set import DataSet


def _rows() -> ModuleType:
    from gdpo_verl.recipes.tool_turns import rows

    return rows


DATA_SETS = {"tool-turns": DataSet(_rows, 64, source="own")}
