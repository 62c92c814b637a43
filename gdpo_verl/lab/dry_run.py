"""Describe what a run would do and need, and find its problems, without a GPU."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from omegaconf import DictConfig

from gdpo_verl import __version__
from gdpo_verl.cpu.settings import check_memory, memory
from gdpo_verl.lab.run import checkpoints, claim, launch
from gdpo_verl.lab.run.composition import DATA, MODEL, REWARD, hardware_of, named
from gdpo_verl.lab.run.memory import Shape, load_shape, needs
from gdpo_verl.lab.run.preflight import check_data_files
from gdpo_verl.lab.rundir import layout
from gdpo_verl.lab.tasks.rows import tokenizer_of
from gdpo_verl.plugin.step.dumps import DumpSettings
from gdpo_verl.upstream.model import check_model

# The number of rows on which the reward is tried, with several responses each.
PROBED_ROWS = 4
_GIB = 1 << 30


@dataclass(frozen=True)
class DryRun:
    """The result of a dry run: the settings and needs of the run, and its problems.

    Attributes:
      lines: lines for a terminal.
      problems: the problems, each with its configuration key; empty if the run can be started.
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
    card: float | None = None,
    elsewhere: bool = False,
    config_dir: Path | None = None,
    accept_changed_files: bool = False,
) -> DryRun:
    """Compose a run and check everything that needs no GPU. Nothing is written.

    Args:
      recipe, run, overrides, config_dir, accept_changed_files: as for `launch.train`.
      card: the memory of one GPU in GiB; by default that of this machine's GPUs, or else that of
        the smallest GPU for which the hardware recipe is meant.
      elsewhere: True if the run is trained on other machines, whose files may be missing here.

    Raises:
      RecipeError: there is no such recipe, or its configuration cannot be composed.
    """
    config, complete = launch.composed(recipe, run, overrides, config_dir)
    hardware = hardware_of(recipe, overrides, config_dir)
    command = launch.command(recipe, run, complete, config_dir)
    lines = [*_what(recipe, command, config)]
    problems: list[str] = []
    try:
        _check_directory(run.resolve(), recipe, config, accept_changed_files)
    except (RuntimeError, ValueError) as error:
        problems.append(str(error))
    shape = load_shape(config.actor_rollout_ref.model)
    # All checks run, so that the user sees all problems at once.
    for check in (_model, _settings, _data_and_reward):
        with contextlib.redirect_stdout(sys.stderr):  # verl's and transformers' prints
            try:
                lines += check(config, shape, elsewhere)
            except (ValueError, AssertionError) as error:
                problems += [] if str(error) in problems else [str(error)]
    if shape is not None:
        lines += _memory(config, shape, hardware, card)
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
    model = config.actor_rollout_ref.model
    name = (model.get("override_config") or {}).get("attn_implementation", "flash_attention_2")
    responses = (
        "packed" if model.use_remove_padding else "padded to the longest of their micro-batch"
    )
    if name == "sdpa" and model.use_remove_padding:
        responses += ": its time grows with max_token_len_per_gpu squared, unlike flash-attn's"
    yield (
        f"software gdpo-verl {__version__}, verl {version('verl')}; attention {name}, responses "
        f"{responses}"
    )


def _check_directory(
    run: Path, recipe: str, config: DictConfig, accept_changed_files: bool
) -> None:
    """Raise the errors that `train` would raise about the run directory, without changing it."""
    if (run / layout.LOCK).exists():
        with claim.locked(run):
            pass
    claim.check_start(run, recipe, config, accept_changed_files=accept_changed_files)
    saved = checkpoints.directory_of(run)
    if saved:
        checkpoints.require_complete(saved)


def _model(config: DictConfig, shape: Shape | None, elsewhere: bool) -> Iterator[str]:
    check_model(config, elsewhere=elsewhere)
    if config.trainer.device == "cpu" and not elsewhere:
        check_memory(config)
    if shape is None:
        yield (
            f"memory   not known: the configuration of {config.actor_rollout_ref.model.path!r} is "
            "not available here. The machine that trains needs it: fetch it with `hf download`"
        )
        return
    model = config.actor_rollout_ref.model
    try:
        tokenizer = tokenizer_of(model.get("tokenizer_path") or model.path, MODEL)
    except ValueError:  # the check of the reward needs a tokenizer too, and reports this error
        return
    highest = max(tokenizer.get_vocab().values())
    if highest >= shape.vocabulary:
        raise ValueError(
            f"{MODEL}: expected weights for every token, found {shape.vocabulary} rows of "
            f"embeddings and the token {highest}. Give the tokenizer that the model was trained "
            "with."
        )


def _settings(config: DictConfig, shape: Shape | None, elsewhere: bool) -> Iterator[str]:
    """Run verl's own validation and that of gdpo-verl, except the checks that look for a GPU."""
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    from gdpo_verl.plugin.checks import batches, validation
    from gdpo_verl.plugin.checks.checks import Moment, Run, check_run

    if validation.uses_plugin(config):
        check_run(Run(config), Moment.KEYS, Moment.CONFIGURATION)
    else:
        batches.check(config)
    DumpSettings.of(config.trainer)
    # The plug-in's wrapper is skipped, because it also looks at the devices of this machine.
    original = getattr(validate_config, "__wrapped__", validate_config)
    original(config, need_reference_policy(config), need_critic(config))
    yield "settings verl's validation and GDPO's passed"


def _data_and_reward(config: DictConfig, shape: Shape | None, elsewhere: bool) -> Iterator[str]:
    """Check the columns of the data, and try the reward on rows with made-up responses."""
    from gdpo_verl.lab import check_reward

    if elsewhere and not all(os.path.exists(path) for path in _files(config)):
        yield "data     not tried, and neither was the reward: files are missing on this machine"
        return
    check_data_files(config.data)
    if config.reward.reward_model.enable:
        yield "reward   not tried: a reward model needs the devices"
        return
    config = config.copy()  # the check changes settings
    if shape is None:
        config.actor_rollout_ref.model.path = None  # responses are then counted in bytes
    report = check_reward.check(config, rows=PROBED_ROWS)
    if report["problems"]:
        raise ValueError("data and reward: " + "; ".join(report["problems"]))
    names = ", ".join(component["name"] for component in report["components"])
    yield f"data     {report['about']['data']}"
    yield f"reward   {report['about']['reward']} returned {names} for each of them"


def _files(config: DictConfig) -> list[str]:
    """Return the files of the data, and the file of the reward function if there is one."""
    files = [file for key in DATA for file in named(config, key)]
    files += [file for file in named(config, REWARD) if "://" not in file]
    return files


def _memory(config: DictConfig, shape: Shape, hardware: str, card: float | None) -> Iterator[str]:
    import torch

    total: float
    if config.trainer.device == "cpu":
        total = memory()
        source = f"this machine, for {config.trainer.n_gpus_per_node} device(s)"
    elif card is not None:
        total = card * _GIB
        source = "one GPU, by --card"
    elif torch.cuda.is_available():
        gpus = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
        total = min(gpu.total_memory for gpu in gpus)
        source = "this machine's smallest GPU"
    else:
        # An L4 or A10G, and an H100, as nvidia-smi reports them.
        total = (22.4 if hardware == "gpu24" else 79.5) * _GIB
        source = f"the smallest GPU of hardware={hardware}"
    yield (
        f"memory   {shape.weights / 1e9:.2f} billion weights; {source}: {_gib(total)}. Each device "
        "holds, with activations on top (for information: these numbers reject no run)"
    )
    yield from (f"  {what}: {_gib(size)}" for what, size in needs(config, shape))


def _gib(size: float) -> str:
    return f"{size / _GIB:.1f} GiB" if size >= _GIB else f"{size / 2**20:.0f} MiB"
