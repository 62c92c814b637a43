"""Validate a run before its first rollout."""

from __future__ import annotations

import importlib.util
import inspect
import logging
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import OmegaConf

from gdpo_verl.advantage import VARIANTS
from gdpo_verl.advantage.trial import try_variant
from gdpo_verl.config import GdpoConfig, Objective
from gdpo_verl.plugin import contract
from gdpo_verl.plugin.batch import one_row, read_components
from gdpo_verl.rewards.components import Component, declared_components
from gdpo_verl.rewards.thought import opened_thought
from gdpo_verl.run.memory import check_memory
from gdpo_verl.tasks.catalog import command_for
from gdpo_verl.text import VLLM, did_you_mean

logger = logging.getLogger(__name__)

MANAGER_NAME = "gdpo_components"
# Under `algorithm`.
OUR_KEYS = ("gdpo", "gdpo_reward_keys", "gdpo_reward_weights")
# algorithm.filter_groups.metric: a group is dropped only if every component is constant.
FILTER_METRIC = "components"


def is_gdpo(config: Any) -> bool:
    """Tell whether the run asks for GDPO."""
    estimator = config.algorithm.get("adv_estimator")
    return str(getattr(estimator, "value", estimator)) == "gdpo"


def asks(config: Any) -> bool:
    """Tell whether a run asks for anything of ours; any other is left alone.

    It does by its estimator, by one of our keys, by our reward manager or group filter, or by a
    reward whose source mentions this package, as one that declares its components does. Nothing
    is imported to find out, and what the configuration lacks is not asked for.
    """
    algorithm = config.algorithm
    if is_gdpo(config) or any(algorithm.get(key) is not None for key in OUR_KEYS):
        return True
    if (algorithm.get("filter_groups") or {}).get("metric") == FILTER_METRIC:
        return True
    if OmegaConf.select(config, "reward.reward_manager.name") == MANAGER_NAME:
        return True
    path = OmegaConf.select(config, "reward.custom_reward_function.path")
    return bool(path) and "gdpo_verl" in f"{path}\n{_source(path)}"


def _source(path: str) -> str:
    """The text of a reward's file or ``pkg://`` module, not imported; empty without one."""
    try:
        if path.startswith("pkg://"):
            first, *others = path.removeprefix("pkg://").split(".")
            spec, name = importlib.util.find_spec(first), first
            for part in others:
                name = f"{name}.{part}"
                spec = PathFinder.find_spec(name, spec.submodule_search_locations if spec else [])
            path = str(spec and spec.origin)
        return Path(path.removeprefix("file://")).read_text(encoding="utf-8", errors="ignore")
    except (OSError, ImportError, ValueError):  # verl will say so
        return ""


def check_run(config: Any) -> None:
    """Refuse a GDPO run that cannot work, in the driver, before Ray starts.

    Raises:
      ValueError: names the configuration key in full and the remedy.
    """
    check_settings(config)
    if not (os.environ.get("RAY_ADDRESS") or config.ray_kwargs.get("ray_init", {}).get("address")):
        # verl writes trainer.device from what it finds itself; a platform is chosen by variable.
        platform = os.environ.get("VERL_PLATFORM") or OmegaConf.select(
            config, "ray_kwargs.ray_init.runtime_env.env_vars.VERL_PLATFORM"
        )
        if not platform:
            _check_gpu(config)
        check_machine(config)
        check_memory(config, on_cpu=platform == "cpu")


def check_settings(config: Any) -> None:
    """Refuse settings under which GDPO cannot work, whatever the machine.

    Raises:
      ValueError: names the configuration key in full and the remedy.
    """
    if reason := contract.misfit():
        raise ValueError(f"algorithm.adv_estimator=gdpo: {reason}")
    settings = GdpoConfig.from_algorithm(config.algorithm)
    with _random_state_kept():
        _ = settings.estimator
    if config.algorithm.get("use_kl_in_reward", False):
        raise ValueError(
            "algorithm.use_kl_in_reward: true has no effect under GDPO, which reads the reward "
            "components before any penalty. Set it to false and use "
            "actor_rollout_ref.actor.use_kl_loss=true."
        )
    if not settings.scale:
        logger.warning(
            "algorithm.norm_adv_by_std_in_grpo=false: without the groups' standard deviations the "
            "components are only centred, and decoupling them makes no difference."
        )
    _warn_about_filter(config)


def check_machine(config: Any) -> None:
    """Refuse what the machine lacks on which the trainer runs; on a cluster not the driver's.

    Raises:
      ValueError: names the configuration key in full and the remedy.
    """
    _check_rollout_engine(config.actor_rollout_ref.rollout.name)
    check_data_files(config.data)
    objective = GdpoConfig.from_algorithm(config.algorithm).resolve(declared_reward(config))
    check_estimator(objective, config.actor_rollout_ref.rollout.n)


def check_estimator(objective: Objective, group_size: int) -> None:
    """Refuse a variant that cannot work with these components and groups; try one's own.

    Raises:
      ValueError: names the configuration key in full.
    """
    settings, where = objective.config, "algorithm.gdpo.variant"
    settings.estimator.check_group_size(
        group_size, len(objective.keys), "actor_rollout_ref.rollout.n"
    )
    if settings.variant not in VARIANTS:
        with _random_state_kept():
            try_variant(
                settings.estimator,
                where,
                weights=objective.weights,
                ranges=objective.range_list,
                epsilon=settings.epsilon,
                scale=settings.scale,
            )


def check_schedule(config: Any, *, legacy: bool = False) -> None:
    """Refuse scheduled weights where they would have no effect.

    Args:
      legacy: the trainer does not tell an estimator the global step.

    Raises:
      ValueError: says why.
    """
    if OmegaConf.select(config, "algorithm.gdpo.schedule") is None:
        return
    if not is_gdpo(config):
        raise ValueError(
            "algorithm.gdpo.schedule: the weights of a schedule act after each component is "
            f"normalised, which algorithm.adv_estimator={config.algorithm.get('adv_estimator')} "
            "does not do: it optimises the reward's score as it is. Remove the schedule, or set "
            "algorithm.adv_estimator=gdpo."
        )
    if legacy:
        raise ValueError(
            "algorithm.gdpo.schedule: verl's legacy trainer does not tell an estimator the global "
            "step. Set trainer.use_v1=true, or remove the schedule."
        )


def objective_of(config: Any, returned: Mapping[str, Any] | None = None) -> Objective | None:
    """The run's objective, or None when it has no components for us.

    A run with another estimator gets metrics when its reward declares components; if its
    declaration cannot be read, it is left alone.

    Args:
      config: verl's whole configuration.
      returned: a dict that the reward returned, where one is known.

    Raises:
      ValueError: what a GDPO run needs is missing, or another estimator has scheduled weights.
    """
    check_schedule(config)
    try:
        settings = GdpoConfig.from_algorithm(config.algorithm)
        declared = declared_reward(config)
        asked = is_gdpo(config) or (settings.metrics and (declared or settings.reward_keys))
        if not asked:
            return None
        objective = settings.resolve(declared, None if returned is None else list(returned))
        if returned is not None:
            read_components([returned], objective, ["0 of data.train_files with an empty answer"])
        return objective
    except Exception:
        if is_gdpo(config):
            raise
        logger.warning("no metrics for the reward components", exc_info=True)
        return None


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
            with _random_state_kept():
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


@contextmanager
def _random_state_kept() -> Iterator[None]:
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


def _warn_about_filter(config: Any) -> None:
    node = config.algorithm.get("filter_groups") or {}
    metric = node.get("metric")
    if node.get("enable", False) and metric and metric != FILTER_METRIC:
        logger.warning(
            "algorithm.filter_groups.metric=%s drops groups in which %s does not vary although "
            "other components may, from which GDPO learns. Use algorithm.filter_groups.metric=%s "
            "to drop a group only if every component is constant.",
            metric,
            "the sum" if metric in ("reward", "score") else f"{metric!r} alone",
            FILTER_METRIC,
        )


def _check_gpu(config: Any) -> None:
    if config.trainer.device == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            f"trainer.n_gpus_per_node: {config.trainer.n_gpus_per_node}, but torch finds no GPU on "
            "this machine. Train with hardware=cpu, submit the recipe to a Ray cluster "
            "(scripts/submit.sh), or run `gdpo-verl doctor`."
        )


def _check_rollout_engine(name: str) -> None:
    if name == "vllm" and importlib.util.find_spec("vllm") is None:
        raise ValueError(
            f"actor_rollout_ref.rollout.name: vllm is not installed. To install it, {VLLM}."
        )


def check_data_files(data: Any) -> None:
    """Refuse files of rows that do not exist here.

    Args:
      data: verl's ``data``.

    Raises:
      ValueError: names the key, the file and the command that writes it.
    """
    if (data.get("custom_cls") or {}).get("path"):
        return  # what its files are is that class's business
    for key in ("train_files", "val_files"):
        files = data.get(key)
        for path in [files] if isinstance(files, str) else list(files or []):
            if "://" not in path and not os.path.exists(os.path.expanduser(path)):
                command = command_for(path)
                remedy = (
                    f"Prepare it with `{command}`."
                    if command
                    else "`gdpo-verl prepare --help` names the data sets that one command writes."
                )
                raise ValueError(
                    f"data.{key}: {path!r} does not exist here (working directory {os.getcwd()}). "
                    f"{remedy}"
                )
