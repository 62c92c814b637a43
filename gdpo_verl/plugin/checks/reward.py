"""Call the configured reward function before the first rollout, and check what it returns.

The functions here that return a text return a complaint, or an empty text if nothing is wrong.
The command `gdpo-verl check-reward` uses them, too.
"""

from __future__ import annotations

import copy
import inspect
import json
import logging
import math
import reprlib
import traceback
from collections.abc import Iterable, Mapping, Sequence
from operator import methodcaller
from typing import Any

import numpy as np
import torch

from gdpo_verl.advantage.variants import random_state_kept
from gdpo_verl.config import GdpoConfig
from gdpo_verl.config.components import RESERVED
from gdpo_verl.plugin.checks.reward_function import (
    MANAGER_NAME,
    in_configuration,
    user_place,
)
from gdpo_verl.reward_dicts import expected_dict, unnested
from gdpo_verl.rewards.thought import opened_thought

logger = logging.getLogger(__name__)

# The largest relative difference between a score and the sum of its components. verl stores the
# score as float32.
SCORE_TOLERANCE = 1e-4


@random_state_kept()
def probe_reward(trainer: Any) -> dict[str, dict[str, Any]]:
    """Call the configured reward function with an empty response, once for each data source.

    It is called for the first row of each data source in the training data and, if the run
    validates, in the validation data.

    Args:
      trainer: verl's trainer. Its `config`, `tokenizer`, `train_dataset` and `val_dataset` are
        read.

    Returns:
      The dict that the function returned (verl's `reward_extra_info`) for each row of the training
      data, by the name of the row. The result is empty if the rewards need a reward model, because
      the model does not run yet.

    Raises:
      ValueError: the function cannot be called, raised an exception, or returned a value that would
        end the run.
    """
    from verl.trainer.ppo.reward import load_reward_manager

    config = trainer.config
    tokenizer = trainer.tokenizer
    if config.reward.reward_model.enable:
        return {}
    prompt = prompt_text(config, tokenizer, trainer.train_dataset[0])
    warning = opened_thought_warning(config, prompt)
    if warning:
        logger.warning(warning)
    manager = load_reward_manager(config, tokenizer)
    key = config.data.reward_fn_key
    training = first_rows(trainer.train_dataset, "train_files", key)
    held_out = first_rows(trainer.val_dataset, "val_files", key) if validates(config) else {}
    returned = {}
    for name, number in (training | held_out).items():
        row = (trainer.train_dataset if name in training else trainer.val_dataset)[number]
        try:
            empty = single_row_batch([0], [tokenizer.eos_token_id], row)
            score, returned[name] = score_row(manager, empty)
            unfit = unloggable(config, [returned[name]]) if name in held_out else []
            problem = "; ".join(filter(None, [score_problem(score), *unfit]))
            if problem:
                raise ValueError(problem)
        except ValueError as error:
            raise ValueError(
                f"reward.custom_reward_function: row {name}, with an empty response: {error}. "
                "A reward function must return a score, and its components, for any text."
            ) from error
    return {name: returned[name] for name in training}


def validates(config: Any) -> bool:
    """Return whether the run validates at all."""
    return bool(config.trainer.get("val_before_train", True) or config.trainer.test_freq > 0)


def score_row(manager: Any, data: Any) -> tuple[Any, dict[str, Any]]:
    """Let a reward manager score a row, and return its `reward_score` and `reward_extra_info`.

    Raises:
      ValueError: the manager or the reward function raised an exception, or returned a coroutine or
        a dict with keys that are not texts.
    """
    try:
        result = manager.loop.run_until_complete(manager.run_single(data))
    except Exception as error:
        raise ValueError(raised(error)) from error
    score = result.get("reward_score")
    if inspect.iscoroutine(score):
        score.close()  # otherwise Python would warn about it much later
        raise ValueError(
            "returned a coroutine: verl awaits only a function that is itself written with `async "
            "def`, not an object whose __call__ is, nor a plain wrapper. Name such a function"
        )
    info = dict(result.get("reward_extra_info") or {})
    others = [key for key in unnested(info) if not isinstance(key, str)]
    if others:
        raise ValueError(f"returned a dict with the key {others[0]!r}. Make all its keys texts")
    return score, info


def single_row_batch(
    prompt: Sequence[int], response: Sequence[int], row: Mapping[str, Any], turns: int = 1
) -> Any:
    """Create the `DataProto` with which an agent loop passes one response to a reward manager.

    Args:
      prompt, response: the token ids.
      row: the row of the data. The manager gets a copy, because it may write into the columns. The
        tensors of the row (verl's `dummy_tensor`) are left out.
      turns: the number of the model's turns in the response. A tool is called between two turns.
    """
    from verl import DataProto

    tool_fields = {"turn_scores": [], "tool_rewards": [0.0] * (turns - 1)}
    tensors = {
        "prompts": torch.tensor([list(prompt)]),
        "responses": torch.tensor([list(response)]),
        "input_ids": torch.tensor([[*prompt, *response]]),
    }
    tensors["attention_mask"] = torch.ones_like(tensors["input_ids"])
    tensors["position_ids"] = tensors["attention_mask"].cumsum(-1) - 1
    columns = {key: value for key, value in row.items() if not isinstance(value, torch.Tensor)}
    columns = copy.deepcopy(columns) | {
        "__num_turns__": 2 * turns,  # verl also counts the prompt and the results of the tools
        "tool_extra_fields": tool_fields if turns > 1 else {},
        "prompt_len": len(prompt),
        "response_len": len(response),
    }
    # np.array would turn a list into an array with two dimensions.
    arrays = {key: np.fromiter([value], object) for key, value in columns.items()}
    return DataProto.from_dict(tensors=tensors, non_tensors=arrays)


def raised(error: BaseException) -> str:
    """Describe an error: the last line of its traceback, and the last place in the user's files."""
    line = traceback.format_exception_only(error)[-1].strip()
    if hasattr(error, "argument"):
        line = f"{type(error).__name__}: {in_configuration(error)}"
    frames = traceback.extract_tb(error.__traceback__)
    if line == "KeyError: 'score'" and "reward_manager" in frames[-1].filename:
        return (
            "returned a dict without 'score'. Return the sum of the components as 'score', or "
            f"declare them and set reward.reward_manager.name={MANAGER_NAME}, which computes it"
        )
    place = user_place(error) or f"{frames[-1].filename}:{frames[-1].lineno}"
    return f"raised {line} ({place})"


def score_problem(score: Any) -> str:
    """Complain about a score that verl cannot train with."""
    problem = f"expected a finite number as its score, found {score!r}"
    if isinstance(score, (str, bytes)):
        return problem
    try:
        # verl does the same with a score (agent_loop.py, `AgentLoopOutput.as_dict`).
        torch.zeros(1)[-1] = score
        return "" if math.isfinite(score) else problem
    except (TypeError, ValueError, OverflowError, RuntimeError):
        kind = f"{type(score).__module__}.{type(score).__name__}"
        return f"{problem}, a {kind}, which verl cannot put into a tensor. Return float(score)"


def unloggable(config: Any, infos: Sequence[Mapping[str, Any]]) -> list[str]:
    """Complain about returned values that would make verl's validation fail.

    verl's own function is called with the values. There is a complaint for each wrong key.
    """
    from verl.trainer.ppo.metric_utils import process_validation_metrics

    if not validates(config):
        return []
    responses = config.actor_rollout_ref.rollout.val_kwargs.n
    problems = []
    for key in dict.fromkeys(key for info in infos for key in info):
        if key in RESERVED and key != "score":
            problems.append(
                f"{key!r} is a column of verl's validation, which it would overwrite. Return it "
                "under another name"
            )
            continue
        values = list({type(info[key]): info[key] for info in infos if key in info}.values())
        if all(isinstance(value, (int, float)) for value in values):
            continue
        # verl skips all values if the first one is a text, so texts come last here.
        values.sort(key=lambda value: isinstance(value, str))
        prompts = [values * 2]
        if responses == 1:
            prompts = [[value] for value in values]
        try:
            for prompt in prompts:
                process_validation_metrics([""] * len(prompt), [""] * len(prompt), {key: prompt})
                if config.trainer.get("validation_data_dir"):
                    json.dumps(prompt, default=methodcaller("tolist"))
        except Exception as error:
            found = " and ".join(f"{reprlib.repr(v)} ({type(v).__name__})" for v in values)
            problems.append(
                f"{key!r} is {found}, with which verl's validation ends ({type(error).__name__}). "
                "Return a number, a text or None for it, the same kind for every response"
            )
    return problems


def not_a_dict(info: Mapping[str, Any], settings: GdpoConfig) -> str:
    """Complain about a reward function that returned a number instead of a dict.

    verl stores such a number under the key 'acc'. It is accepted if the settings name this key.
    """
    if set(info) != {"acc"} or "acc" in (settings.reward_keys or ()):
        return ""
    return expected_dict(info["acc"])


def first_rows(dataset: Any, files: str, key: str) -> dict[str, int]:
    """Return the number of the first row of each data source, by the row's name in messages.

    Without a column of data sources, this is only the first row.
    """
    frame: Any = getattr(dataset, "dataframe", None)
    has_sources = key in getattr(frame, "column_names", ())
    sources = list(frame[key]) if has_sources else [None] * min(len(dataset), 1)
    numbers = {source: sources.index(source) for source in dict.fromkeys(sources)}
    return {f"{row} of data.{files} (data source {name!r})": row for name, row in numbers.items()}


def overlong_prompts(
    config: Any, tokenizer: Any, dataset: Any, rows: Iterable[Mapping[str, Any]]
) -> str:
    """Complain about prompts that are too long, unless a setting filters or cuts them.

    verl's agent loop cuts off the beginning of a long prompt, whatever data.truncation says
    (verl/experimental/agent_loop/agent_loop.py, `_cap_text_prompt_length`).
    """
    data = config.data
    if data.get("filter_overlong_prompts", False) or data.get("truncation") == "left":
        return ""
    # The chat template writes the schemas of the tools into the prompt.
    tools = getattr(dataset, "tool_schemas", None)
    texts = [prompt_text(config, tokenizer, row, tools) for row in rows]
    lengths = [len(tokenizer.encode(text, add_special_tokens=False)) for text in texts]
    longer = [length for length in lengths if length > data.max_prompt_length]
    if not longer:
        return ""
    return (
        f"data.max_prompt_length: expected room for each prompt, found {data.max_prompt_length} "
        f"tokens for prompts of up to {max(longer)} ({len(longer)} of {len(lengths)} tried are "
        "longer); verl would cut off their beginnings. Raise it; or leave such prompts out with "
        "data.filter_overlong_prompts=true; or have them cut with data.truncation=left."
    )


def opened_thought_warning(config: Any, prompt: str) -> str:
    """Complain about a prompt that opens the thought, unless our reward manager handles it."""
    opening = opened_thought(prompt)
    manager = config.reward.reward_manager.name
    if not opening or manager == MANAGER_NAME:
        return ""
    return (
        f"reward.reward_manager.name={manager}: the prompt ends in {opening!r}, so that responses "
        "start inside the thought and hold no opening tag. A reward that asks for "
        f"<think>…</think> gives its format 0 for every response. Set it to {MANAGER_NAME}, "
        "which puts the tag in front of the response, or write a reward that needs no tag."
    )


def prompt_text(
    config: Any,
    tokenizer: Any,
    row: Mapping[str, Any],
    tools: list[dict[str, Any]] | None = None,
) -> str:
    """Return the prompt of a row as the policy gets it.

    Without a chat template, the result is the texts of the messages.
    """
    messages = list(row.get("raw_prompt") or [])
    if getattr(tokenizer, "chat_template", None) and messages:
        options = dict(config.data.get("apply_chat_template_kwargs") or {})
        return str(
            tokenizer.apply_chat_template(
                messages, tools=tools, add_generation_prompt=True, tokenize=False, **options
            )
        )
    return "\n".join(str(message["content"]) for message in messages)
