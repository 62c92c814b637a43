"""Competition problems with LaTeX answers: DeepScaleR, and the sets of published tables."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from gdpo_verl.lab.tasks.data_set import DataSet


def _prepare(out_dir: Path, **options: Any) -> dict[str, Any]:
    from gdpo_verl.recipes.math_length import rows

    return rows.prepare(out_dir, **options)


def _prepare_benchmark(out_dir: Path, **options: Any) -> dict[str, Any]:
    from gdpo_verl.recipes.math_length import benchmarks

    return benchmarks.prepare(out_dir, **options)


_BENCHMARKS = {
    name: DataSet(partial(_prepare_benchmark, name=name), 1024, trained=False)
    for name in ("aime24", "aime25", "amc", "math500", "minerva", "olympiad")
}
DATA_SETS = {"deepscaler": DataSet(_prepare, 1024), **_BENCHMARKS}
