"""The configured reward before its first call: its declaration, its arguments, its data.

Loading one runs the user's code, so the trainer's random state is kept.
"""

from __future__ import annotations

import inspect
import logging
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from gdpo_verl.rewards.components import Component, declared_components
from gdpo_verl.rewards.thought import opened_thought
from gdpo_verl.text import did_you_mean

logger = logging.getLogger(__name__)

MANAGER_NAME = "gdpo_components"
# By verl's managers and ours, to the reward function.
_PASSED = ("data_source", "solution_str", "ground_truth", "extra_info")


def declared_reward(config: Any) -> tuple[Component, ...]:
    """The components that the configured reward function, else its manager, declares.

    Raises:
      ValueError: the reward function or the manager cannot be loaded.
    """
    from verl.experimental.reward_loop.reward_manager.registry import REWARD_MANAGER
    from verl.trainer.ppo.reward import resolve_reward_manager_cls

    function = _load_function(config)
    try:
        manager = resolve_reward_manager_cls(config)
    except (ValueError, ImportError, AttributeError, FileNotFoundError) as error:
        named = config.reward.reward_manager.name
        known = (
            f", only {sorted(REWARD_MANAGER)}" if "Unknown reward manager:" in str(error) else ""
        )
        raise ValueError(
            f"reward.reward_manager: {error}{known}.{known and did_you_mean(named, REWARD_MANAGER)}"
        ) from error
    # A custom function takes the place of the manager's own rewards.
    return declared_components(manager if function is None else function)


def _load_function(config: Any) -> Any:
    """The custom reward function; None without one."""
    from verl.utils.import_utils import load_extern_object

    function = config.reward.get("custom_reward_function") or {}
    path, name = function.get("path"), function.get("name")
    if not path:
        return None
    try:
        with random_state_kept():
            return load_extern_object(path, str(name))
    except (Exception, SystemExit) as error:
        raise ValueError(
            f"reward.custom_reward_function: cannot load {name!r} from {path!r}: "
            f"{type(error).__name__}: {error}. Give "
            "path=pkg://package.module or a file, and name=the function in it."
        ) from error


def first_rows(dataset: Any, key: str) -> dict[Any, int]:
    """The number of each data source's first row, by the source; {None: 0} where none is known."""
    frame: Any = getattr(dataset, "dataframe", None)
    if key not in getattr(frame, "column_names", ()):
        return {None: 0} if dataset else {}
    sources = list(frame[key])
    return {source: sources.index(source) for source in dict.fromkeys(sources)}


def rows_of_sources(dataset: Any, files: str, key: str) -> dict[str, dict[str, Any]]:
    """The first row of each data source, by a name for messages."""
    return {
        f"{number} of {files} (data source {source!r})": dict(dataset[number])
        for source, number in first_rows(dataset, key).items()
    }


def unnamed_arguments(config: Any) -> list[str]:
    """Complain of each of the `reward_kwargs` that is a misspelt argument of the reward function.

    A function that takes any keyword argument swallows it. One that is no argument's neighbour it
    may pass on; that is logged.

    Raises:
      ValueError: verl cannot call the function.
    """
    function = _load_function(config)
    if function is None:
        return []
    node = config.reward.custom_reward_function
    where, given = f"{node.path}:{node.name}", dict(node.get("reward_kwargs") or {})
    problems = []
    try:
        signature = inspect.signature(function)
        kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        named = [p.name for p in signature.parameters.values() if p.kind in kinds]
        for key in [key for key in given if key not in named]:
            text = (
                f"reward.custom_reward_function.reward_kwargs.{key}: {where} names no such "
                f"argument, only {named}."
            )
            if near := did_you_mean(key, named):
                problems.append(text + near)
            else:
                logger.warning(text)
        if config.reward.reward_manager.source == "register":  # others pass what they like
            signature.bind(**(dict.fromkeys(_PASSED) | given))
    except TypeError as error:
        raise ValueError(
            f"reward.custom_reward_function: verl calls {where} with {', '.join(_PASSED)} and the "
            f"reward_kwargs by name: {error}. {' '.join(problems)}".rstrip()
        ) from error
    return problems


def opened_thought_warning(config: Any, prompt: str) -> str:
    """Tell what a prompt that opens the thought means for a reward; '' where all is well."""
    opening = opened_thought(prompt)
    manager = config.reward.reward_manager.name
    if not opening or manager == MANAGER_NAME:
        return ""
    return (
        f"reward.reward_manager.name={manager}: the prompt ends in {opening!r}, so that answers "
        "start inside the thought and hold no opening tag. A reward that asks for "
        f"<think>…</think> gives its format 0 for every answer. Set it to {MANAGER_NAME}, which "
        "puts the tag in front of the answer, or have the reward do without it."
    )


def prompt_text(config: Any, tokenizer: Any, row: Mapping[str, Any]) -> str:
    """The prompt of a row as the policy gets it; without a chat template the messages' texts."""
    messages = list(row.get("raw_prompt") or [])
    if getattr(tokenizer, "chat_template", None) and messages:
        options = dict(config.data.get("apply_chat_template_kwargs") or {})
        return str(
            tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, tokenize=False, **options
            )
        )
    return "\n".join(str(message["content"]) for message in messages)


@contextmanager
def random_state_kept() -> Iterator[None]:
    """Keep a module that seeds a generator when it is imported from moving the trainer's."""
    state, numpy_state, torch_state = (
        random.getstate(),
        np.random.get_state(),
        torch.get_rng_state(),
    )
    try:
        yield
    finally:
        random.setstate(state)
        np.random.set_state(numpy_state)
        torch.set_rng_state(torch_state)
