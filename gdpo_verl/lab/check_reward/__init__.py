"""`gdpo-verl check-reward`: try a reward function on rows of the data, before a training run.

The command uses the configuration of the run. verl loads the data, the reward function and the
reward manager as in the run. Neither Ray nor a GPU is needed.
"""

from __future__ import annotations

import contextlib
import importlib.resources
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from omegaconf import open_dict

from gdpo_verl.lab.check_reward.answers import (
    CheckedAnswer,
    from_file,
    ground_truth,
    made_up,
    of_several_turns,
)
from gdpo_verl.lab.check_reward.checks import PROBLEM, ScoredAnswer, complaints
from gdpo_verl.lab.check_reward.report import measure
from gdpo_verl.lab.check_reward.sampling import sample
from gdpo_verl.lab.check_reward.tokens import load_tokenizer, model_path
from gdpo_verl.lab.check_reward.worker import score_twice
from gdpo_verl.lab.run import composition
from gdpo_verl.lab.run.composition import listed
from gdpo_verl.lab.run.preflight import check_data_files
from gdpo_verl.plugin.checks import reward
from gdpo_verl.plugin.checks.checks import Moment, Run, check_run
from gdpo_verl.plugin.checks.reward_function import JUDGE, MANAGER_NAME
from gdpo_verl.rewards.thought import opened_thought

ROWS = 64  # rows of the data
TIMEOUT = 60.0  # seconds for the reward of one response
# The number of responses to a prompt if actor_rollout_ref.rollout.n has verl's default, 1. One
# response cannot differ from another.
SEVERAL = 4


def compose(recipe: str | None, overrides: Sequence[str], directory: Path | None = None) -> Any:
    """Compose the configuration of a run: a recipe, or verl's `ppo_trainer`, with overrides.

    Raises:
      ValueError: the configuration cannot be composed.
    """
    if not recipe:
        if directory:
            raise ValueError("--config-dir: expected --recipe as well, found none")
        recipe = "ppo_trainer"
        directory = Path(str(importlib.resources.files("verl"))) / "trainer/config"
    return composition.compose(recipe, overrides, directory)


def override_reward_and_data(config: Any, function: str | None, data: Sequence[str]) -> None:
    """Set the reward function and the data files, where they are given.

    Args:
      config: the configuration of the run, which is changed.
      function: ``path:name``; the name is `compute_score` by default.
      data: the files of data.train_files.
    """
    with open_dict(config):
        if function:
            path, colon, name = function.rpartition(":")
            has_name = bool(colon) and name.isidentifier()
            config.reward.custom_reward_function.path = path if has_name else function
            config.reward.custom_reward_function.name = name if has_name else "compute_score"
        if data:
            config.data.train_files = list(data)


def check(
    config: Any,
    *,
    answers: Path | None = None,
    model: Path | None = None,
    samples: int | None = None,
    rows: int | None = None,
    timeout: float = TIMEOUT,
) -> dict[str, Any]:
    """Score responses with the configured reward, and return the report of `report.measure`.

    Without a file of responses and without a model, responses are made up from the ground truths.

    Args:
      config: the configuration of the run.
      answers: a file of responses, see `answers.from_file`.
      model: a local model to sample from; it becomes `actor_rollout_ref.model.path`.
      samples: the number of responses that the model samples for each row; by default
        actor_rollout_ref.rollout.n.
      rows: the number of rows, evenly spread over data.train_files (default 64). With a file of
        responses it is the number of prompts of this file (default all).
      timeout: the seconds that the reward of one response may take.

    Raises:
      ValueError: the configuration, the data, the responses or the reward cannot be read. The
        message names the key in full.
    """
    _check_settings(config)
    options = {"--rows": rows, "--samples": samples, "--timeout": timeout}
    for name, number in options.items():
        if number is not None and not number > 0:
            raise ValueError(f"{name}: expected a number above 0, found {number:g}")
    if model is not None:
        config.actor_rollout_ref.model.path = str(model)
    if config.actor_rollout_ref.rollout.n == 1:
        config.actor_rollout_ref.rollout.n = SEVERAL
    with contextlib.redirect_stdout(sys.stderr):  # verl's and transformers' prints
        tokenizer = load_tokenizer(config.actor_rollout_ref.model)
        dataset = _dataset(config, tokenizer, "train_files")
        chosen: Sequence[CheckedAnswer] = []
        if answers is not None:
            chosen = from_file(answers, dataset)
            groups = set(list(dict.fromkeys(answer.group for answer in chosen))[:rows])
            chosen = [answer for answer in chosen if answer.group in groups]
            numbers = {answer.row for answer in chosen}
        else:
            numbers = _spread(dataset, rows or ROWS, config.data.reward_fn_key)
        columns = {number: _columns(dataset, number) for number in sorted(numbers)}
        # The same chat template writes all prompts, so that the first one shows whether responses
        # start inside a thought.
        prompt = reward.prompt_text(config, tokenizer, next(iter(columns.values())))
        opening = opened_thought(prompt)
        if model is not None:
            chosen = sample(
                config, tokenizer, columns, samples or int(config.actor_rollout_ref.rollout.n)
            )
        elif answers is None:
            chosen = made_up(columns, inside_thought=bool(opening))
        others = _held_out(config, tokenizer)
        further = [*made_up(others, inside_thought=bool(opening)), of_several_turns(columns)]
        # The further responses come last. If one of them hangs, all responses to training rows have
        # been scored by then.
        scored = score_twice(config, {**columns, **others}, [*chosen, *further], timeout)
    report = measure(config, chosen, scored)
    tried = [*map(ScoredAnswer, further, scored.results[len(chosen) :])]
    findings = complaints(tried, scored.declared)
    report["problems"] += [text for kind, text in findings if kind == PROBLEM]
    report["problems"] += reward.unloggable(config, [result.info for result in scored.results])
    if model_path(config.actor_rollout_ref.model):  # else prompts are counted in bytes
        overlong = reward.overlong_prompts(config, tokenizer, dataset, columns.values())
        report["problems"] += [overlong] if overlong else []
    if opening:
        report["notes"].insert(0, _about_thought(config, prompt, opening))
    return {"about": _about(config, len(dataset), len(columns), chosen)} | report


def _check_settings(config: Any) -> None:
    if config.reward.reward_model.enable:
        raise ValueError(
            "reward.reward_model.enable: expected false, found true. A reward model needs the "
            "devices of the run; check a rule-based reward here. A judge can be asked at an "
            f"address: `vllm serve` it, set {JUDGE}.url and .model, and this to false."
        )
    check_run(Run(config), Moment.KEYS)


def _about_thought(config: Any, prompt: str, opening: str) -> str:
    return reward.opened_thought_warning(config, prompt) or (
        f"the prompt ends in {opening!r}, so that responses start inside the thought; "
        f"{MANAGER_NAME} puts this text in front of them for the reward"
    )


def _spread(dataset: Any, rows: int, source_key: str) -> set[int]:
    """Choose evenly spread row numbers, and the first row of each data source."""
    total = len(dataset)
    count = min(rows, total)
    # An even spread may miss a data source of few rows.
    first = reward.first_rows(dataset, "train_files", source_key)
    return {number * total // count for number in range(count)} | set(first.values())


def _held_out(config: Any, tokenizer: Any) -> dict[Any, dict[str, Any]]:
    """Return the first row of each data source of data.val_files, if these files exist."""
    paths = map(os.path.expanduser, listed(config.data.get("val_files")))
    if not reward.validates(config) or not all(map(os.path.exists, paths)):
        return {}
    dataset = _dataset(config, tokenizer, "val_files")
    rows = reward.first_rows(dataset, "val_files", config.data.reward_fn_key)
    return {name: _columns(dataset, number) for name, number in rows.items()}


def _columns(dataset: Any, number: int) -> dict[str, Any]:
    """Return a row without tensors.

    Sending verl's `dummy_tensor` to a child process would use a file descriptor for each row.
    """
    row = dataset[number]
    return {key: value for key, value in row.items() if not isinstance(value, torch.Tensor)}


def _dataset(config: Any, tokenizer: Any, key: str) -> Any:
    """Read the files under a key of `data` as a run does, without removing overlong prompts.

    Raises:
      ValueError: the files cannot be read, have no rows, or lack a column that verl reads.
    """
    from verl.trainer.ppo.utils import create_rl_dataset

    data = config.data.copy()
    with open_dict(data):
        data.filter_overlong_prompts = False  # so that row numbers are those of the files
    check_data_files(data, key)
    files = _files(config, key)
    try:
        dataset = create_rl_dataset(data[key], data, tokenizer, None)
        if not len(dataset):
            raise ValueError("expected at least one row, found none")
    except Exception as error:
        raise ValueError(
            f"data.{key}: cannot read {files} (working directory {os.getcwd()}): "
            f"{type(error).__name__}: {error}. Prepare them first, for example with `gdpo-verl "
            f"prepare toolbox`, and name them in data.{key}."
        ) from error
    required = {config.data.prompt_key: "verl's data set reads"}
    if config.reward.reward_manager.source == "register":
        required |= dict.fromkeys(("data_source", "reward_model"), "verl's reward managers read")
    # A data set of the user's own class may have no attribute `dataframe`.
    columns = getattr(getattr(dataset, "dataframe", None), "column_names", None)
    for column, reader in required.items():
        if columns is not None and column not in columns:
            raise ValueError(
                f"data.{key}: {reader} a column {column!r}, found only {sorted(columns)} in {files}"
            )
    if "reward_model" in required and key == "train_files":
        truths = [ground_truth(dataset[number]) for number in range(len(dataset))]
        has_truth = "ground_truth" in (dataset[0].get("reward_model") or {})
        if None in truths and (not has_truth or set(truths) != {None}):  # a judge may need none
            raise ValueError(
                "data.train_files: expected a ground truth in reward_model.ground_truth of every "
                f"row, found none in row {truths.index(None)} of {files}"
            )
    return dataset


def _about(config: Any, total: int, rows: int, chosen: Sequence[CheckedAnswer]) -> dict[str, str]:
    function = config.reward.custom_reward_function
    manager = config.reward.reward_manager
    kinds = ", ".join(dict.fromkeys(answer.kind for answer in chosen))
    file = "" if manager.source == "register" else f"{manager.module.path}:"
    files = _files(config, "train_files")
    tokens = model_path(config.actor_rollout_ref.model)
    return {
        "reward": f"{function.path}:{function.name}" if function.path else "the manager's own",
        "manager": f"{file}{manager.name}",
        "data": f"{files}: {rows} of {total} rows, {len(chosen)} responses ({kinds})",
        "tokens": tokens or "bytes, because actor_rollout_ref.model.path is not on this machine",
    }


def _files(config: Any, key: str) -> str:
    return ", ".join(listed(config.data[key]))
