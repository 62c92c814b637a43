"""The texts around the tools in a training's prompts, with which its questions are asked."""

from __future__ import annotations

from collections.abc import Sequence

from gdpo_verl.tasks import prompt
from gdpo_verl.tasks.benchmark import prompts_of


def frame_of(files: Sequence[str]) -> tuple[prompt.Frame, str]:
    """The fixed texts around the tools in the rows of the files, and where they come from.

    Raises:
      ValueError: the rows have several, or a file cannot be read.
    """
    frames: dict[prompt.Frame, str] = {}
    for file in files:
        for messages in prompts_of(file):
            if frame := prompt.read_frame(messages[0]["content"]):
                frames.setdefault(frame, file)
    if len(frames) > 1:
        raise ValueError(
            f"--prompt-from: expected one text around the tools in all prompts of {list(files)}, "
            f"found {len(frames)}. Give a file whose prompts are alike"
        )
    return next(iter(frames.items()), (prompt.Frame(), "gdpo-verl prepare bfcl"))
