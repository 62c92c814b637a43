"""Find out whether a run uses the plug-in, and which components it has. `checks` rejects runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omegaconf import OmegaConf

from gdpo_verl.config import GdpoConfig, Objective
from gdpo_verl.plugin.checks import reward
from gdpo_verl.plugin.checks.reward_function import JUDGE, MANAGER_NAME, declared_reward
from gdpo_verl.reward_dicts import failed_judgement, read_components, unnested

# algorithm.filter_groups.metric: a group is dropped only if the estimator gives it nothing.
FILTER_METRIC = "components"


def is_gdpo(config: Any) -> bool:
    """Return whether the run asks for GDPO."""
    estimator = config.algorithm.get("adv_estimator")
    return str(getattr(estimator, "value", estimator)) == "gdpo"


def uses_plugin(config: Any) -> bool:
    """Return whether a run uses the plug-in at all; any other is left alone.

    It does by its estimator, by a key that begins with gdpo, by its reward manager or by its group
    filter.
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

    The last two have a section for the machines of their rollouts.
    """
    return bool(config.trainer.get("use_v1", True)) and config.get("rollout") is None


def objective_of(
    config: Any, returned: Mapping[str, Mapping[str, Any]] | None = None
) -> Objective | None:
    """The objective of a run that uses the plug-in; None where it has no components for us.

    Args:
      config: verl's configuration.
      returned: the dicts that the reward returned, by the names of their rows; see `probe_reward`.

    Raises:
      ValueError: the reward cannot be loaded, or the components are not what it declares.
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
        # A judge may reply anything to an empty response; that it does not reply is a fault.
        for judged in declared:
            if judged.most_unscored is None:
                continue
            error = info.get(f"{judged.name}_error")
            if error and info.get(f"{judged.name}_said") is None:
                raise ValueError(f"{JUDGE}: row {row}: {error}")
        problem = reward.not_a_dict(info, settings)
        if problem:
            raise ValueError(f"reward.custom_reward_function: row {row}: {problem}.")
        known = unnested(info)
        read_components([known], settings.resolve(declared, list(known)), [row])
    objective = settings.resolve(declared)
    if returned is not None:
        for info in list(returned.values()) or [{}]:
            objective.try_derived(unnested(info))
    # Derived components are part of what any estimator optimises.
    needed = is_gdpo(config) or settings.metrics or settings.derived
    return objective if needed else None
