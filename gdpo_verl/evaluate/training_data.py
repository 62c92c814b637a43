"""The prompts of a training, so that held-out questions are held out, and asked as in training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
from omegaconf import OmegaConf

from gdpo_verl.data import prompt
from gdpo_verl.data.build import prompt_text
from gdpo_verl.data.catalog import command_for
from gdpo_verl.data.rows import check_messages


@dataclass(frozen=True)
class Training:
    """The data of a run.

    Attributes:
      files: its data.train_files.
      missing: those that are not there any more, or cannot be read.
      prompts: every prompt in the others, as one text.
    """

    files: Sequence[str]
    missing: Sequence[str]
    prompts: frozenset[str]


def training_of(run: Path) -> Training:
    """Read data.train_files of ``run``/config.yaml; relative ones are looked for from here."""
    config = OmegaConf.load(run / "config.yaml")
    given = OmegaConf.select(config, "data.train_files", default=None) or []
    files = [str(file) for file in ([given] if isinstance(given, str) else given)]
    missing: list[str] = []
    prompts: set[str] = set()
    for file in files:
        try:
            rows = pq.read_table(Path(file).expanduser(), columns=["prompt"]).to_pylist()
            prompts |= {prompt_text(row) for row in rows}
        except (OSError, ValueError, TypeError, KeyError):
            missing.append(file)
    return Training(files, missing, frozenset(prompts))


def frame_of(files: Sequence[str]) -> tuple[prompt.Frame, str]:
    """The fixed texts around the tools in the rows of the files, and where they come from.

    Raises:
      ValueError: the rows have several, or a file cannot be read.
    """
    frames: dict[prompt.Frame, str] = {}
    for file in files:
        for messages in _prompts(file):
            if frame := prompt.read_frame(messages[0]["content"]):
                frames.setdefault(frame, file)
    if len(frames) > 1:
        raise ValueError(
            f"--prompt-from: expected one text around the tools in all prompts of {list(files)}, "
            f"found {len(frames)}. Give a file whose prompts are alike"
        )
    return next(iter(frames.items()), (prompt.Frame(), "gdpo-verl prepare bfcl"))


def _prompts(file: str) -> Iterator[list[dict[str, str]]]:
    try:
        rows = pq.read_table(Path(file).expanduser(), columns=["prompt"]).to_pylist()
        for row in rows:
            yield check_messages(row.get("prompt"))
    except (OSError, ValueError) as error:  # Arrow's own are ValueErrors
        command = command_for(file)
        advice = f" Write it with: {command}" if command else ""
        raise ValueError(
            f"--prompt-from: cannot read prompts from {file}: {error}.{advice}"
        ) from error
