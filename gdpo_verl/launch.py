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
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from omegaconf import OmegaConf

from gdpo_verl import __version__
from gdpo_verl.config import did_you_mean
from gdpo_verl.report import follow, set_aside_metrics

GRACE_SECONDS = 20.0
# Larger files, a real model's weights, are told apart by their size alone.
DIGEST_BYTES = 64 << 20
_ERROR = re.compile(r"(?:\(.*pid=.*?\) )?((?:\w+\.)*\w*(?:Error|Exception): .+)")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


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


def train(recipe: str, run: Path, overrides: Sequence[str] = ()) -> None:
    """Train until the end; does nothing when `run` holds a training that came to its end.

    A training that was cut off continues from its last checkpoint (trainer.resume_mode=auto).

    Args:
      recipe: its name, for example "toolbox/gdpo".
      run: the directory, made when it is missing.
      overrides: Hydra's, as for ``python -m verl.trainer.main_ppo``.

    Raises:
      LaunchError: no such recipe, `run` belongs to other settings or to a training that still
        runs, or the training failed; says why and where its log is.
    """
    run = run.resolve()
    settings = _settings(recipe, overrides)
    run.mkdir(parents=True, exist_ok=True)
    with _claim(run, settings) as lock:
        if (run / "done").exists():
            return
        set_aside_metrics(run)
        status, reason = _run(recipe, run, overrides, lock)
        if status != 0:
            raise LaunchError(
                f"{recipe}: the training ended with status {status}: {reason}\n"
                f"Its log: {run / 'train.log'}"
            )
        (run / "done").touch()


def _run(recipe: str, run: Path, overrides: Sequence[str], lock: TextIO) -> tuple[int, str]:
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
    with _ended_by_signals():
        try:
            _follow(driver, run, recipe, started)
        finally:
            _stop(driver)
    with (run / "train.log").open("rb") as log:
        log.seek(begin)
        return driver.returncode, _reason(log.read().decode(errors="replace"))


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


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """A closed terminal and a polite kill end the training as Ctrl-C does."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = {sign: signal.signal(sign, interrupt) for sign in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for sign, handler in before.items():
            signal.signal(sign, handler)


def _follow(driver: subprocess.Popen[bytes], run: Path, recipe: str, started: float) -> None:
    # The last of the files that Hydra writes once the configuration is composed.
    written = run / "overrides.yaml"
    while driver.poll() is None and not (written.exists() and written.stat().st_mtime >= started):
        time.sleep(0.2)
    if driver.returncode is not None:
        return
    steps = OmegaConf.load(run / "config.yaml").trainer.total_training_steps or 0
    follow(run, total_steps=steps, is_alive=lambda: driver.poll() is None, label=recipe)


def _stop(driver: subprocess.Popen[bytes]) -> None:
    """End the driver, if it still runs, as Ctrl-C would, and then what it left behind."""
    if driver.poll() is None:
        os.killpg(driver.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            driver.wait(GRACE_SECONDS)
    # Ray's agents outlive a killed driver by a minute; they are in its process group.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()


def _reason(log: str) -> str:
    """The last error in what this launch printed."""
    lines = log.splitlines()
    for line in reversed(lines):
        match = _ERROR.fullmatch(_COLOUR.sub("", line).strip())
        if match and "RayTaskError" not in match[1]:
            return match[1]
    return lines[-1] if lines else "it printed nothing"
