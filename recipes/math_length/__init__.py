"""Competition problems with LaTeX answers: DeepScaleR, and the sets of published tables."""

from gdpo_verl.lab.tasks.catalog import DataSet

DATA_SETS = {
    "deepscaler": DataSet(f"{__name__}.rows", 1024),
    **dict.fromkeys(
        ("aime24", "aime25", "amc", "math500", "minerva", "olympiad"),
        DataSet(f"{__name__}.benchmarks", 1024, trained=False, several=True),
    ),
}
