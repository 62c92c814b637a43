"""A training's whole checkpoints, so that none cut short is resumed from.

verl 0.9.1 (verl/trainer/ppo/v1/trainer_base.py, `_save_checkpoint`) writes a file of each kind and
rank into `global_step_N/actor` (and `critic`), then `data.pt`, then `transfer_queue` in the
asynchronous modes, and last N into `latest_checkpointed_iteration.txt`. It resumes from what that
file says without a look at the folder, begins the data anew where `data.pt` is missing, and fails
on an empty file.
"""

from __future__ import annotations

import re
import zipfile
from dataclasses import dataclass
from pathlib import Path

from omegaconf import OmegaConf

from gdpo_verl.files import write_text

TRACKER = "latest_checkpointed_iteration.txt"
# What verl calls the parts of a checkpoint (`checkpoint.save_contents`) and their files.
_FILES = {"model": "model", "optimizer": "optim", "extra": "extra_state"}
_SHARD = re.compile(r"(\w+)_world_size_(\d+)_rank_(\d+)\.pt")


class CheckpointError(RuntimeError):
    """There were checkpoints, and none is whole."""


@dataclass(frozen=True)
class CheckpointDir:
    """The place of a training's checkpoints, and the parts of a whole one."""

    directory: Path  # trainer.default_local_dir
    contents: tuple[str, ...] = tuple(_FILES)  # actor_rollout_ref.actor.checkpoint.load_contents
    asynchronous: bool = False  # a checkpoint then holds prompts in flight


def for_run(run: Path) -> CheckpointDir | None:
    """The place of a run's checkpoints, as its last start was configured.

    None when there was none, or it was not to resume by itself (`trainer.resume_mode`).
    """
    if not (run / "config.yaml").exists():
        return None
    config = OmegaConf.load(run / "config.yaml")
    if OmegaConf.select(config, "trainer.resume_mode") != "auto":
        return None
    contents = OmegaConf.select(config, "actor_rollout_ref.actor.checkpoint.load_contents")
    mode = OmegaConf.select(config, "trainer.v1.trainer_mode", default="sync")
    return CheckpointDir(
        Path(config.trainer.default_local_dir),
        tuple(contents or _FILES),
        bool(config.trainer.use_v1) and mode != "sync",
    )


def last_complete(place: CheckpointDir) -> tuple[int, dict[int, str]]:
    """The step of the newest whole checkpoint, 0 for none, and what is wrong with each newer."""
    wrong: dict[int, str] = {}
    names = (re.fullmatch(r"global_step_(\d+)", path.name) for path in place.directory.glob("*"))
    for step in sorted((int(name[1]) for name in names if name), reverse=True):
        problem = _problem(place, step)
        if problem is None:
            return step, wrong
        wrong[step] = problem
    return 0, wrong


def select_checkpoint(place: CheckpointDir) -> tuple[int, list[str]]:
    """Make verl resume from the newest whole checkpoint.

    Those newer than it are renamed to `global_step_N.incomplete`, so that a later save of the
    same step is never taken together with leftover files.

    Returns:
      The step from which verl will go on, 0 for the beginning; and a sentence for each
      checkpoint that was skipped.

    Raises:
      CheckpointError: a save was completed once, but no checkpoint is whole now.
    """
    step, wrong = last_complete(place)
    tracker = place.directory / TRACKER
    if not step and tracker.exists():
        found = [f"global_step_{number}: {problem}" for number, problem in wrong.items()]
        raise CheckpointError(
            f"{place.directory}: no checkpoint is whole ({'; '.join(found) or 'there is none'}), "
            f"but {TRACKER} says that there was one. Put it back, or remove {place.directory} to "
            "start from the beginning"
        )
    said = []
    for number, problem in wrong.items():
        folder = place.directory / f"global_step_{number}"
        names = (f"{folder.name}.incomplete{again}" for again in ("", *range(2, 1000)))
        aside = next(path for name in names if not (path := folder.with_name(name)).exists())
        folder.rename(aside)
        said.append(f"{folder.name} was cut short and is skipped: {problem} (now {aside.name})")
    if step and step != _tracked(place.directory):
        write_text(tracker, str(step))
    return step, said


def saved_world_size(place: CheckpointDir) -> int | None:
    """The number of workers that wrote the newest whole checkpoint; None without FSDP's."""
    sizes = _shard_sizes(place.directory / f"global_step_{last_complete(place)[0]}" / "actor")
    return sizes[0] if sizes else None


def _tracked(directory: Path) -> int | None:
    try:
        return int((directory / TRACKER).read_text())
    except (OSError, ValueError):
        return None


def _problem(place: CheckpointDir, step: int) -> str | None:
    checkpoint = place.directory / f"global_step_{step}"
    for folder in (checkpoint / "actor", checkpoint / "critic"):
        if folder.name == "critic" and not folder.exists():
            continue
        # Other engines' files have other names; verl wrote its number after they were written.
        others = not _shard_sizes(folder) and folder.is_dir() and any(folder.iterdir())
        if others and step == _tracked(place.directory):
            continue
        if problem := shards_problem(folder, place.contents):
            return problem
    # torch writes a zip archive, whose directory is at its end.
    if not zipfile.is_zipfile(checkpoint / "data.pt"):
        return "data.pt, the place in the data, is missing or cut short"
    if place.asynchronous and not (checkpoint / "transfer_queue").is_dir():
        return "transfer_queue, the prompts in flight, is missing"
    return None


def shards_problem(folder: Path, contents: tuple[str, ...] = ("model",)) -> str | None:
    """Describe the first fault of the FSDP shards in `actor` or `critic`; None when all are whole.

    Those of the parts `contents`, in verl's words, are needed.
    """
    sizes = _shard_sizes(folder)
    if not sizes:
        return f"{folder.name} has no model"
    if len(sizes) > 1:
        return f"{folder.name} has shards of {sizes} workers"
    for kind in [_FILES[part] for part in contents if part in _FILES]:
        for rank in range(sizes[0]):
            file = folder / f"{kind}_world_size_{sizes[0]}_rank_{rank}.pt"
            if not zipfile.is_zipfile(file):
                how = "cut short" if file.is_file() else "missing"
                return f"{folder.name}/{file.name} is {how}"
    return None


def _shard_sizes(folder: Path) -> list[int]:
    shards = (_SHARD.fullmatch(file.name) for file in folder.glob("*.pt"))
    return sorted({int(shard[2]) for shard in shards if shard})
