"""Start a run in its run directory and show its progress.

`gdpo_verl.lab.rundir.layout` names its files. A later start may change the settings in
`gdpo_verl.lab.run.composition.NOT_SCIENCE`; any other change is rejected with an error.
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

_PER_NODE = (
    "reward.num_workers",
    "actor_rollout_ref.rollout.agent.num_workers",
    "transfer_queue.backend.SimpleStorage.num_data_storage_units",
)
# A step of a large model with its validation takes a part of it.
HANG_SECONDS = 7200.0
# verl looks for them in this directory, which is right in a clone alone.
_OUR_FILES = (
    "actor_rollout_ref.rollout.multi_turn.function_tool_path",
    "actor_rollout_ref.rollout.agent.agent_loop_config_path",
)
# The beginning of a failure that another start would repeat.
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
    """Train until the last step; do nothing when the run in `run` has completed it.

    A run that was interrupted resumes from its last complete checkpoint, at the same place in the
    data.

    Args:
      recipe: its name, for example "toolbox/gdpo".
      run: the directory, made when it is missing.
      overrides: Hydra's, as for ``python -m verl.trainer.main_ppo``.
      retries: how often a run that failed is started again. After two starts in a row without a
        new step it is not.
      hang_after: seconds without a logged step or validation, after which the run is ended
        because it hangs.
      config_dir: where the recipe is; default: the recipes of gdpo-verl.
      accept_changed_files: resume although the data, policy, reward file or gdpo-verl changed.

    Raises:
      RecipeError: no such recipe, or its configuration cannot be composed.
      RunDirectoryError: `run` holds a run that learns something else, or that is still trained.
      LaunchError: the run failed; says why and where its log is.
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
            # Before there is a config.yaml, which another path would not fit.
            check_model(config)
            preflight.check_machine(config)
            if config.trainer.device == "cpu":
                cpu_settings.check_memory(config)
        (run / layout.DONE).unlink(missing_ok=True)
        furthest = 0
        stalled = False
        for left in range(max(retries, 0), -1, -1):
            start = _resume_step(recipe, run)
            set_aside_metrics(run)  # verl would write over the steps of earlier starts
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
            # One start that gets no further may be bad luck; a second would fail for ever.
            advanced = reached > max(furthest, start)
            if not left or (stalled and not advanced) or failure.startswith(_REJECTED):
                if not reached and not (run / layout.ROLLOUTS).exists():
                    # Nothing was learned: the next start may correct any setting.
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
    """Have verl sample responses to the prompts of data.val_files: a run of zero steps.

    Args:
      config: as `composed` has it, with `trainer.val_only`.
      driver: its `command`.
      run: the directory for config.yaml, train.log and validation/STEP.jsonl.
      label: the name on the line of progress.
      about: for launch.json, in addition to the version.

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
        # It never counts as hanging: one step may take hours.
        failure = _run(driver, label, run, config, lock, math.inf)
        if failure is not None:
            raise LaunchError(f"{label}: {failure}\nIts log: {run / layout.LOG}")
        (run / layout.DONE).touch()


def environment_of(run: Path, config: DictConfig) -> dict[str, str]:
    """Return the driver's environment; the hardware recipe chooses the platform of its workers."""
    environment = {"RAY_USAGE_STATS_ENABLED": "0", **variables_for(config), **os.environ}
    # Container images often set it; then each of verl's processes compiles all that it imports.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    platform = preflight.platform_of(config)
    if platform:
        environment["VERL_PLATFORM"] = platform
    # vLLM would compile FlashInfer's sampler, for which many machines lack a compiler.
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
    """Run the driver to its end; return why the run failed, or None."""
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
        # A file's time follows the clock of the machine, which may be set.
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
            processes.terminate(driver)  # one that has ended may have left workers
    if hangs:
        # No other message reports a process that runs and does nothing.
        minutes = f"{hang_after / 60:g} minutes"
        return f"the run hangs: no step was logged for {minutes} (--hang-after)"
    with (run / layout.LOG).open("rb") as printed:
        printed.seek(begin)
        return _failure(printed.read().decode(errors="replace"), driver.pid, driver.returncode)


def _failure(log: str, pid: int, status: int) -> str | None:
    if status == 0:
        return None
    death = describe_driver_death(pid, status) or describe_log(log)
    reason = _reason(log)
    if not death and reason.startswith("ValueError: ") and not RAY_STARTED.search(log):
        return _REJECTED + reason
    text = death or f"verl ended with status {status}"
    if not death or ("engine died" in death and "killed by" not in death):
        text += f": {reason}"  # an engine that was not killed has printed its error
    remedy = memory.remedy_for(plain(log))
    return f"{text}\nMemory ran out: {remedy}." if remedy else text


def _resume_step(recipe: str, run: Path) -> int:
    """Choose the checkpoint that verl resumes from; return its step, 0 for the beginning."""
    saved = checkpoints.directory_of(run)
    step, skipped = checkpoints.select_checkpoint(saved) if saved else (0, [])
    for sentence in skipped:
        print_status(f"{recipe}: {sentence}")
    if step or skipped:
        place = f"step {step}" if step else "the beginning"
        print_status(f"{recipe}: resumes from {place}")
    return step


def _last_step(run: Path) -> int:
    """The last step that was trained since the metrics were set aside."""
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
    """Reject the end of a run before its last step: verl ends after its epochs without an error."""
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
    """Return the configuration with which `train` starts verl's driver, and all its overrides.

    Overrides that follow from the machines come before the given ones, which take precedence.
    Raises what `train` raises before it writes anything.
    """
    paths = _path_overrides(run.resolve())
    config = compose(recipe, [*paths, *overrides], config_dir)
    overridden = {override.lstrip("+").partition("=")[0] for override in overrides}
    chosen: dict[str, Any] = {}
    if config.trainer.device == "cpu":
        if not joins_cluster(config):
            chosen |= cpu_settings.choose_settings(config)
    elif importlib.util.find_spec("flash_attn"):
        # It looks at the rows of a pack one by one; sdpa computes a dense mask over all of it.
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
            if of_one_node is not None:  # else verl chooses for all of them
                chosen[key] = of_one_node * config.trainer.nnodes
    added = [f"++{key}={value}" for key, value in chosen.items() if key not in overridden]
    complete = [*added, *overrides]
    if added:
        config = compose(recipe, [*paths, *complete], config_dir)
    return config, complete


def command(
    recipe: str, run: Path, overrides: Sequence[str], config_dir: Path | None = None
) -> list[str]:
    """Return verl's own command, as `train` runs it."""
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
        "hydra.output_subdir=null",  # Hydra's config.yaml would be cut short on a full disk
    ]


def _reason(log: str) -> str:
    """Return the last error in what this start printed."""
    lines = plain(log).splitlines()
    for line, following in reversed([*itertools.pairwise([*lines, ""])]):
        match = _ERROR.fullmatch(line.strip())
        if match and "RayTaskError" not in match[1]:
            # Hydra's has its cause on the next line.
            return f"{match[1]} {following.strip()}" if match[1].endswith(":") else match[1]
    return lines[-1] if lines else "it printed nothing"
