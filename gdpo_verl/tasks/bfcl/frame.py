"""The texts around the tools in a training's prompts, with which its questions are asked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow.parquet as pq

from gdpo_verl.tasks import prompt
from gdpo_verl.tasks.catalog import command_for
from gdpo_verl.tasks.rows import check_messages


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
