"""The toolbox: a synthetic tool-calling task, small enough for a laptop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gdpo_verl.lab.tasks.data_set import DataSet


def _prepare(out_dir: Path, **options: Any) -> dict[str, Any]:
    from gdpo_verl.recipes.toolbox import rows

    return rows.prepare(out_dir, **options)


DATA_SETS = {"toolbox": DataSet(_prepare, 64, source="own")}
