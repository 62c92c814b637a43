"""Say what a run would do, and find what is wrong with it, without a device."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig

from gdpo_verl.cpu.settings import check_memory
from gdpo_verl.lab.run import checkpoints, claim, launch
from gdpo_verl.lab.run.composition import DATA, REWARD, named
from gdpo_verl.lab.run.preflight import check_data_files
from gdpo_verl.lab.rundir import layout
from gdpo_verl.plugin.step.dumps import DumpSettings
from gdpo_verl.upstream.model import check_model, has_configuration

# The rows on which the reward is tried; each gets several responses.
PROBED_ROWS = 4


@dataclass(frozen=True)
class DryRun:
    """A run as it would be trained: its settings, and its faults.

    Attributes:
      lines: for a terminal.
      problems: each with the key at fault; empty when the run can be started.
    """

    lines: list[str]
    problems: list[str]

    def to_text(self) -> str:
        """Return the text for a terminal; its last line says whether the run can be started."""
        problems = [f"PROBLEM  {problem}" for problem in self.problems]
        end = f"Correct {len(problems)} problem(s) first." if problems else "All checks passed."
        return "\n".join([*self.lines, *problems, f"Nothing was started. {end}"])


def dry_run(
    recipe: str,
    run: Path,
    overrides: Sequence[str] = (),
    *,
    elsewhere: bool = False,
    config_dir: Path | None = None,
    accept_changed_files: bool = False,
) -> DryRun:
    """Compose a run and check everything that needs no device.

    Args:
      recipe, run, overrides, config_dir, accept_changed_files: as for `launch.train`; nothing is
        written.
      elsewhere: the run is trained on other machines, whose files need not be here.

    Raises:
      RecipeError: no such recipe, or its configuration cannot be composed.
    """
    config, complete = launch.composed(recipe, run, overrides, config_dir)
    command = launch.command(recipe, run, complete, config_dir)
    lines = [*_what(recipe, command, config)]
    problems: list[str] = []
    try:
        _check_directory(run.resolve(), recipe, config, accept_changed_files)
    except RuntimeError as error:
        problems.append(str(error))
    # All checks run, so that the user sees all problems at once.
    for check in (_model, _settings, _data_and_reward):
        with contextlib.redirect_stdout(sys.stderr):  # verl's and transformers' prints
            try:
                lines += check(config, elsewhere)
            except (ValueError, AssertionError) as error:
                problems += [] if str(error) in problems else [str(error)]
    return DryRun(lines, problems)


def _what(recipe: str, command: Sequence[str], config: DictConfig) -> Iterator[str]:
    trainer = config.trainer
    rollout = config.actor_rollout_ref.rollout
    machines = f"{trainer.nnodes} node(s) × {trainer.n_gpus_per_node} GPU(s)"
    if trainer.device == "cpu":
        machines = f"the cores of this machine, as {trainer.n_gpus_per_node} device(s)"
    yield f"recipe   {recipe}: {config.algorithm.adv_estimator} on {machines}"
    yield f"command  {shlex.join(command)}"
    length = trainer.total_training_steps or f"{trainer.total_epochs} times through the data"
    yield (
        f"steps    {length}, each of {config.data.train_batch_size} prompts × {rollout.n} responses"
    )


def _check_directory(
    run: Path, recipe: str, config: DictConfig, accept_changed_files: bool
) -> None:
    """Reject what `train` would reject of the run directory, and leave it as it is."""
    if (run / layout.LOCK).exists():
        with claim.locked(run):
            pass
    claim.check_start(run, recipe, config, accept_changed_files=accept_changed_files)
    saved = checkpoints.directory_of(run)
    if saved:
        checkpoints.require_complete(saved)


def _model(config: DictConfig, elsewhere: bool) -> Iterator[str]:
    check_model(config, elsewhere=elsewhere)
    if config.trainer.device == "cpu" and not elsewhere:
        check_memory(config)
    yield f"model    {config.actor_rollout_ref.model.path}"


def _settings(config: DictConfig, elsewhere: bool) -> Iterator[str]:
    """Run verl's own validation and that of gdpo-verl, except what looks for a device."""
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    from gdpo_verl.plugin.checks import batches, validation
    from gdpo_verl.plugin.checks.checks import Moment, Run, check_run

    if validation.uses_plugin(config):
        check_run(Run(config), Moment.KEYS, Moment.CONFIGURATION)
    else:
        batches.check(config)
    DumpSettings.of(config.trainer)
    # Without the plug-in's wrapper, which looks at this machine's devices, too.
    original = getattr(validate_config, "__wrapped__", validate_config)
    original(config, need_reference_policy(config), need_critic(config))
    yield "settings verl's validation and GDPO's passed"


def _data_and_reward(config: DictConfig, elsewhere: bool) -> Iterator[str]:
    """Check the columns of the data, and try the reward on rows with responses of all kinds."""
    from gdpo_verl.lab import check_reward

    if elsewhere and not all(os.path.exists(path) for path in _files(config)):
        yield "data     not tried, and neither was the reward: files are missing on this machine"
        return
    check_data_files(config.data)
    if config.reward.reward_model.enable:
        yield "reward   not tried: a reward model needs the devices"
        return
    config = config.copy()  # the check changes settings of it
    if not has_configuration(config.actor_rollout_ref.model.path or ""):
        config.actor_rollout_ref.model.path = None  # responses are then counted in bytes
    report = check_reward.check(config, rows=PROBED_ROWS)
    if report["problems"]:
        raise ValueError("data and reward: " + "; ".join(report["problems"]))
    names = ", ".join(component["name"] for component in report["components"])
    yield f"data     {report['about']['data']}"
    yield f"reward   {report['about']['reward']} returned {names} for each of them"


def _files(config: DictConfig) -> list[str]:
    """Return the files of the data, and that of the reward where it is a file."""
    files = [file for key in DATA for file in named(config, key)]
    files += [file for file in named(config, REWARD) if "://" not in file]
    return files
