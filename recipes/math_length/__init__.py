"""Competition problems with LaTeX answers: DeepScaleR, and the sets of published tables."""

from types import ModuleType

from gdpo_verl.lab.tasks.data_set import DataSet


def _rows() -> ModuleType:
    from gdpo_verl.recipes.math_length import rows

    return rows


def _benchmarks() -> ModuleType:
    from gdpo_verl.recipes.math_length import benchmarks

    return benchmarks


_BENCHMARK = DataSet(_benchmarks, 1024, trained=False, several=True)
DATA_SETS = {
    "deepscaler": DataSet(_rows, 1024),
    "aime24": _BENCHMARK,
    "aime25": _BENCHMARK,
    "amc": _BENCHMARK,
    "math500": _BENCHMARK,
    "minerva": _BENCHMARK,
    "olympiad": _BENCHMARK,
}
