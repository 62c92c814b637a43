"""Guard a run directory: only one process trains in it, and every start continues the same run."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from omegaconf import DictConfig

from gdpo_verl import __version__
from gdpo_verl.lab.files import write_text
from gdpo_verl.lab.run import checkpoints
from gdpo_verl.lab.run.composition import SOURCES, changed_science, named
from gdpo_verl.lab.rundir import layout
from gdpo_verl.lab.rundir.run import WRITE_ANEW, config_of, read_launch

# Larger files, such as the weights of a real model, are compared by their size alone.
DIGEST_BYTES = 64 << 20


class RunDirectoryError(RuntimeError):
    """The error if another process trains in the directory, or if it contains another run."""


@contextlib.contextmanager
def lock_run(
    run: Path, recipe: str, config: DictConfig, *, accept_changed_files: bool = False
) -> Iterator[TextIO]:
    """Create the run directory if it does not exist, and lock it; yield the locked file.

    Raises:
      RunDirectoryError: another process trains there, or `check_start` rejects this start.
    """
    run.mkdir(parents=True, exist_ok=True)
    with locked(run) as lock:
        start = check_start(run, recipe, config, accept_changed_files=accept_changed_files)
        write_text(run / layout.LAUNCH, json.dumps(start, indent=1))
        yield lock


def check_start(
    run: Path, recipe: str, config: DictConfig, *, accept_changed_files: bool = False
) -> dict[str, Any]:
    """Reject a start that would not continue the run in the directory. Nothing is written.

    Args:
      run: the run directory.
      recipe: the name of the recipe.
      config: the configuration of this start.
      accept_changed_files: resume although the data, policy, reward file or gdpo-verl changed.

    Returns:
      the record of this start for launch.json.

    Raises:
      RunDirectoryError: settings or files that decide what is learned differ from the last start.
    """
    before = read_launch(run)
    start = {"recipe": recipe, "version": __version__, "contents": _contents(config)}
    settings = [*_changed_settings(run, config)]
    files = [*_changed_files(before, start)]
    if settings or (files and not accept_changed_files):
        problems = "\n  ".join([*settings, *files])
        text = (
            f"{run} holds a run with other settings:\n  {problems}\n"
            "The checkpoints of two runs must not be mixed. Choose another run directory, or "
            "remove this one. Steps, loggers, frequencies, names and the machines may change."
        )
        if not settings:
            text += " To resume with what the files hold now, give --accept-changed-files."
        raise RunDirectoryError(text)
    return start


@contextlib.contextmanager
def locked(run: Path) -> Iterator[TextIO]:
    """Lock a directory, whatever it contains; yield the locked file.

    Raises:
      RunDirectoryError: another process has locked the directory.
    """
    with (run / layout.LOCK).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunDirectoryError(
                f"{run}: another process still trains in this run directory. End it first"
            ) from None
        yield lock


def is_finished(run: Path, config: DictConfig) -> bool:
    """Return whether the run has completed all its configured steps."""
    if not (run / layout.DONE).exists():
        return False
    before = config_of(run).get("trainer")
    if before is None:
        return True
    now = config.trainer
    steps_before = before.total_training_steps
    steps_now = now.total_training_steps
    # Without a number of steps, the number of epochs decides.
    if None in (steps_before, steps_now):
        return bool(steps_before == steps_now and now.total_epochs <= before.total_epochs)
    return bool(steps_now <= steps_before)


def _changed_files(before: dict[str, Any], start: dict[str, Any]) -> Iterator[str]:
    """Yield a sentence for each file, and for the version, that differs from the last start."""
    if before.get("version", __version__) != __version__:
        yield f"version: {before['version']!r}, not {__version__!r}"
    digests_before = before.get("contents", {})
    for name, digest in start["contents"].items():
        # A new path has no earlier digest; it is reported as a changed setting.
        if digests_before.get(name, digest) != digest:
            yield f"{name} holds something else than when the run began"


def _changed_settings(run: Path, config: DictConfig) -> Iterator[str]:
    """Yield a sentence for each setting that decides what is learned and that has changed."""
    before = config_of(run)
    if not before:
        if (run / layout.CHECKPOINTS / checkpoints.TRACKER).exists():
            yield f"{layout.CONFIG} is missing, and there are checkpoints. {WRITE_ANEW}"
        return
    absent = [str(section) for section in config if section not in before]
    if absent:
        yield f"{layout.CONFIG} has no {', '.join(absent)}; it may be cut short. {WRITE_ANEW}"
        return
    for key, (was, now) in changed_science(before, config).items():
        yield f"{key}: {was!r}, not {now!r}"
    devices = config.trainer.nnodes * config.trainer.n_gpus_per_node
    workers = None
    saved = checkpoints.directory_of(run)
    if saved:
        step, _ = checkpoints.last_complete(saved)
        workers = checkpoints.world_size(saved / f"global_step_{step}")
    if workers not in (None, devices):
        yield (
            f"trainer.nnodes × trainer.n_gpus_per_node: {workers}, not {devices}; verl loads a "
            "checkpoint with as many workers as have written it"
        )


def _contents(config: DictConfig) -> dict[str, str]:
    """Return digests of the local files and folders that decide what a run learns.

    They are listed by configuration key and path.
    """
    return {
        f"{key}={path}": _digest(path)
        for key in SOURCES
        for path in map(Path, named(config, key))
        if path.exists()
    }


def _digest(path: Path) -> str:
    """Return a digest of a file, or of the weights in a folder."""
    files = [path]
    if path.is_dir():
        files = sorted(path.rglob("*.safetensors"))
    digest = hashlib.sha256()
    for file in files:
        size = file.stat().st_size
        digest.update(f"{file.name} {size}".encode())
        digest.update(file.read_bytes() if size <= DIGEST_BYTES else b"")
    return digest.hexdigest()[:16]
