"""The configured reward before the first rollout: what it declares, and what it returns.

Loading one runs the user's code, so the trainer's random state is kept.
"""

from __future__ import annotations

import inspect
import logging
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from gdpo_verl.plugin.batch import one_row
from gdpo_verl.rewards.components import Component, declared_components
from gdpo_verl.rewards.thought import opened_thought
from gdpo_verl.text import did_you_mean

logger = logging.getLogger(__name__)

MANAGER_NAME = "gdpo_components"


def declared_reward(config: Any) -> tuple[Component, ...]:
    """The components that the configured reward function, else its manager, declares.

    Raises:
      ValueError: the reward function or the manager cannot be loaded.
    """
    from verl.trainer.ppo.reward import resolve_reward_manager_cls
    from verl.utils.import_utils import load_extern_object

    function = config.reward.get("custom_reward_function") or {}
    path, name = function.get("path"), function.get("name")
    components: tuple[Component, ...] = ()
    if path:
        try:
            with random_state_kept():
                components = declared_components(load_extern_object(path, str(name)))
        except (Exception, SystemExit) as error:
            raise ValueError(
                f"reward.custom_reward_function: cannot load {name!r} from {path!r}: "
                f"{type(error).__name__}: {error}. Give "
                "path=pkg://package.module or a file, and name=the function in it."
            ) from error
    try:
        manager = resolve_reward_manager_cls(config)
    except (ValueError, ImportError, AttributeError, FileNotFoundError) as error:
        raise ValueError(f"reward.reward_manager: {error}") from error
    # A custom function takes the place of the manager's own rewards.
    return components if path else declared_components(manager)


def check_data_sources(config: Any, *datasets: Any) -> None:
    """Refuse rows for which the reward manager `gdpo_components` has no reward of its own.

    Args:
      config: verl's whole configuration.
      datasets: verl's data sets, or others, which are left alone.

    Raises:
      ValueError: names the data sources.
    """
    from gdpo_verl.plugin.reward_manager import REWARDS

    if (config.reward.get("custom_reward_function") or {}).get("path"):
        return
    if config.reward.reward_manager.name != MANAGER_NAME:
        return
    key = config.data.reward_fn_key
    frames = [getattr(dataset, "dataframe", None) for dataset in datasets]
    found = {
        source
        for frame in frames
        if frame is not None and key in frame.column_names
        for source in frame.unique(key)
    }
    if unknown := sorted(map(str, found - REWARDS.keys())):
        raise ValueError(
            f"reward.custom_reward_function.path: not set, and the reward manager {MANAGER_NAME} "
            f"has no reward for rows whose {key} is one of {unknown}, only for {sorted(REWARDS)}. "
            "Set it (for example to pkg://gdpo_verl.rewards.gsm8k) and its name."
        )


def probe_reward(
    config: Any, tokenizer: Any, dataset: Sequence[Mapping[str, Any]]
) -> dict[str, Any] | None:
    """Call the configured reward once, on the first row of the data with an empty answer.

    Returns:
      What it returned (verl's `reward_extra_info`); None when it needs a reward model,
      which does not run yet.

    Raises:
      ValueError: it raised; the message has the key, the row and the reward's own words.
    """
    from verl.trainer.ppo.reward import load_reward_manager

    if config.reward.reward_model.enable:
        return None
    row = dict(dataset[0])
    columns = {key: value for key, value in row.items() if not isinstance(value, torch.Tensor)}
    for complaint in unnamed_arguments(config):
        logger.warning(complaint)
    if warning := opened_thought_warning(config, prompt_text(config, tokenizer, row)):
        logger.warning(warning)
    manager = load_reward_manager(config, tokenizer)
    data = one_row([0], [tokenizer.eos_token_id], columns)
    try:
        result = manager.loop.run_until_complete(manager.run_single(data))
    except Exception as error:
        function = config.reward.get("custom_reward_function") or {}
        raise ValueError(
            f"reward.custom_reward_function={function.get('path')}:{function.get('name')} raised "
            f"on row 0 of data.train_files with an empty answer: {type(error).__name__}: {error}. "
            "A reward function must return its components for any text."
        ) from error
    return dict(result.get("reward_extra_info") or {})


def unnamed_arguments(config: Any) -> list[str]:
    """Complain of each `reward_kwargs` that the reward function does not name.

    One that takes any keyword argument swallows a misspelt one.
    """
    from verl.utils.import_utils import load_extern_object

    function: Any = config.reward.get("custom_reward_function") or {}
    given = list(function.get("reward_kwargs") or {})
    if not function.get("path") or not given:
        return []
    loaded: Any = load_extern_object(function.path, str(function.name))
    parameters = inspect.signature(loaded).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    named = [parameter.name for parameter in parameters if parameter.kind in kinds]
    return [
        f"reward.custom_reward_function.reward_kwargs.{key}: {function.path}:{function.name} names "
        f"no such argument, only {named}.{did_you_mean(key, named)}"
        for key in given
        if key not in named
    ]


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
