"""Word problems that need several tool calls, which run while the policy is sampled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gdpo_verl.lab.tasks.data_set import DataSet


def _prepare(out_dir: Path, **options: Any) -> dict[str, Any]:
    from gdpo_verl.recipes.tool_turns import rows

    return rows.prepare(out_dir, **options)


DATA_SETS = {"tool-turns": DataSet(_prepare, 64, source="own")}
