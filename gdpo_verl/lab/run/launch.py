"""Start a run in its run directory and show its progress.

`gdpo_verl.lab.rundir.layout` lists the files of the directory. A later start may change the
settings in `gdpo_verl.lab.run.composition.NOT_SCIENCE`. Any other change is rejected with an error.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from omegaconf import DictConfig, OmegaConf

import gdpo_verl
from gdpo_verl.cpu import settings as cpu_settings
from gdpo_verl.lab.files import write_text
from gdpo_verl.lab.overrides import quoted
from gdpo_verl.lab.run import checkpoints, claim, memory, preflight, processes
from gdpo_verl.lab.run.claim import is_finished, lock_run
from gdpo_verl.lab.run.composition import compose, listed, recipes_directory, search_path
from gdpo_verl.lab.run.log import describe_driver_death, describe_log, plain
from gdpo_verl.lab.run.progress import RAY_STARTED, follow
from gdpo_verl.lab.rundir import layout
from gdpo_verl.lab.rundir.metrics import (
    only_validation,
    parse_metrics_line,
    set_aside_metrics,
)
from gdpo_verl.upstream.loopback import variables_for
from gdpo_verl.upstream.model import check_model, joins_cluster

# Numbers that the recipes give for one node, and that verl reads for all nodes together.
_PER_NODE = (
    "reward.num_workers",
    "actor_rollout_ref.rollout.agent.num_workers",
    "transfer_queue.backend.SimpleStorage.num_data_storage_units",
)
# A run without a logged step for this time counts as hanging. Even a step of a large model with its
# validation takes less.
HANG_SECONDS = 7200.0
# Files of the recipes that verl looks up in the working directory. They are there only if this is
# the top of a clone.
_OUR_FILES = (
    "actor_rollout_ref.rollout.multi_turn.function_tool_path",
    "actor_rollout_ref.rollout.agent.agent_loop_config_path",
)
# The beginning of the text of a failure that would happen again at the next start.
_REJECTED = "the run was rejected before Ray started: "
_ERROR = re.compile(r"((?:\w+\.)*\w*(?:Error|Exception): .+)")


class LaunchError(RuntimeError):
    """The run was not started, or it ended before its last step."""


def train(
    recipe: str,
    run: Path,
    overrides: Sequence[str] = (),
    *,
    retries: int = 0,
    hang_after: float = HANG_SECONDS,
    config_dir: Path | None = None,
    accept_changed_files: bool = False,
) -> None:
    """Train until the last step; do nothing if the run has already reached it.

    An interrupted run resumes from its last complete checkpoint, at the same place in the data.

    Args:
      recipe: the name of the recipe, for example "toolbox/gdpo".
      run: the run directory; it is created if it does not exist.
      overrides: overrides of Hydra, as for ``python -m verl.trainer.main_ppo``.
      retries: the number of times that a failed run is started again. After two starts in a row
        without a new step, it is not started again.
      hang_after: the run is ended if it logs no step and no validation for this many seconds.
      config_dir: the folder of the recipe; by default the recipes of gdpo-verl.
      accept_changed_files: resume although the data, policy, reward file or gdpo-verl changed.

    Raises:
      RecipeError: there is no such recipe, or its configuration cannot be composed.
      RunDirectoryError: `run` contains a run with other settings, or a run that is still training.
      LaunchError: the run failed; the message gives the reason and the path of the log.
      ValueError: this machine lacks the model, the data, the devices or the memory.
      CheckpointError: `run` has had checkpoints, and none is complete.
    """
    run = run.resolve()
    config, overrides = composed(recipe, run, overrides, config_dir)
    driver = command(recipe, run, overrides, config_dir)
    with lock_run(run, recipe, config, accept_changed_files=accept_changed_files) as lock:
        if is_finished(run, config):
            print_status(f"{recipe}: {_finished(run, config)}")
            return
        if not joins_cluster(config):
            # These checks come before config.yaml is written: the user may correct a path, which
            # would then differ from the path in config.yaml.
            check_model(config)
            preflight.check_machine(config)
            if config.trainer.device == "cpu":
                cpu_settings.check_memory(config)
        (run / layout.DONE).unlink(missing_ok=True)
        furthest = 0
        stalled = False
        for left in range(max(retries, 0), -1, -1):
            start = _resume_step(recipe, run)
            set_aside_metrics(run)  # verl would overwrite the steps of earlier starts
            try:
                failure = _run(driver, recipe, run, config, lock, hang_after)
            except KeyboardInterrupt:
                print_status(f"{recipe}: interrupted. {_how_to_resume(run)}.")
                raise
            reached = max(_last_step(run), start)
            if failure is None:
                _require_last_step(recipe, config, reached)
                (run / layout.DONE).touch()
                return
            # One start without a new step may be bad luck. After a second one, further starts would
            # fail as well.
            advanced = reached > max(furthest, start)
            if not left or (stalled and not advanced) or failure.startswith(_REJECTED):
                if not reached and not (run / layout.ROLLOUTS).exists():
                    # No step was trained, so that the next start may change any setting.
                    (run / layout.LAUNCH).unlink(missing_ok=True)
                    (run / layout.CONFIG).unlink(missing_ok=True)
                raise LaunchError(_explain(recipe, run, failure, retries - left))
            furthest = max(furthest, reached)
            stalled = not advanced
            print_status(f"{recipe}: {failure}\n{recipe}: retry {retries - left + 1} of {retries}")


def answer(
    config: DictConfig,
    driver: Sequence[str],
    run: Path,
    *,
    label: str,
    about: Mapping[str, Any],
) -> None:
    """Let verl sample responses to the prompts of data.val_files, in a run of zero steps.

    Args:
      config: the result of `composed`, with `trainer.val_only`.
      driver: the result of `command` for this configuration.
      run: the directory for config.yaml, train.log and validation/STEP.jsonl.
      label: the name on the line of progress.
      about: entries of launch.json in addition to the version.

    Raises:
      RunDirectoryError, LaunchError, ValueError: as for `train`.
    """
    run = run.resolve()
    if not joins_cluster(config):
        check_model(config)
        preflight.check_machine(config)
    run.mkdir(parents=True, exist_ok=True)
    with claim.locked(run) as lock:
        start = {**about, "version": gdpo_verl.__version__}
        write_text(run / layout.LAUNCH, json.dumps(start, indent=1))
        # An evaluation never counts as hanging, because it logs only at its end, after hours.
        failure = _run(driver, label, run, config, lock, math.inf)
        if failure is not None:
            raise LaunchError(f"{label}: {failure}\nIts log: {run / layout.LOG}")
        (run / layout.DONE).touch()


def environment_of(run: Path, config: DictConfig) -> dict[str, str]:
    """Return the environment of verl's driver.

    The hardware recipe chooses the platform, for the driver and for its workers.
    """
    environment = {"RAY_USAGE_STATS_ENABLED": "0", **variables_for(config), **os.environ}
    # Container images often set this variable. Then each process of verl compiles all modules that
    # it imports.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    platform = preflight.platform_of(config)
    if platform:
        environment["VERL_PLATFORM"] = platform
    # By default vLLM compiles FlashInfer's sampler, for which many machines lack a compiler.
    if config.trainer.get("device") == "cuda" and not importlib.util.find_spec(
        "flashinfer_jit_cache"
    ):
        environment.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
    return environment | {"VERL_FILE_LOGGER_PATH": str(run / layout.METRICS)}


def _run(
    command: Sequence[str],
    label: str,
    run: Path,
    config: DictConfig,
    lock: TextIO,
    hang_after: float,
) -> str | None:
    """Run the driver to its end; return the reason for a failure, or None."""
    logged_at = time.monotonic()
    logged_bytes = 0
    metrics = run / layout.METRICS
    write_text(run / layout.CONFIG, OmegaConf.to_yaml(config))
    with (run / layout.LOG).open("ab") as log:
        begin = log.tell()
        driver = subprocess.Popen(
            command,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment_of(run, config),
            start_new_session=True,
            # The directory stays locked while the driver runs, even if this process has ended.
            pass_fds=[lock.fileno()],
        )

    def runs_on() -> bool:
        # The size of the file is compared and not its modification time, because the clock of the
        # machine may be set during the run.
        nonlocal logged_at, logged_bytes
        size = metrics.stat().st_size if metrics.exists() else 0
        if size != logged_bytes:
            logged_at = time.monotonic()
            logged_bytes = size
        return driver.poll() is None and time.monotonic() - logged_at < hang_after

    with processes.ended_by_signals():
        try:
            steps = config.trainer.total_training_steps or 0
            follow(run, total_steps=steps, is_alive=runs_on, label=label)
            hangs = driver.poll() is None
        finally:
            processes.terminate(driver)  # a driver that has ended may have left workers
    if hangs:
        # The log contains no message about a process that runs without doing anything.
        minutes = f"{hang_after / 60:g} minutes"
        return f"the run hangs: no step was logged for {minutes} (--hang-after)"
    with (run / layout.LOG).open("rb") as printed:
        printed.seek(begin)
        return _failure(printed.read().decode(errors="replace"), driver.pid, driver.returncode)


def _failure(log: str, pid: int, status: int) -> str | None:
    """Return the reason for a failure, from the log and the driver's return code; None for 0."""
    if status == 0:
        return None
    death = describe_driver_death(pid, status) or describe_log(log)
    reason = _reason(log)
    if not death and reason.startswith("ValueError: ") and not RAY_STARTED.search(log):
        return _REJECTED + reason
    text = death or f"verl ended with status {status}"
    if not death or ("engine died" in death and "killed by" not in death):
        text += f": {reason}"  # an engine that was not killed has logged its error
    remedy = memory.remedy_for(plain(log))
    return f"{text}\nMemory ran out: {remedy}." if remedy else text


def _resume_step(recipe: str, run: Path) -> int:
    """Choose the checkpoint from which verl resumes; return its step, 0 for the beginning."""
    saved = checkpoints.directory_of(run)
    step, skipped = checkpoints.select_checkpoint(saved) if saved else (0, [])
    for sentence in skipped:
        print_status(f"{recipe}: {sentence}")
    if step or skipped:
        place = f"step {step}" if step else "the beginning"
        print_status(f"{recipe}: resumes from {place}")
    return step


def _last_step(run: Path) -> int:
    """Return the last step that this start has trained; 0 if there is none."""
    metrics = run / layout.METRICS
    lines = metrics.read_bytes().splitlines() if metrics.exists() else []
    records = filter(None, map(parse_metrics_line, lines))
    return max((step for step, data in records if not only_validation(data)), default=0)


def _finished(run: Path, config: DictConfig) -> str:
    trainer = config.trainer
    key = "total_epochs" if trainer.total_training_steps is None else "total_training_steps"
    return (
        f"{run}: the run is finished, and nothing was trained. To continue it, raise "
        f"trainer.{key}={trainer[key]}"
    )


def _require_last_step(recipe: str, config: DictConfig, reached: int) -> None:
    """Raise LaunchError if verl has ended before the last step.

    verl ends without an error when its epochs are over.
    """
    trainer = config.trainer
    steps = trainer.total_training_steps or 0
    counted = "file" in listed(trainer.logger) and not trainer.get("val_only")
    if counted and reached < steps:
        raise LaunchError(
            f"{recipe}: trainer.total_epochs={trainer.total_epochs} ended the run at step "
            f"{reached}, before trainer.total_training_steps={steps}. Raise "
            "trainer.total_epochs as well. The same command then resumes"
        )


def _how_to_resume(run: Path) -> str:
    saved = checkpoints.directory_of(run)
    step = checkpoints.last_complete(saved)[0] if saved else 0
    if step:
        return f"The same command resumes from step {step}, the last complete checkpoint"
    return "The same command starts from the beginning, because no checkpoint is complete"


def _explain(recipe: str, run: Path, failure: str, retried: int) -> str:
    log = f"Its log: {run / layout.LOG}"
    if failure.startswith(_REJECTED):
        return f"{recipe}: {failure}\nCorrect this, and give the same command again.\n{log}"
    option = "With --retries N this happens automatically"
    if retried:
        option = f"The run was started again {retried} times"
    return f"{recipe}: {failure}\n{_how_to_resume(run)}. {option}.\n{log}"


def print_status(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def composed(
    recipe: str, run: Path, overrides: Sequence[str], config_dir: Path | None = None
) -> tuple[DictConfig, list[str]]:
    """Return the configuration with which `train` starts verl's driver, and all overrides.

    Overrides that follow from the machine come first, so that the user's overrides take precedence.

    Raises:
      RecipeError: there is no such recipe, or its configuration cannot be composed.
      ValueError: this machine lacks the devices or the memory.
    """
    paths = _path_overrides(run.resolve())
    config = compose(recipe, [*paths, *overrides], config_dir)
    overridden = {override.lstrip("+").partition("=")[0] for override in overrides}
    chosen: dict[str, Any] = {}
    if config.trainer.device == "cpu":
        if not joins_cluster(config):
            chosen |= cpu_settings.choose_settings(config)
    elif importlib.util.find_spec("flash_attn"):
        # flash_attn computes the attention of packed responses one by one. sdpa would compute a
        # dense mask over the whole pack.
        attention = "actor_rollout_ref.model.override_config.attn_implementation"
        chosen[attention] = "flash_attention_2"
    for key in _OUR_FILES:
        file = OmegaConf.select(config, key)
        if file and not Path(file).exists():
            ours = recipes_directory().parent / file
            chosen |= {key: quoted(ours)} if ours.exists() else {}
    if config.trainer.nnodes > 1:
        for key in _PER_NODE:
            of_one_node = OmegaConf.select(config, key)
            if of_one_node is not None:  # if it is None, verl chooses the number for all nodes
                chosen[key] = of_one_node * config.trainer.nnodes
    added = [f"++{key}={value}" for key, value in chosen.items() if key not in overridden]
    complete = [*added, *overrides]
    if added:
        config = compose(recipe, [*paths, *complete], config_dir)
    return config, complete


def command(
    recipe: str, run: Path, overrides: Sequence[str], config_dir: Path | None = None
) -> list[str]:
    """Return the command line of verl's driver, as `train` runs it."""
    words = [sys.executable, "-m", "verl.trainer.main_ppo"]
    words += ["--config-dir", str(config_dir or recipes_directory())]
    words += ["--config-name", recipe]
    if config_dir:
        words.append(search_path(recipe, config_dir))
    return [*words, *_path_overrides(run.resolve()), *overrides]


def _path_overrides(run: Path) -> list[str]:
    return [
        f"trainer.default_local_dir={quoted(run / layout.CHECKPOINTS)}",
        f"trainer.rollout_data_dir={quoted(run / layout.ROLLOUTS)}",
        f"trainer.validation_data_dir={quoted(run / layout.VALIDATION)}",
        f"hydra.run.dir={quoted(run)}",
        "hydra.output_subdir=null",  # Hydra would write an incomplete config.yaml on a full disk
    ]


def _reason(log: str) -> str:
    """Return the last error in the log of this start; without an error, the last line."""
    lines = plain(log).splitlines()
    for line, following in reversed([*itertools.pairwise([*lines, ""])]):
        match = _ERROR.fullmatch(line.strip())
        if match and "RayTaskError" not in match[1]:
            # An error of Hydra has its cause on the next line.
            return f"{match[1]} {following.strip()}" if match[1].endswith(":") else match[1]
    return lines[-1] if lines else "it printed nothing"
