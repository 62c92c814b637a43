"""Short texts under constraints that can be checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gdpo_verl.lab.tasks.data_set import DataSet


def _prepare(out_dir: Path, **options: Any) -> dict[str, Any]:
    from gdpo_verl.recipes.instructions import rows

    return rows.prepare(out_dir, **options)


def _prepare_rubrics(out_dir: Path, **options: Any) -> dict[str, Any]:
    from gdpo_verl.recipes.instructions import rubrics

    return rubrics.prepare(out_dir, **options)


DATA_SETS = {
    "instructions": DataSet(_prepare, 512, source="any"),
    "rubrics": DataSet(_prepare_rubrics, 2048, source="given", graded=True),
}
