"""The reward function of the configuration: the components that it declares, and its arguments.

Loading the function runs the user's code, which must not change the trainer's random state.
"""

from __future__ import annotations

import inspect
import logging
import os
import sysconfig
import traceback
from pathlib import Path
from typing import Any

import gdpo_verl
from gdpo_verl.advantage.variants import random_state_kept
from gdpo_verl.config.components import Component, check_names, declared_components
from gdpo_verl.config.parsing import plain
from gdpo_verl.names import did_you_mean
from gdpo_verl.rewards.judge import Judge

logger = logging.getLogger(__name__)

MANAGER_NAME = "gdpo_components"
ARGUMENTS = "reward.custom_reward_function.reward_kwargs"
JUDGE = f"{ARGUMENTS}.judge"
# Arguments of a reward function that are not set in `reward_kwargs`, with their keys.
_ELSEWHERE = {"sandbox_fusion_url": "reward.sandbox_fusion.url"}
# The arguments that verl's managers and ours pass to a reward function.
_PASSED = ("data_source", "solution_str", "ground_truth", "extra_info")
_PACKAGE = Path(gdpo_verl.__file__).parent
# The beginnings of the paths of files that do not belong to the user, in a traceback.
LIBRARIES = (
    "<frozen ",
    sysconfig.get_path("stdlib"),
    sysconfig.get_path("purelib"),
    sysconfig.get_path("platlib"),
    str(_PACKAGE / "config"),
    str(_PACKAGE / "plugin"),
    str(_PACKAGE / "upstream"),
    str(_PACKAGE / "lab"),
)


def declared_reward(config: Any) -> tuple[Component, ...]:
    """Return the components that the configured reward function declares.

    Without a reward function they are the components that the reward manager declares.

    Raises:
      ValueError: the reward function or the manager cannot be loaded.
    """
    from verl.experimental.reward_loop.reward_manager.registry import REWARD_MANAGER
    from verl.trainer.ppo.reward import resolve_reward_manager_cls
    from verl.utils.import_utils import load_extern_object

    function = config.reward.get("custom_reward_function") or {}
    path = function.get("path")
    name = function.get("name")
    loaded: Any = None
    if path:
        try:
            with random_state_kept():
                loaded = load_extern_object(path, str(name))
                declared_components(loaded)
        except (Exception, SystemExit) as error:
            raise ValueError(
                f"reward.custom_reward_function: cannot load {name!r} from {path!r}: "
                f"{_load_fault(error)}"
            ) from error
    try:
        manager = resolve_reward_manager_cls(config)
    except (Exception, SystemExit) as error:
        manager_name = config.reward.reward_manager.name
        fault = f"cannot load {manager_name!r}: {_load_fault(error)}"
        if "Unknown reward manager:" in str(error):
            suggestion = did_you_mean(manager_name, REWARD_MANAGER)
            fault = f"{error}, only {sorted(REWARD_MANAGER)}.{suggestion}"
        raise ValueError(f"reward.reward_manager: {fault}") from error
    # A custom function replaces the rewards of the manager.
    return components_of(loaded, config) if path else declared_components(manager)


def _load_fault(error: BaseException) -> str:
    """Describe why a module cannot be loaded: the cause, its place, and the remedy."""
    # verl catches the error of the file, and raises its own error from it
    # (verl/utils/import_utils.py, `load_module`).
    cause = error.__cause__ or error
    fault = f"{type(cause).__name__}: {cause}".replace("\n", " ").rstrip(":. ")
    place = user_place(cause)
    if place:
        return (
            f"{fault} ({place}). Correct this, so that the file can be loaded where the run "
            "trains. A file is loaded without its package, so that it needs absolute imports."
        )
    return (
        f"{fault}. Give path=pkg://package.module or a file whose name ends in .py, and name=the "
        "function or class in it."
    )


def user_place(error: BaseException) -> str:
    """Return the last place of an error in the user's files, as FILE:LINE.

    The result is empty if the traceback has no file of the user.
    """
    if isinstance(error, SyntaxError) and os.path.exists(error.filename or ""):
        return f"{error.filename}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    # The last frame may be in a library that the user's code called. It does not help the user.
    places = [
        f"{frame.filename}:{frame.lineno}"
        for frame in frames
        if not frame.filename.startswith(LIBRARIES)
    ]
    return places[-1] if places else ""


def components_of(function: Any, config: Any) -> tuple[Component, ...]:
    """Return the components that a function declares, and the component of a configured judge.

    A judge is a model that rates responses. It is configured in `reward_kwargs`.
    """
    declared = declared_components(function)
    judge = judge_of(function, config)
    if judge is None:
        return declared
    if judge.rubric is not None:
        # This component has no range. Its number is below 0 if criteria with negative weights
        # (pitfalls) are met.
        rubric = Component(judge.name, by_criterion=True, most_unscored=judge.most_failed)
        return (*declared, rubric)
    return (*declared, Component(judge.name, 0, 1, most_unscored=judge.most_failed))


def judge_of(function: Any, config: Any) -> Judge | None:
    """Return the judge that is configured in `reward_kwargs`.

    The result is None if there is no judge, or if the function itself has an argument `judge`.

    Raises:
      ValueError: a setting of the judge is wrong. The error names its key.
    """
    settings = config.reward
    node = plain(settings.custom_reward_function.get("reward_kwargs")).get("judge")
    if node is None or "judge" in inspect.signature(function).parameters:
        return None
    manager = settings.reward_manager.name
    if manager != MANAGER_NAME:
        raise ValueError(
            f"{JUDGE}: reward.reward_manager.name={manager} asks no judge. Set it to "
            f"{MANAGER_NAME}."
        )
    judge = Judge.read(node, JUDGE)
    names = [component.name for component in declared_components(function)]
    check_names([*names, judge.name], f"{JUDGE}.name")
    if not names and config.algorithm.get("gdpo_reward_keys") is None:
        raise ValueError(
            f"{JUDGE}: the reward function declares no components in addition to the judge's. "
            "Declare them with gdpo_verl.rewards.declares, or name all of them in "
            "algorithm.gdpo_reward_keys."
        )
    model = settings.reward_model
    if not (judge.url or (model.enable and model.enable_resource_pool)):
        # If the reward model has no resource pool of its own, verl does not pass the ground truth
        # to a reward function (`_compute_reward_colocate`).
        raise ValueError(
            f"{JUDGE}.url: not set, and verl serves no model. Set it and .model; or set "
            "reward.reward_model.enable and .enable_resource_pool to true, and .model_path."
        )
    return judge


def unnamed_arguments(config: Any) -> list[str]:
    """Find `reward_kwargs` that misspell an argument of the reward function.

    A function with `**kwargs` accepts a misspelled argument without an error. An argument without
    a similar name is only logged, because the function may pass it on.

    Returns:
      A sentence for each misspelled argument.

    Raises:
      ValueError: verl cannot call the function.
    """
    from verl.utils.import_utils import load_extern_object

    function: Any = config.reward.get("custom_reward_function") or {}
    if not function.get("path"):
        return []
    arguments = dict(function.get("reward_kwargs") or {})
    problems = []
    loaded: Any = load_extern_object(function.path, str(function.name))
    if judge_of(loaded, config):
        del arguments["judge"]
    try:
        signature = inspect.signature(loaded)
        kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        named = [p.name for p in signature.parameters.values() if p.kind in kinds]
        for key in [key for key in arguments if key not in named]:
            text = (
                f"{ARGUMENTS}.{key}: {function.path}:"
                f"{function.name} names no such argument, only {named}."
            )
            suggestion = did_you_mean(key, named)
            if suggestion:
                problems.append(text + suggestion)
            else:
                logger.warning(text)
        # verl's registered managers pass these arguments. A user's own manager may pass others.
        if config.reward.reward_manager.source == "register":
            signature.bind(**(dict.fromkeys(_PASSED) | arguments))
    except ValueError:  # a compiled function has no signature
        return []
    except TypeError as error:
        raise ValueError(
            f"reward.custom_reward_function: verl calls {function.path}:{function.name} with "
            f"{', '.join(_PASSED)} and the reward_kwargs by name: {error}. {' '.join(problems)}"
        ) from error
    return problems


def in_configuration(error: BaseException) -> str:
    """Return the text of an error, with its argument replaced by the key in verl's configuration.

    The reward functions and the sandbox name their arguments, because they do not know verl's keys.
    """
    text = str(error)
    argument = getattr(error, "argument", None)
    if argument is None or not text.startswith(argument):
        return text
    key = _ELSEWHERE.get(argument, f"{ARGUMENTS}.{argument}")
    return key + text.removeprefix(argument)
