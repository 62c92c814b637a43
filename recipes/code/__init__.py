"""Programming tasks: Eurus-2's competition problems with their tests."""

from types import ModuleType

from gdpo_verl.lab.tasks.data_set import DataSet


def _rows() -> ModuleType:
    from gdpo_verl.recipes.code import rows

    return rows


DATA_SETS = {"eurus2-code": DataSet(_rows, 1024)}
