"""Try a reward on rows of the data before a training is paid for: `gdpo-verl check-reward`.

The configuration is the training's own, and verl loads the data, the reward function and the
manager from it as a training would. No Ray, no GPU.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from omegaconf import open_dict

from gdpo_verl.check_reward import answers
from gdpo_verl.check_reward.answers import CheckedAnswer
from gdpo_verl.check_reward.checks import STEP_SECONDS, ScoredAnswer, complaints
from gdpo_verl.check_reward.report import Report, measure
from gdpo_verl.check_reward.tokens import load_tokenizer, model_path
from gdpo_verl.check_reward.worker import RewardResult, Scored, score_twice
from gdpo_verl.config import GdpoConfig
from gdpo_verl.plugin import reward, validation
from gdpo_verl.rewards.judge import JUDGE
from gdpo_verl.rewards.thought import THINK, opened_thought
from gdpo_verl.run import composition
from gdpo_verl.run.preflight import check_data_files

ROWS = 64
TIMEOUT = 60.0
# Answers of a model to each row, where actor_rollout_ref.rollout.n is verl's default of 1.
SEVERAL = 4


@dataclass(frozen=True)
class CheckSource:
    """The source of the answers; at most one is set, and without any they are made up.

    Attributes:
      file: JSON lines; see `answers.from_file`.
      model: a local model to sample from, set as `actor_rollout_ref.model.path`.
    """

    file: Path | None = None
    model: Path | None = None


def compose(recipe: str | None, overrides: Sequence[str], directory: Path | None = None) -> Any:
    """A training's configuration: a recipe's, or verl's `ppo_trainer`, with Hydra's overrides.

    Raises:
      ValueError: it cannot be composed.
    """
    import hydra
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    if recipe:
        return composition.compose(recipe, overrides, directory)
    try:
        with hydra.initialize_config_module("verl.trainer.config", version_base=None):
            return hydra.compose("ppo_trainer", list(overrides))
    except (HydraException, OmegaConfBaseException) as error:
        raise ValueError(f"configuration ppo_trainer: {error}") from error


def override_reward_and_data(config: Any, function: str | None, files: Sequence[str]) -> None:
    """Set the reward function (``path:name``, name `compute_score` when left out) and the data."""
    with open_dict(config):
        if function:
            path, colon, name = function.rpartition(":")
            named = bool(colon) and name.isidentifier()
            config.reward.custom_reward_function.path = path if named else function
            config.reward.custom_reward_function.name = name if named else "compute_score"
        if files:
            config.data.train_files = list(files)


def check(
    config: Any,
    source: CheckSource,
    *,
    rows: int | None = None,
    timeout: float = TIMEOUT,
    step_seconds: float = STEP_SECONDS,
) -> Report:
    """Score answers with the configured reward and look at what comes out.

    Args:
      rows: how many rows, spread evenly over data.train_files (default 64); with a file of
        answers how many of the prompts in it (default all).
      timeout: seconds that one answer may take.
      step_seconds: how long a training step takes, of which an answer may take a share.

    Raises:
      ValueError: the configuration, the data, the answers or the reward cannot be read; names
        the key in full.
    """
    if config.reward.reward_model.enable:
        raise ValueError(
            "reward.reward_model.enable: expected false, found true. A reward model needs the "
            "training's devices; check a rule-based reward here. A judge can be asked at an "
            f"address: `vllm serve` it, set {JUDGE}.url and .model, and this to false."
        )
    numbers = {"--rows": rows, "--timeout": timeout, "--step-seconds": step_seconds}
    for name, number in numbers.items():
        if number is not None and not number > 0:
            raise ValueError(f"{name}: expected a number above 0, found {number:g}")
    validation.check_keys(config)
    settings = GdpoConfig.from_algorithm(config.algorithm)
    if source.model is not None:
        config.actor_rollout_ref.model.path = str(source.model)
        if config.actor_rollout_ref.rollout.n == 1:
            config.actor_rollout_ref.rollout.n = SEVERAL
    with contextlib.redirect_stdout(sys.stderr):  # verl's and transformers' prints
        tokenizer = load_tokenizer(config.actor_rollout_ref.model)
        dataset = _dataset(config, tokenizer)
        chosen, columns = _answers(config, source, dataset, tokenizer, rows)
        prompts = {row: reward.prompt_text(config, tokenizer, columns[row]) for row in columns}
        opened = [row for row, prompt in prompts.items() if opened_thought(prompt)]
        # A policy whose prompt opens the thought answers without that tag.
        chosen = [
            replace(answer, text=answer.text.removeprefix(THINK).lstrip("\n"))
            if answer.made_up and answer.row in opened
            else answer
            for answer in chosen
        ]
        others = _held_out(config, tokenizer)
        held_out = answers.made_up(others)
        scored = score_twice(config, {**columns, **others}, [*chosen, *held_out], timeout)
    report = measure(chosen, scored, settings, step_seconds)
    # In a validation nobody reads the components: a number will do.
    results = scored.results[len(chosen) :]
    tried = [ScoredAnswer(answer, each) for answer, each in zip(held_out, results, strict=False)]
    problems, _ = complaints(tried, settings, numbers_allowed=True)
    problems += reward.unloggable(config, [each.info for each in scored.results])
    problems += _estimator_problems(config, scored, scored.results[: len(chosen)])
    notes = []
    if opened:
        prompt = prompts[opened[0]]
        in_front = (
            f"the prompt ends in {opened_thought(prompt)!r}, so that answers start inside the "
            f"thought; {reward.MANAGER_NAME} puts that in front of them for the reward"
        )
        notes.append(reward.opened_thought_warning(config, prompt) or in_front)
    return replace(
        report,
        problems=[*report.problems, *problems],
        notes=[*notes, *report.notes],
        about=_about(config, len(dataset), len(columns), chosen),
    )


def _held_out(config: Any, tokenizer: Any) -> dict[Any, dict[str, Any]]:
    """The first row of each data source of data.val_files, where these are here."""
    files = config.data.get("val_files") or []
    paths = map(os.path.expanduser, [files] if isinstance(files, str) else files)
    if not reward.validates(config) or not all(map(os.path.exists, paths)):
        return {}
    dataset = _dataset(config, tokenizer, "val_files")
    rows = reward.first_rows(dataset, "val_files", config.data.reward_fn_key)
    return {name: _columns(dataset, number) for name, number in rows.items()}


def _columns(dataset: Any, number: int) -> dict[str, Any]:
    """A row without verl's `dummy_tensor`, which takes a file descriptor to send to a process."""
    import torch

    row = dict(dataset[number])
    return {key: value for key, value in row.items() if not isinstance(value, torch.Tensor)}


def _estimator_problems(config: Any, scored: Scored, results: Sequence[RewardResult]) -> list[str]:
    """Complain of a variant, a filter or a schedule that cannot work with what the reward returns.

    What is wrong with the components themselves is in the report already.
    """
    try:
        validation.check_schedule(config)
        objective = GdpoConfig.from_algorithm(config.algorithm).resolve(scored.declared)
    except ValueError as error:
        return [str(error)] if "algorithm.gdpo.schedule:" in str(error) else []
    try:
        validation.check_estimator(objective, config.actor_rollout_ref.rollout.n)
        returned = {str(row): each.info for row, each in enumerate(results) if not each.error}
        validation.check_filter(config, returned)
    except ValueError as error:
        return [str(error)]
    return []


def _answers(
    config: Any, source: CheckSource, dataset: Any, tokenizer: Any, rows: int | None
) -> tuple[list[CheckedAnswer], dict[int, dict[str, Any]]]:
    if source.file is not None:
        given = answers.from_file(source.file, dataset)
        groups = list(dict.fromkeys(answer.group for answer in given))[:rows]
        given = [answer for answer in given if answer.group in set(groups)]
        return given, {row: _columns(dataset, row) for row in {each.row for each in given}}
    numbers = {*answers.spread(len(dataset), rows or ROWS)}
    numbers |= {*reward.first_rows(dataset, "train_files", config.data.reward_fn_key).values()}
    columns = {row: _columns(dataset, row) for row in sorted(numbers)}
    if source.model is not None:
        from gdpo_verl.check_reward.sampling import sample

        return sample(config, tokenizer, columns), columns
    return answers.made_up(columns), columns


def _dataset(config: Any, tokenizer: Any, key: str = "train_files") -> Any:
    """The files of `data` under this key as the training reads them, but with every row.

    Raises:
      ValueError: they cannot be read, hold no rows, or lack a column that verl's managers read.
    """
    from verl.trainer.ppo.utils import create_rl_dataset

    with open_dict(config):
        config.data.filter_overlong_prompts = False  # row numbers stay those of the files
    check_data_files(config.data, key)
    try:
        dataset = create_rl_dataset(config.data[key], config.data, tokenizer, None)
        if not len(dataset):
            raise ValueError("expected at least one row, found none")
    except Exception as error:
        raise ValueError(
            f"data.{key}: cannot read {_files(config, key)} (working directory {os.getcwd()}): "
            f"{type(error).__name__}: {error}. Prepare them first, for instance with `gdpo-verl "
            "prepare toolbox`, and name them with --data."
        ) from error
    _check_columns(config, dataset, key)
    return dataset


def _check_columns(config: Any, dataset: Any, key: str) -> None:
    wanted = {config.data.prompt_key: "verl's data set reads"}
    if config.reward.reward_manager.source == "register":
        wanted |= dict.fromkeys(("data_source", "reward_model"), "verl's reward managers read")
    found = getattr(getattr(dataset, "dataframe", None), "column_names", None)
    for column, reader in wanted.items():
        if found is not None and column not in found:
            raise ValueError(
                f"data.{key}: {reader} a column {column!r}, found only {sorted(found)} in "
                f"{_files(config, key)}"
            )
    if "reward_model" not in wanted or key != "train_files":
        return
    truths = [answers.ground_truth(dataset[number]) for number in range(len(dataset))]
    known = "ground_truth" in (dataset[0].get("reward_model") or {})
    if None in truths and (not known or set(truths) != {None}):  # a judge may need none
        raise ValueError(
            "data.train_files: expected a ground truth in reward_model.ground_truth of every row, "
            f"found none in row {truths.index(None)} of {_files(config)}"
        )


def _about(config: Any, total: int, rows: int, chosen: Sequence[CheckedAnswer]) -> dict[str, str]:
    function, manager = config.reward.custom_reward_function, config.reward.reward_manager
    kinds = ", ".join(dict.fromkeys(answer.kind for answer in chosen))
    file = "" if manager.source == "register" else f"{manager.module.path}:"
    # What there is beside GDPO alone.
    settings = GdpoConfig.from_algorithm(config.algorithm)
    estimator = [] if settings.variant == "gdpo" else [settings.variant]
    if settings.options:
        estimator.append(", ".join(f"{key}={value}" for key, value in settings.options.items()))
    if settings.gate is not None:
        estimator.append(f"gate on {settings.gate['on']} ({settings.gate['when']})")
    estimator += [f"scheduled weight of {key}" for key in settings.schedule]
    tokens = model_path(config.actor_rollout_ref.model)
    about = {
        "reward": f"{function.path}:{function.name}" if function.path else "the manager's own",
        "manager": f"{file}{manager.name}",
        "data": f"{_files(config)}: {rows} of {total} rows, {len(chosen)} answers ({kinds})",
        "estimator": "; ".join(estimator),
        "tokens": tokens or "bytes, for there is no actor_rollout_ref.model.path here",
    }
    return {heading: text for heading, text in about.items() if text}


def _files(config: Any, key: str = "train_files") -> str:
    files = config.data[key]
    return files if isinstance(files, str) else ", ".join(files)
