"""Start a training in a directory of its own and show how far it is.

RUN/launch.json   recipe, overrides, and what the local files they name hold; a second start with
                  others is refused
RUN/train.log     everything that verl, Ray and vLLM print
RUN/config.yaml   the composed configuration (Hydra's)
RUN/metrics.jsonl, RUN/rollouts/, RUN/validation/, RUN/checkpoints/
RUN/done          the training came to its end
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.resources
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from omegaconf import OmegaConf

from gdpo_verl import __version__, checkpoints, deaths, memory, processes
from gdpo_verl.config import did_you_mean
from gdpo_verl.report import follow, set_aside_metrics
from gdpo_verl.report.metrics import only_validation, parse_metrics_line

# Larger files, a real model's weights, are told apart by their size alone.
DIGEST_BYTES = 64 << 20
_ERROR = re.compile(r"((?:\w+\.)*\w*(?:Error|Exception): .+)")


class LaunchError(RuntimeError):
    """The training was not started, or ended before its last step."""


def recipes_directory() -> Path:
    """Where the recipes are: in the wheel, or at the top of a checkout."""
    return Path(str(importlib.resources.files("gdpo_verl.recipes")))


def require_recipe(recipe: str) -> None:
    """Raise `LaunchError` when there is no recipe of this name."""
    recipes = recipes_directory()
    if not (recipes / f"{recipe}.yaml").exists():
        known = sorted(
            str(file.relative_to(recipes).with_suffix(""))
            for file in recipes.glob("*/g[dr]po*.yaml")
        )
        raise LaunchError(
            f"recipe: {recipe!r} does not exist; there are {known}.{did_you_mean(recipe, known)}"
        )


@dataclass(frozen=True)
class Failure:
    """How a driver ended before the training's last step.

    Attributes:
      text: a sentence for people.
      died: whether a process died, other than by an error of its own.
    """

    text: str
    died: bool


def train(recipe: str, run: Path, overrides: Sequence[str] = (), *, retries: int = 0) -> None:
    """Train until the end; does nothing when `run` holds a training that came to its end.

    A training that was cut off continues from its last whole checkpoint
    (trainer.resume_mode=auto), in the data as in the weights.

    Args:
      recipe: its name, for example "toolbox/gdpo".
      run: the directory, made when it is missing.
      overrides: Hydra's, as for ``python -m verl.trainer.main_ppo``.
      retries: how often a training that failed is started again; `worth_retrying` says when.

    Raises:
      LaunchError: no such recipe, `run` belongs to other settings or to a training that still
        runs, or the training failed; says why and where its log is.
      CheckpointError: `run` has had checkpoints, and none is whole.
    """
    run = run.resolve()
    settings = _settings(recipe, overrides)
    run.mkdir(parents=True, exist_ok=True)
    with _claim(run, settings) as lock:
        if (run / "done").exists():
            return
        furthest, stalled = 0, False
        for left in range(retries, -1, -1):
            start = _settle(recipe, run)
            set_aside_metrics(run)
            failure = _run(recipe, run, overrides, lock)
            if failure is None:
                (run / "done").touch()
                return
            reached = max(_last_step(run), start)
            advanced = reached > max(furthest, start)
            if not left or not worth_retrying(failure, advanced=advanced, stalled=stalled):
                raise LaunchError(_explain(recipe, run, failure, retries - left))
            furthest, stalled = max(furthest, reached), not advanced
            _say(f"{recipe}: {failure.text}\n{recipe}: retry {retries - left + 1} of {retries}")


def worth_retrying(failure: Failure, *, advanced: bool, stalled: bool) -> bool:
    """Whether another start may get further.

    Args:
      failure: of the start that ended.
      advanced: it made a step that no start before it had made.
      stalled: the start before it made none.
    """
    return advanced or (failure.died and not stalled)


def _run(recipe: str, run: Path, overrides: Sequence[str], lock: TextIO) -> Failure | None:
    environment = {"RAY_USAGE_STATS_ENABLED": "0", **os.environ}
    environment["VERL_FILE_LOGGER_PATH"] = str(run / "metrics.jsonl")
    started = time.time()
    with (run / "train.log").open("ab") as log:
        begin = log.tell()
        driver = subprocess.Popen(
            _command(recipe, run, overrides),
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
            # The directory stays claimed while the driver lives, even without us.
            pass_fds=[lock.fileno()],
        )
    with processes.ended_by_signals():
        try:
            _follow(driver, run, recipe, started)
        finally:
            processes.end(driver)
    with (run / "train.log").open("rb") as log:
        log.seek(begin)
        return _failure(log.read().decode(errors="replace"), driver.pid, driver.returncode)


def _failure(log: str, pid: int, status: int) -> Failure | None:
    if status == 0:
        return None
    death = deaths.of_driver(pid, status) or deaths.of_log(log)
    text = death or f"the training ended with status {status}: {_reason(log)}"
    if death and "engine died" in death and "killed by" not in death:
        text = f"{death}: {_reason(log)}"  # of an error of its own, which vLLM prints
    remedy = memory.remedy_for(deaths.plain(log))
    return Failure(f"{text}\nMemory ran out: {remedy}." if remedy else text, died=bool(death))


def _settle(recipe: str, run: Path) -> int:
    """Choose the checkpoint that verl resumes from; returns its step, 0 for the beginning."""
    place = checkpoints.of_run(run)
    if place is None:
        return 0
    step, passed_over = checkpoints.settle(place)
    for sentence in passed_over:
        _say(f"{recipe}: {sentence}")
    if step or passed_over:
        _say(f"{recipe}: goes on from {f'step {step}' if step else 'the beginning'}")
    return step


def _last_step(run: Path) -> int:
    """The last step that was trained since the metrics were set aside."""
    steps = (parse_metrics_line(line) for line in _lines(run / "metrics.jsonl"))
    return max((found[0] for found in steps if found and not only_validation(found[1])), default=0)


def _lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines() if path.exists() else []


def _explain(recipe: str, run: Path, failure: Failure, retried: int) -> str:
    place = checkpoints.of_run(run)
    step = checkpoints.last_whole(place)[0] if place else 0
    goes_on = f"the same command goes on from step {step}, the last whole checkpoint"
    if failure.died:
        if not step:
            goes_on = "the same command starts from the beginning, no checkpoint was finished"
        option = f"retried {retried} times" if retried else "--retries N does so by itself"
        remedy = f"\n{goes_on[0].upper()}{goes_on[1:]}; {option}."
    else:
        remedy = f"\nOnce that is put right, {goes_on}." if step else ""
    return f"{recipe}: {failure.text}{remedy}\nIts log: {run / 'train.log'}"


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def _command(recipe: str, run: Path, overrides: Sequence[str]) -> list[str]:
    places = {
        "trainer.default_local_dir": run / "checkpoints",
        "trainer.rollout_data_dir": run / "rollouts",
        "trainer.validation_data_dir": run / "validation",
        "hydra.run.dir": run,
        "hydra.output_subdir": ".",
    }
    return [
        *[sys.executable, "-m", "verl.trainer.main_ppo"],
        *["--config-dir", str(recipes_directory()), "--config-name", recipe],
        *[f"{key}='{value}'" for key, value in places.items()],
        *overrides,
    ]


def _settings(recipe: str, overrides: Sequence[str]) -> dict[str, Any]:
    require_recipe(recipe)
    paths = [Path(override.partition("=")[2].strip("'\"")) for override in overrides]
    return {
        "recipe": recipe,
        "overrides": list(overrides),
        "version": __version__,
        "contents": {str(path): _digest(path) for path in paths if path.is_absolute()},
    }


def _digest(path: Path) -> str:
    """What a file or a model's directory holds, so that another one of its name is noticed."""
    digest = hashlib.sha256()
    for file in sorted(path.rglob("*.safetensors")) if path.is_dir() else [path]:
        if file.is_file():
            size = file.stat().st_size
            digest.update(f"{file.name} {size}".encode())
            digest.update(file.read_bytes() if size <= DIGEST_BYTES else b"")
    return digest.hexdigest()[:16]


@contextlib.contextmanager
def _claim(run: Path, settings: dict[str, Any]) -> Iterator[TextIO]:
    claim, text = run / "launch.json", json.dumps(settings, indent=1)
    with (run / "lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LaunchError(f"{run}: a training still runs here; end it first") from None
        if claim.exists() and json.loads(claim.read_text()) != settings:
            raise LaunchError(
                f"{run} holds a training with other settings:\n{claim.read_text()}\nnot\n{text}\n"
                "Its checkpoints must not be mixed with this one's: choose another directory or "
                "remove it."
            )
        claim.write_text(text)
        yield lock


def _follow(driver: subprocess.Popen[bytes], run: Path, recipe: str, started: float) -> None:
    # The last of the files that Hydra writes once the configuration is composed.
    written = run / "overrides.yaml"
    while driver.poll() is None and not (written.exists() and written.stat().st_mtime >= started):
        time.sleep(0.2)
    if driver.returncode is not None:
        return
    steps = OmegaConf.load(run / "config.yaml").trainer.total_training_steps or 0
    follow(run, total_steps=steps, is_alive=lambda: driver.poll() is None, label=recipe)


def _reason(log: str) -> str:
    """The last error in what this launch printed."""
    lines = deaths.plain(log).splitlines()
    for line in reversed(lines):
        match = _ERROR.fullmatch(line.strip())
        if match and "RayTaskError" not in match[1]:
            return match[1]
    return lines[-1] if lines else "it printed nothing"
