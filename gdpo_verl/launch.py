"""Start a training in a directory of its own and show how far it is.

RUN/launch.json   recipe and overrides; a second start with others is refused
RUN/train.log     everything that verl, Ray and vLLM print
RUN/config.yaml   the resolved configuration (Hydra's)
RUN/metrics.jsonl, RUN/rollouts/, RUN/validation/, RUN/checkpoints/
RUN/done          the training came to its end
"""

from __future__ import annotations

import contextlib
import importlib.resources
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from omegaconf import OmegaConf

from gdpo_verl import __version__
from gdpo_verl.report import follow, set_aside_metrics

GRACE_SECONDS = 20.0
_ERROR = re.compile(r"(?:\(.*pid=.*?\) )?((?:\w+\.)*\w*(?:Error|Exception): .+)")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class LaunchError(RuntimeError):
    """The training was not started, or ended before its last step."""


def recipes_directory() -> Path:
    """Where the recipes are: in the wheel, or at the top of a checkout."""
    return Path(str(importlib.resources.files("gdpo_verl.recipes")))


def train(recipe: str, run: Path, overrides: Sequence[str] = ()) -> None:
    """Train until the end; does nothing when `run` holds a training that came to its end.

    A training that was cut off continues from its last checkpoint (trainer.resume_mode=auto).

    Args:
      recipe: its name, for example "toolbox/gdpo".
      run: the directory, made when it is missing.
      overrides: Hydra's, as for ``python -m verl.trainer.main_ppo``.

    Raises:
      LaunchError: no such recipe, `run` belongs to other settings, or the training failed;
        says why and where its log is.
    """
    run = run.resolve()
    _claim(run, recipe, overrides)
    if (run / "done").exists():
        return
    set_aside_metrics(run)
    command = _command(recipe, run, overrides)
    environment = {
        "VERL_FILE_LOGGER_PATH": str(run / "metrics.jsonl"),
        "RAY_USAGE_STATS_ENABLED": "0",
    } | os.environ
    started = time.time()
    with (run / "train.log").open("ab") as log:
        driver = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
    try:
        _follow(driver, run, recipe, started)
    finally:
        _stop(driver)
    if driver.returncode != 0:
        raise LaunchError(
            f"{recipe}: the training ended with status {driver.returncode}: {_reason(run)}\n"
            f"Its log: {run / 'train.log'}"
        )
    (run / "done").touch()


def _command(recipe: str, run: Path, overrides: Sequence[str]) -> list[str]:
    return [
        *[sys.executable, "-m", "verl.trainer.main_ppo"],
        *["--config-dir", str(recipes_directory()), "--config-name", recipe],
        f"trainer.default_local_dir={run / 'checkpoints'}",
        f"trainer.rollout_data_dir={run / 'rollouts'}",
        f"trainer.validation_data_dir={run / 'validation'}",
        f"hydra.run.dir={run}",
        "hydra.output_subdir=.",
        *overrides,
    ]


def _claim(run: Path, recipe: str, overrides: Sequence[str]) -> None:
    path = recipes_directory() / f"{recipe}.yaml"
    if not path.exists():
        known = sorted(
            str(file.relative_to(recipes_directory()).with_suffix(""))
            for file in recipes_directory().glob("*/g[dr]po*.yaml")
        )
        raise LaunchError(f"recipe: {recipe!r} does not exist; there are {known}")
    settings = {"recipe": recipe, "overrides": list(overrides), "version": __version__}
    claim = run / "launch.json"
    if claim.exists() and json.loads(claim.read_text()) != settings:
        raise LaunchError(
            f"{run} holds a training with other settings:\n  {claim.read_text()}\nnot\n  "
            f"{json.dumps(settings)}\nIts checkpoints must not be mixed with this one's: choose "
            "another directory or remove it."
        )
    run.mkdir(parents=True, exist_ok=True)
    claim.write_text(json.dumps(settings))


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


def _reason(run: Path) -> str:
    lines = (run / "train.log").read_text(errors="replace").splitlines()
    for line in reversed(lines):
        match = _ERROR.fullmatch(_COLOUR.sub("", line).strip())
        if match and "RayTaskError" not in match[1]:
            return match[1]
    return lines[-1] if lines else "it printed nothing"
