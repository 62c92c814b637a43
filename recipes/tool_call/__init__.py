"""Tool calls: ToolRL's data, and the questions of the Berkeley Function-Calling Leaderboard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gdpo_verl.lab.tasks.data_set import DataSet


def _prepare_rlla(out_dir: Path, **options: Any) -> dict[str, Any]:
    from gdpo_verl.recipes.tool_call import rows

    return rows.prepare(out_dir, **options)


def _prepare_bfcl(out_dir: Path, **options: Any) -> dict[str, Any]:
    from gdpo_verl.recipes.tool_call import bfcl

    return bfcl.prepare(out_dir, **options)


def _prepare_bfcl_v3(out_dir: Path, **options: Any) -> dict[str, Any]:
    from gdpo_verl.recipes.tool_call import bfcl_v3

    return bfcl_v3.prepare(out_dir, **options)


DATA_SETS = {
    "rlla": DataSet(_prepare_rlla, 2048, source="given"),
    "bfcl": DataSet(_prepare_bfcl, 2048, source="own"),
    "bfcl-v3": DataSet(_prepare_bfcl_v3, 31744, source="any", trained=False),
}
