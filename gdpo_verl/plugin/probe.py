"""The configured reward tried before the first rollout, in the words of `check_reward`."""

from __future__ import annotations

import inspect
import json
import logging
import math
import reprlib
import sysconfig
import traceback
from collections.abc import Mapping, Sequence
from operator import methodcaller
from pathlib import Path
from typing import Any

import torch

from gdpo_verl.config import GdpoConfig
from gdpo_verl.plugin.batch import one_row
from gdpo_verl.plugin.reward import (
    MANAGER_NAME,
    opened_thought_warning,
    prompt_text,
    random_state_kept,
    rows_of_sources,
    unnamed_arguments,
)

logger = logging.getLogger(__name__)

_CALLERS = (str(Path(__file__).parent), str(Path(__file__).parents[1] / "check_reward"))


@random_state_kept()
def probe_reward(trainer: Any) -> dict[str, dict[str, Any]]:
    """Call the configured reward with an empty answer to a row of each data source of both files.

    Args:
      trainer: verl's; its `config`, `tokenizer`, `train_dataset` and `val_dataset` are read.

    Returns:
      The dict that it returned (verl's `reward_extra_info`) for each row of the training, by the
      row's name; {} when it needs a reward model, which does not run yet.

    Raises:
      ValueError: it cannot be called, raised, or returned what ends a training.
    """
    from verl.trainer.ppo.reward import load_reward_manager

    config, tokenizer = trainer.config, trainer.tokenizer
    if config.reward.reward_model.enable:
        return {}
    if problems := unnamed_arguments(config):
        raise ValueError("; ".join(problems))
    prompt = prompt_text(config, tokenizer, trainer.train_dataset[0])
    if warning := opened_thought_warning(config, prompt):
        logger.warning(warning)
    manager, key = load_reward_manager(config, tokenizer), config.data.reward_fn_key
    training = rows_of_sources(trainer.train_dataset, "data.train_files", key)
    held_out = rows_of_sources(trainer.val_dataset, "data.val_files", key)
    returned = {}
    for name, row in (training | held_out if validates(config) else training).items():
        try:
            score, returned[name] = score_row(manager, one_row([0], [tokenizer.eos_token_id], row))
            unfit = unloggable(config, [returned[name]]) if name in held_out else []
            if problem := "; ".join(filter(None, [score_problem(score), *unfit])):
                raise ValueError(problem)
        except ValueError as error:
            raise ValueError(
                f"reward.custom_reward_function: row {name}, with an empty answer: {error}. "
                "A reward function must return a score, and its components, for any text."
            ) from error
    return {name: returned[name] for name in training}


def validates(config: Any) -> bool:
    """Whether the training validates at all."""
    return bool(config.trainer.get("val_before_train", True) or config.trainer.test_freq > 0)


def score_row(manager: Any, data: Any) -> tuple[Any, dict[str, Any]]:
    """Have a reward manager score a row: its `reward_score` and `reward_extra_info`.

    Raises:
      ValueError: there is no result.
    """
    try:
        result = manager.loop.run_until_complete(manager.run_single(data))
    except Exception as error:
        raise ValueError(raised(error)) from error
    score = result.get("reward_score")
    if inspect.iscoroutine(score):
        score.close()
        raise ValueError(
            "returned a coroutine: verl awaits only a function that is itself written with `async "
            "def`, not an object whose __call__ is, nor a plain wrapper. Name such a function"
        )
    return score, dict(result.get("reward_extra_info") or {})


def raised(error: BaseException) -> str:
    """The error as the last line of its traceback, with the last place in the user's files."""
    line = traceback.format_exception_only(error)[-1].strip()
    frames = traceback.extract_tb(error.__traceback__)
    if line == "KeyError: 'score'" and "reward_manager" in frames[-1].filename:
        return (
            "returned a dict without 'score'. Return the sum of the components as 'score', or "
            f"declare them and set reward.reward_manager.name={MANAGER_NAME}, which computes it"
        )
    paths = sysconfig.get_paths()
    others = (paths["stdlib"], paths["purelib"], paths["platlib"], *_CALLERS)
    own = [frame for frame in frames if not frame.filename.startswith(others)] or frames
    return f"raised {line} ({own[-1].filename}:{own[-1].lineno})"


def score_problem(score: Any) -> str:
    """Complain of a score that verl cannot train on; '' where it can."""
    problem = f"expected a finite number as its score, found {score!r}"
    if isinstance(score, (str, bytes)):
        return problem
    try:
        torch.zeros(1)[-1] = score  # as verl does (agent_loop.py, `AgentLoopOutput.as_dict`)
        return "" if math.isfinite(score) else problem
    except (TypeError, ValueError, OverflowError, RuntimeError):
        kind = f"{type(score).__module__}.{type(score).__name__}"
        return f"{problem}, a {kind}, which verl cannot put into a tensor. Return float(score)"


def unloggable(config: Any, infos: Sequence[Mapping[str, Any]]) -> list[str]:
    """Complain of returned values with which verl's validation ends; its own function decides."""
    from verl.trainer.ppo.metric_utils import process_validation_metrics

    answers, dumps = config.actor_rollout_ref.rollout.val_kwargs.n, config.trainer.get
    problems = []
    for key in dict.fromkeys(key for info in infos for key in info):
        values = list({type(info[key]): info[key] for info in infos if key in info}.values())
        if all(isinstance(value, (int, float)) for value in values):
            continue
        values.sort(key=lambda value: isinstance(value, str))  # verl skips all if the first is one
        try:
            for prompt in [[value] for value in values] if answers == 1 else [values * 2]:
                process_validation_metrics([""] * len(prompt), [""] * len(prompt), {key: prompt})
                if dumps("validation_data_dir"):
                    json.dumps(prompt, default=methodcaller("tolist"))
        except Exception as error:
            found = " and ".join(f"{reprlib.repr(v)} ({type(v).__name__})" for v in values)
            problems.append(
                f"{key!r} is {found}, with which verl's validation ends ({type(error).__name__}). "
                "Return a number, a text or None for it, the same for every answer"
            )
    return problems


def not_a_dict(info: Mapping[str, Any], settings: GdpoConfig) -> str:
    """Complain of a bare number, which verl keeps as 'acc'; '' for a dict, or where it is named."""
    if set(info) != {"acc"} or "acc" in (settings.reward_keys or ()):
        return ""
    return (
        "expected compute_score to return a dict with 'score' and the components, found "
        f"{info['acc']!r}. Return {{'score': …, 'correctness': …}} and declare the components "
        "(gdpo_verl.rewards.declares), or name them in algorithm.gdpo_reward_keys"
    )
