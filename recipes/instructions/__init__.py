"""Short texts under constraints that can be checked."""

from types import ModuleType

from gdpo_verl.lab.tasks.data_set import DataSet


def _rows() -> ModuleType:
    from gdpo_verl.recipes.instructions import rows

    return rows


DATA_SETS = {"instructions": DataSet(_rows, 512, source="any")}
