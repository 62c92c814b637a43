"""The prompts of a training, so that held-out questions are held out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
from omegaconf import OmegaConf

from gdpo_verl.lab.tasks.rows import chat_text


@dataclass(frozen=True)
class TrainingData:
    """The prompts that a run was trained on."""

    files: Sequence[str]  # its data.train_files
    missing: Sequence[str]  # those that are not there any more, or cannot be read
    prompts: frozenset[str]  # of the others, each chat as one text


def training_of(run: Path) -> TrainingData:
    """Read data.train_files of ``run``/config.yaml; relative ones are looked for from here."""
    config = OmegaConf.load(run / "config.yaml")
    given = OmegaConf.select(config, "data.train_files", default=None) or []
    files = [str(file) for file in ([given] if isinstance(given, str) else given)]
    missing: list[str] = []
    prompts: set[str] = set()
    for file in files:
        try:
            rows = pq.read_table(Path(file).expanduser(), columns=["prompt"]).to_pylist()
            prompts |= {chat_text(row["prompt"]) for row in rows}
        except (OSError, ValueError, TypeError, KeyError):
            missing.append(file)
    return TrainingData(files, missing, frozenset(prompts))
