"""Short texts under constraints that can be checked."""

from gdpo_verl.lab.tasks.catalog import DataSet

DATA_SETS = {
    "instructions": DataSet(f"{__name__}.rows", 512, source="any"),
    "rubrics": DataSet(f"{__name__}.rubrics", 2048, source="given", graded=True),
}
