"""Short texts under constraints that can be checked, and prompts with rubrics."""

from types import ModuleType

from gdpo_verl.lab.tasks.data_set import DataSet


def _rows() -> ModuleType:
    from gdpo_verl.recipes.instructions import rows

    return rows


def _rubrics() -> ModuleType:
    from gdpo_verl.recipes.instructions import rubrics

    return rubrics


DATA_SETS = {
    "instructions": DataSet(_rows, 512, source="any"),
    "rubrics": DataSet(_rubrics, 2048, source="given", graded=True),
}
