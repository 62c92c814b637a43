"""The toolbox: a synthetic tool-calling task, small enough for a laptop."""

from types import ModuleType

from gdpo_verl.lab.tasks.data_set import DataSet


def _rows() -> ModuleType:
    from gdpo_verl.recipes.toolbox import rows

    return rows


DATA_SETS = {"toolbox": DataSet(_rows, 64, source="own")}
