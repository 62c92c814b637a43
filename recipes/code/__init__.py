"""Programming tasks: Eurus-2's competition problems with their tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gdpo_verl.lab.tasks.data_set import DataSet


def _prepare(out_dir: Path, **options: Any) -> dict[str, Any]:
    from gdpo_verl.recipes.code import rows

    return rows.prepare(out_dir, **options)


DATA_SETS = {"eurus2-code": DataSet(_prepare, 1024)}
