"""Tasks with whole numbers: GSM8K and Reasoning Gym, for the same three rewards."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from gdpo_verl.lab.tasks.data_set import DataSet


def _prepare(out_dir: Path, **options: Any) -> dict[str, Any]:
    from gdpo_verl.recipes.gsm8k import rows

    return rows.prepare(out_dir, **options)


def _prepare_generated(out_dir: Path, **options: Any) -> dict[str, Any]:
    from gdpo_verl.recipes.gsm8k import reasoning_gym

    return reasoning_gym.prepare(out_dir, **options)


_GENERATED = {
    name: DataSet(partial(_prepare_generated, name=name), 512, source="own", shots=True)
    for name in ("reasoning-gym", "short-sums", "gsm-symbolic")
}
DATA_SETS = {"gsm8k": DataSet(_prepare, 512, shots=True), **_GENERATED}
