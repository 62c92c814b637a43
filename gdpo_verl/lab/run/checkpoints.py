"""Find the complete checkpoints of a run, so that it never resumes from an incomplete one.

verl 0.9.1 (verl/trainer/ppo/v1/trainer_base.py, `_save_checkpoint`) writes a file for each kind and
rank into `global_step_N/actor` (and `critic`), then `data.pt`, then `transfer_queue` in the
asynchronous modes. Finally it writes N into `latest_checkpointed_iteration.txt`, the tracker. verl
resumes from the step in the tracker without checking the folder. If `data.pt` is missing, it starts
at the beginning of the data, and it fails if a file is empty.
"""

from __future__ import annotations

import re
import shutil
import sys
import zipfile
from pathlib import Path

from omegaconf import OmegaConf

from gdpo_verl.lab.files import write_text
from gdpo_verl.lab.rundir.run import config_of

TRACKER = "latest_checkpointed_iteration.txt"
_SHARD = re.compile(r"(\w+)_world_size_(\d+)_rank_(\d+)\.pt")


class CheckpointError(RuntimeError):
    """The error if a run has had checkpoints, and none is complete."""


def directory_of(run: Path) -> Path | None:
    """Return the directory of a run's checkpoints, from the configuration of its last start.

    The result is None if there was no start, or if `trainer.resume_mode` is not auto.
    """
    config = config_of(run)
    resumes = OmegaConf.select(config, "trainer.resume_mode") == "auto"
    return Path(config.trainer.default_local_dir) if resumes else None


def last_complete(directory: Path) -> tuple[int, dict[int, str]]:
    """Return the step of the newest complete checkpoint, and the faults of newer ones by step.

    The step is 0 if no checkpoint is complete.
    """
    faults: dict[int, str] = {}
    tracker = directory / TRACKER
    last_saved = 0
    if tracker.exists():
        # verl empties the tracker before it writes the number. All files of the checkpoint have
        # been written by then, so that an empty tracker excludes no checkpoint.
        text = tracker.read_text(errors="replace").strip()
        last_saved = int(text) if text.isdecimal() else sys.maxsize
    names = (re.fullmatch(r"global_step_(\d+)", path.name) for path in directory.glob("*"))
    for step in sorted((int(name[1]) for name in names if name), reverse=True):
        problem = problem_of(directory / f"global_step_{step}")
        if step > last_saved:
            problem = "its save did not end"
        if problem is None:
            return step, faults
        faults[step] = problem
    return 0, faults


def select_checkpoint(directory: Path) -> tuple[int, list[str]]:
    """Make verl resume from the newest complete checkpoint.

    Newer checkpoints are renamed to `global_step_N.incomplete`, so that a later save of the same
    step is not mixed with old files.

    Returns:
      the step from which verl will resume, 0 for the beginning, and a sentence for each checkpoint
      that was skipped.

    Raises:
      CheckpointError: a save was completed once, but no checkpoint is complete now.
    """
    step, faults = require_complete(directory)
    tracker = directory / TRACKER
    sentences = []
    for number, problem in faults.items():
        folder = directory / f"global_step_{number}"
        aside = folder.with_name(f"{folder.name}.incomplete")
        shutil.rmtree(aside, ignore_errors=True)  # from an earlier failure at this step
        folder.rename(aside)
        sentences.append(
            f"{folder.name} was cut short and is skipped: {problem} (now {aside.name})"
        )
    if step:
        write_text(tracker, str(step))
    return step, sentences


def require_complete(directory: Path) -> tuple[int, dict[int, str]]:
    """Return the result of `last_complete`, without changing any file.

    Raises:
      CheckpointError: as for `select_checkpoint`.
    """
    step, faults = last_complete(directory)
    if not step and (directory / TRACKER).exists():
        texts = [f"global_step_{number}: {problem}" for number, problem in faults.items()]
        raise CheckpointError(
            f"{directory}: no checkpoint is complete ({'; '.join(texts) or 'there is none'}), but "
            f"{TRACKER} says that there was one. Restore it, or remove {directory} to start from "
            "the beginning"
        )
    return step, faults


def world_size(checkpoint: Path) -> int | None:
    """Return the number of workers that wrote a checkpoint; None if it has no FSDP shards."""
    shards = _shards(checkpoint / "actor")
    return shards[0][1] if shards else None


def problem_of(checkpoint: Path) -> str | None:
    """Describe the first fault of a checkpoint, a folder `global_step_N`; None if there is none."""
    folders = [checkpoint / "actor", *checkpoint.glob("critic")]
    for folder in folders:
        # Files of other engines have other names and cannot be checked here. Their checkpoint
        # counts as complete if the tracker has its step.
        others = folder.is_dir() and any(folder.iterdir()) and not _shards(folder)
        problem = None if others else _shards_problem(folder)
        if problem is not None:
            return problem
    # torch writes a zip archive. Its directory is at the end, so that it is missing in an
    # incomplete file.
    if not zipfile.is_zipfile(checkpoint / "data.pt"):
        return "data.pt, the place in the data, is missing or cut short"
    return None


def _shards_problem(folder: Path) -> str | None:
    """Describe the first fault of the FSDP shards in `actor` or `critic`; None if there is none.

    Parts that `checkpoint.save_contents` excludes may be missing, except the model.
    """
    shards = _shards(folder)
    if not shards:
        return f"{folder.name} has no model"
    sizes = sorted({size for _, size in shards})
    if len(sizes) > 1:
        return f"{folder.name} has shards of {sizes} workers"
    kinds = {kind for kind, _ in shards}
    kinds.add("model")
    for kind in sorted(kinds):
        for rank in range(sizes[0]):
            file = folder / f"{kind}_world_size_{sizes[0]}_rank_{rank}.pt"
            if not zipfile.is_zipfile(file):
                how = "cut short" if file.is_file() else "missing"
                return f"{folder.name}/{file.name} is {how}"
    return None


def _shards(folder: Path) -> list[tuple[str, int]]:
    """Return, for each shard, its part (model, optim or extra_state) and the number of workers."""
    shards = (_SHARD.fullmatch(file.name) for file in folder.glob("*.pt"))
    return [(shard[1], int(shard[2])) for shard in shards if shard]
