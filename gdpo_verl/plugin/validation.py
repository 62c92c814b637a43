"""Validate a run before its first rollout.

Each check raises ValueError, which names the configuration key in full and the remedy.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from omegaconf import OmegaConf

from gdpo_verl.config import GdpoConfig, Objective, parsing
from gdpo_verl.names import did_you_mean
from gdpo_verl.plugin import batches, contract, reward, shared_prompts
from gdpo_verl.plugin.batch import NEEDS_SEAM, failed_judgement
from gdpo_verl.plugin.model import check_lora, check_model, joins_cluster
from gdpo_verl.plugin.reward_function import JUDGE, MANAGER_NAME, declared_reward
from gdpo_verl.reward_dicts import read_components, unnested

logger = logging.getLogger(__name__)

# algorithm.filter_groups.metric: a group is dropped only if the estimator gives it nothing.
FILTER_METRIC = "components"
# Where verl's old keys of the reward are now. verl 0.9.1 has them in its configuration, and its
# default trainer reads none (verl/experimental/reward_loop/reward_loop.py,
# `migrate_legacy_reward_impl`, which only fully_async still calls).
_OLD_REWARD_KEYS = {
    "custom_reward_function.path": "reward.custom_reward_function.path",
    "custom_reward_function.name": "reward.custom_reward_function.name",
    "reward_model.enable": "reward.reward_model.enable",
    "reward_model.model.path": "reward.reward_model.model_path",
    "reward_model.num_workers": "reward.num_workers",
    "reward_model.reward_manager": "reward.reward_manager.name",
    "sandbox_fusion.url": "reward.sandbox_fusion.url",
}


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
        or _manager_name(config) == MANAGER_NAME
    )


def _manager_name(config: Any) -> Any:
    return OmegaConf.select(config, "reward.reward_manager.name")


def on_default_trainer(config: Any) -> bool:
    """Return whether verl's default trainer runs this, not legacy, fully_async or one_step_off.

    The last two have a section for the machines of their rollouts.
    """
    return bool(config.trainer.get("use_v1", True)) and config.get("rollout") is None


def check_run(config: Any) -> None:
    """Reject a run that uses the plug-in and cannot work, in the driver, before Ray starts."""
    check_settings(config)
    if not joins_cluster(config):
        check_components(config)
    if on_default_trainer(config):
        batches.check(config)


def check_settings(config: Any) -> None:
    """Reject GDPO settings that cannot work or would be ignored, whatever the machine."""
    if reason := contract.first_violation():
        if is_gdpo(config):
            raise ValueError(f"algorithm.adv_estimator=gdpo: {reason}")
        return
    check_keys(config)
    function = OmegaConf.select(config, "reward.custom_reward_function.path")
    if _manager_name(config) == MANAGER_NAME and function is None:
        raise ValueError(
            f"reward.custom_reward_function.path: not set, and reward.reward_manager.name="
            f"{MANAGER_NAME} has no default rewards. Set it and its name, for example to "
            "pkg://gdpo_verl.rewards.gsm8k and compute_score."
        )
    check_lora(config)
    shared_prompts.check(config)
    check_lengths(config)
    settings = GdpoConfig.from_algorithm(config.algorithm)
    # A user's own functions are imported.
    _ = settings.chosen_variant
    for derived in settings.derived.values():
        _ = derived.function
    check_schedule(config)
    if not is_gdpo(config):
        _warn_about_no_effect(config, settings)
        return
    if config.algorithm.get("use_kl_in_reward", False):
        raise ValueError(
            "algorithm.use_kl_in_reward: true has no effect under GDPO, which reads the reward "
            "components before any penalty. Set it to false and use "
            "actor_rollout_ref.actor.use_kl_loss=true."
        )
    settings.check(config.actor_rollout_ref.rollout.n)
    _warn_about_filter(config, settings)


def check_lengths(config: Any) -> None:
    """Reject a model length that leaves long prompts no tokens for a response."""
    most = config.actor_rollout_ref.rollout.get("max_model_len")
    prompt = config.data.max_prompt_length
    if most is not None and most <= prompt:
        raise ValueError(
            f"actor_rollout_ref.rollout.max_model_len: expected more than data.max_prompt_length="
            f"{prompt}, found {most}: long prompts would get no response. Lower "
            "data.max_prompt_length; or, where the model takes more, set it to null, the model's "
            "own limit, or to the sum of data.max_prompt_length and data.max_response_length."
        )


def check_keys(config: Any) -> None:
    """Reject keys that would be ignored: GDPO keys in a wrong place, and verl's old reward keys."""
    for key in config:
        if str(key).startswith("gdpo"):
            raise ValueError(f"{key}: unknown key. Settings of GDPO are under algorithm.{key}.")
    for key, value in config.algorithm.items():
        if is_gdpo(config) and key in parsing.SECTION:
            raise ValueError(
                f"algorithm.{key}: unknown key; it would have no effect."
                f"{parsing.nearest(key, value, 'algorithm')}"
            )
    for key, new in _OLD_REWARD_KEYS.items():
        value = OmegaConf.select(config, key)
        if value is not None and OmegaConf.select(config, new) != value:
            raise ValueError(
                f"{key}: verl no longer reads this key, and {value!r} would have no effect. Set "
                f"{new} instead."
            )


def _warn_about_no_effect(config: Any, settings: GdpoConfig) -> None:
    """Warn of settings that do not change what a run with another estimator learns."""
    manager = _manager_name(config)
    ignored = {
        "algorithm.gdpo.variant": settings.variant != "gdpo",
        "algorithm.gdpo.gate": settings.gate is not None,
        # Our manager makes them part of the score.
        "algorithm.gdpo.conditions": settings.conditions and manager != MANAGER_NAME,
        "algorithm.gdpo_reward_weights": settings.reward_weights and manager != MANAGER_NAME,
    }
    if keys := [key for key, is_ignored in ignored.items() if is_ignored]:
        logger.warning(
            "%s: no effect on what is learned under algorithm.adv_estimator=%s, which optimises "
            "the score that reward.reward_manager.name=%s gives. Weights and conditions are part "
            "of the score of %s.",
            ", ".join(keys),
            config.algorithm.get("adv_estimator"),
            manager,
            MANAGER_NAME,
        )


def check_components(config: Any) -> None:
    """Reject a model or a reward that is not on this machine, and components that do not fit.

    Called where the trainer runs; on a cluster that is not the driver's machine.
    """
    check_model(config)
    if (objective := objective_of(config)) is not None:
        check_estimator(config, objective)
        check_trainer(config, objective)


def check_estimator(config: Any, objective: Objective) -> None:
    """Reject a variant that cannot work with these components and groups; try a user's own.

    Groups of one response, verl's default, are no fault of the components: see `check_settings`.
    """
    size = config.actor_rollout_ref.rollout.n
    objective.check_groups(size if is_gdpo(config) and size > 1 else None)


def check_schedule(config: Any) -> None:
    """Reject scheduled weights where they would have no effect."""
    if OmegaConf.select(config, "algorithm.gdpo.schedule") is None:
        return
    if not is_gdpo(config):
        raise ValueError(
            "algorithm.gdpo.schedule: the weights of a schedule act after each component is "
            f"normalised, which algorithm.adv_estimator={config.algorithm.get('adv_estimator')} "
            "does not do: it optimises the reward's score as it is. Remove the schedule, or set "
            "algorithm.adv_estimator=gdpo."
        )
    if not on_default_trainer(config):
        raise ValueError(
            "algorithm.gdpo.schedule: verl's legacy, fully_async and one_step_off trainers do not "
            "tell an estimator the global step. Train with verl.trainer.main_ppo and "
            "trainer.use_v1=true, or remove the schedule."
        )


def check_trainer(config: Any, objective: Objective) -> None:
    """Reject components that may be absent where verl's trainer makes columns of them.

    All but the default one take the keys of a batch's first response for all its responses
    (verl/experimental/agent_loop/agent_loop.py, `_postprocess`).
    """
    if on_default_trainer(config):
        return
    if objective.masks_key:
        raise ValueError(f"{objective.masks_key}: {NEEDS_SEAM}")
    if absent := [key for key in objective.keys if key in objective.optional]:
        raise ValueError(
            f"algorithm.gdpo_reward_keys: {absent} may be absent, and verl's legacy, fully_async "
            "and one_step_off trainers take the keys of a batch's first response for all of them. "
            "Return them for every row, None where they are not scored, and declare them without "
            "optional=True; or train with verl.trainer.main_ppo and trainer.use_v1=true."
        )


def check_filter(config: Any, returned: Mapping[str, Mapping[str, Any]]) -> None:
    """Reject a group filter on a metric that is not among what `probe_reward` returned."""
    metric = _other_filter(config)
    if metric in (None, "reward"):
        return
    for row, info in returned.items():
        if metric not in info:
            known = ["reward", FILTER_METRIC, *info]
            raise ValueError(
                f"algorithm.filter_groups.metric: {metric!r} is not among {known}: verl's reward, "
                f"GDPO's {FILTER_METRIC}, and what the reward returned for row {row}."
                f"{did_you_mean(metric, known)}"
            )


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
        if reason := failed_judgement(info):
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
        if problem := reward.not_a_dict(info, settings):
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


def _other_filter(config: Any) -> str | None:
    """The metric by which verl filters groups, where it does and the metric is not ours."""
    node = config.algorithm.get("filter_groups") or {}
    metric: str | None = node.get("metric")
    return metric if node.get("enable", False) and metric != FILTER_METRIC else None


def _warn_about_filter(config: Any, settings: GdpoConfig) -> None:
    metric = _other_filter(config)
    gate = settings.gate or {}
    if not metric:
        return
    if gate.get("on") == metric and gate.get("when") == "constant":
        return  # it drops the groups that the gate closes
    logger.warning(
        "algorithm.filter_groups.metric=%s drops groups in which %s does not vary although "
        "other components may, from which GDPO learns. Use algorithm.filter_groups.metric=%s "
        "to drop the groups from which GDPO learns nothing.",
        metric,
        "the score" if metric in ("reward", "score") else f"{metric!r} alone",
        FILTER_METRIC,
    )
