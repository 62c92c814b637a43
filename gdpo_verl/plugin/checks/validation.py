"""Find out whether a run uses the plug-in, and which components it has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omegaconf import OmegaConf

from gdpo_verl.config import GdpoConfig, Objective
from gdpo_verl.plugin.checks import reward
from gdpo_verl.plugin.checks.reward_function import JUDGE, MANAGER_NAME, declared_reward
from gdpo_verl.reward_dicts import failed_judgement, read_components, unnested

# A value of algorithm.filter_groups.metric. With it, a group is dropped only if the estimator gives
# no advantage to any of its responses.
FILTER_METRIC = "components"


def is_gdpo(config: Any) -> bool:
    """Return whether the estimator of the run is GDPO."""
    estimator = config.algorithm.get("adv_estimator")
    return str(getattr(estimator, "value", estimator)) == "gdpo"


def uses_plugin(config: Any) -> bool:
    """Return whether a run uses the plug-in at all. The hooks do not change any other run.

    A run uses the plug-in if its estimator, its reward manager or its group filter is ours, or if
    it sets a key that begins with gdpo.
    """
    algorithm = config.algorithm
    return (
        is_gdpo(config)
        or any(str(key).startswith("gdpo") for key in config)
        or any(str(k).startswith("gdpo") and algorithm.get(k) is not None for k in algorithm)
        or (algorithm.get("filter_groups") or {}).get("metric") == FILTER_METRIC
        or manager_name(config) == MANAGER_NAME
    )


def manager_name(config: Any) -> Any:
    """Return the name of the reward manager."""
    return OmegaConf.select(config, "reward.reward_manager.name")


def on_default_trainer(config: Any) -> bool:
    """Return whether verl's default trainer runs this, not legacy, fully_async or one_step_off.

    The trainers fully_async and one_step_off are recognised by the section `rollout`, in which
    they configure the machines of their rollouts.
    """
    return bool(config.trainer.get("use_v1", True)) and config.get("rollout") is None


def objective_of(
    config: Any, returned: Mapping[str, Mapping[str, Any]] | None = None
) -> Objective | None:
    """Return the objective of a run that uses the plug-in.

    The result is None if the run has no components, or if nothing would use them.

    Args:
      config: verl's configuration.
      returned: the dicts that the reward function returned, by the names of their rows; see
        `probe_reward`. If they are given, they are checked.

    Raises:
      ValueError: the reward function cannot be loaded, or it does not return the components that
        it declares.
    """
    settings = GdpoConfig.from_algorithm(config.algorithm)
    declared = declared_reward(config)
    if not (is_gdpo(config) or declared or settings.reward_keys or settings.derived):
        return None
    for row, info in (returned or {}).items():
        reason = failed_judgement(info)
        if reason:
            raise ValueError(
                f"reward.reward_manager: row {row}: no reward but {reason!r}. Check the "
                "judge that the reward asks, or reward.timeout."
            )
        # Any reply of a judge to an empty response is accepted. A judge that does not reply at all
        # is rejected.
        for judged in declared:
            if judged.most_unscored is None:
                continue
            error = info.get(f"{judged.name}_error")
            if error and info.get(f"{judged.name}_said") is None:
                raise ValueError(f"{JUDGE}: row {row}: {error}")
        problem = reward.not_a_dict(info, settings)
        if problem:
            raise ValueError(f"reward.custom_reward_function: row {row}: {problem}.")
        rewards = unnested(info)
        read_components([rewards], settings.resolve(declared, list(rewards)), [row])
    objective = settings.resolve(declared)
    if returned is not None:
        for info in list(returned.values()) or [{}]:
            objective.try_derived(unnested(info))
    # Derived components are added to the score, so any estimator needs the objective for them.
    needed = is_gdpo(config) or settings.metrics or settings.derived
    return objective if needed else None
