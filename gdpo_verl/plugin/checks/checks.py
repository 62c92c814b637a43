"""The checks that can reject a run before its first rollout, in the order in which they run.

Each check raises ValueError. The error names the configuration key in full, and the remedy. The
table in docs/settings.md lists the same checks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any

from omegaconf import OmegaConf

from gdpo_verl.config import GdpoConfig, Objective, parsing
from gdpo_verl.config.wording import NEEDS_TRAINER_HOOKS
from gdpo_verl.names import did_you_mean
from gdpo_verl.plugin import contract, shared_prompts
from gdpo_verl.plugin.checks import batches, reward
from gdpo_verl.plugin.checks.reward_function import MANAGER_NAME, unnamed_arguments
from gdpo_verl.plugin.checks.validation import (
    FILTER_METRIC,
    is_gdpo,
    manager_name,
    objective_of,
    on_default_trainer,
    uses_plugin,
)
from gdpo_verl.upstream.model import check_lora, check_model, joins_cluster

logger = logging.getLogger(__name__)

# The number of training rows whose prompts are measured.
MEASURED = 32
# verl's old keys for the reward, each with the key that replaced it. verl 0.9.1 still has the old
# keys in its configuration, but its default trainer does not read them
# (verl/experimental/reward_loop/reward_loop.py, `migrate_legacy_reward_impl`, which only
# fully_async still calls).
_OLD_REWARD_KEYS = {
    "custom_reward_function.path": "reward.custom_reward_function.path",
    "custom_reward_function.name": "reward.custom_reward_function.name",
    "reward_model.enable": "reward.reward_model.enable",
    "reward_model.model.path": "reward.reward_model.model_path",
    "reward_model.num_workers": "reward.num_workers",
    "reward_model.reward_manager": "reward.reward_manager.name",
    "sandbox_fusion.url": "reward.sandbox_fusion.url",
}


class Moment(Enum):
    """The earliest moment at which a check is possible, named by what is known then."""

    KEYS = "Keys and values"
    CONFIGURATION = "The complete configuration"
    FILES = "Files on the machine that trains"
    COMPONENTS = "Components of the reward function"
    ROWS = "The reward function on rows of the data"
    RETURNED = "What the reward function returns"


@dataclass
class Run:
    """The facts about a run that the checks read.

    Attributes:
      config: verl's configuration.
      trainer: verl's trainer with its data. It is known from `Moment.ROWS` on.
      returned: the dicts that the reward function returned, by the names of the rows. They are
        known in `Moment.RETURNED`.
    """

    config: Any
    trainer: Any = None
    returned: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def settings(self) -> GdpoConfig:
        """The settings of GDPO."""
        return GdpoConfig.from_algorithm(self.config.algorithm)

    @cached_property
    def objective(self) -> Objective | None:
        """The components with the settings that apply to them; None if there are no components."""
        return objective_of(self.config)


def check_verl(run: Run) -> None:
    """Reject GDPO if the installed verl is not supported."""
    reason = contract.first_violation()
    if reason and is_gdpo(run.config):
        raise ValueError(f"algorithm.adv_estimator=gdpo: {reason}")


def check_keys(run: Run) -> None:
    """Reject keys of GDPO in a wrong place, which would be ignored."""
    config = run.config
    for key in config:
        if str(key).startswith("gdpo"):
            raise ValueError(f"{key}: unknown key. Settings of GDPO are under algorithm.{key}.")
    for key, value in config.algorithm.items():
        if is_gdpo(config) and key in parsing.SECTION:
            raise ValueError(
                f"algorithm.{key}: unknown key; it would have no effect."
                f"{parsing.nearest(key, value, 'algorithm')}"
            )


def check_old_keys(run: Run) -> None:
    """Reject verl's old keys for the reward if they contradict the new keys."""
    for key, new in _OLD_REWARD_KEYS.items():
        value = OmegaConf.select(run.config, key)
        if value is not None and OmegaConf.select(run.config, new) != value:
            raise ValueError(
                f"{key}: verl no longer reads this key, and {value!r} would have no effect. Set "
                f"{new} instead."
            )


def check_schedule(run: Run) -> None:
    """Reject scheduled weights if they would have no effect."""
    config = run.config
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


def check_reward_manager(run: Run) -> None:
    """Reject our reward manager without a reward function."""
    function = OmegaConf.select(run.config, "reward.custom_reward_function.path")
    if manager_name(run.config) == MANAGER_NAME and function is None:
        raise ValueError(
            f"reward.custom_reward_function.path: not set, and reward.reward_manager.name="
            f"{MANAGER_NAME} has no default rewards. Set it and its name, for example to "
            "pkg://gdpo_verl.rewards.gsm8k and compute_score."
        )


def check_lengths(run: Run) -> None:
    """Reject a maximal model length that leaves no tokens for the response to a long prompt."""
    config = run.config
    most = config.actor_rollout_ref.rollout.get("max_model_len")
    prompt = config.data.max_prompt_length
    if most is not None and most <= prompt:
        raise ValueError(
            f"actor_rollout_ref.rollout.max_model_len: expected more than data.max_prompt_length="
            f"{prompt}, found {most}: long prompts would get no response. Lower "
            "data.max_prompt_length; or, where the model takes more, set it to null, the model's "
            "own limit, or to the sum of data.max_prompt_length and data.max_response_length."
        )


def load_functions(run: Run) -> None:
    """Import the user's functions: an own variant, and derived components."""
    settings = run.settings
    _ = settings.chosen_variant
    for derived in settings.derived.values():
        _ = derived.function


def check_kl(run: Run) -> None:
    """Reject a KL penalty in the rewards, because GDPO does not use it."""
    if is_gdpo(run.config) and run.config.algorithm.get("use_kl_in_reward", False):
        raise ValueError(
            "algorithm.use_kl_in_reward: true has no effect under GDPO, which reads the reward "
            "components before any penalty. Set it to false and use "
            "actor_rollout_ref.actor.use_kl_loss=true."
        )


def check_group_size(run: Run) -> None:
    """Reject groups of one response under GDPO."""
    if is_gdpo(run.config):
        run.settings.check(run.config.actor_rollout_ref.rollout.n)


def check_variant(run: Run) -> None:
    """Reject a variant that cannot work with these components and groups.

    A user's own variant is called on a small batch.
    """
    if run.objective is None:
        return
    # Groups of one response are not checked here, because `check_group_size` rejects them.
    size = run.config.actor_rollout_ref.rollout.n
    run.objective.check_groups(size if is_gdpo(run.config) and size > 1 else None)


def check_trainer(run: Run) -> None:
    """Reject settings that only verl's default trainer supports, if another trainer runs.

    In particular, components that may be absent need the default trainer. The other trainers use
    the keys of the first response for all responses of a batch
    (verl/experimental/agent_loop/agent_loop.py, `_postprocess`).
    """
    objective = run.objective
    if objective is None or on_default_trainer(run.config):
        return
    if objective.masks_key:
        raise ValueError(f"{objective.masks_key}: {NEEDS_TRAINER_HOOKS}")
    absent = [key for key in objective.keys if key in objective.optional]
    if absent:
        raise ValueError(
            f"algorithm.gdpo_reward_keys: {absent} may be absent, and verl's legacy, fully_async "
            "and one_step_off trainers take the keys of a batch's first response for all of them. "
            "Return them for every row, None where they are not scored, and declare them without "
            "optional=True; or train with verl.trainer.main_ppo and trainer.use_v1=true."
        )


def check_prompts(run: Run) -> None:
    """Reject prompts that verl would cut."""
    dataset = run.trainer.train_dataset
    rows = [dataset[number] for number in range(min(MEASURED, len(dataset)))]
    problem = reward.overlong_prompts(run.config, run.trainer.tokenizer, dataset, rows)
    if problem:
        raise ValueError(problem)


def check_arguments(run: Run) -> None:
    """Reject misspelled arguments of the reward function."""
    if run.config.reward.reward_model.enable:
        return
    problems = unnamed_arguments(run.config)
    if problems:
        raise ValueError("; ".join(problems))


def check_responses(run: Run) -> None:
    """Call the reward function, and reject it if it does not return what it declares."""
    run.returned = reward.probe_reward(run.trainer)
    objective_of(run.config, run.returned)


def check_filter(run: Run) -> None:
    """Reject a group filter on a metric that is not among what the reward function returned."""
    metric = _other_filter(run.config)
    if metric in (None, "reward") or not on_default_trainer(run.config):
        return
    for row, info in run.returned.items():
        if metric not in info:
            known = ["reward", FILTER_METRIC, *info]
            raise ValueError(
                f"algorithm.filter_groups.metric: {metric!r} is not among {known}: verl's reward, "
                f"GDPO's {FILTER_METRIC}, and what the reward returned for row {row}."
                f"{did_you_mean(metric, known)}"
            )


def warn_of_no_effect(run: Run) -> None:
    """Warn of settings that do not change what is learned, or drop what GDPO could learn from."""
    if is_gdpo(run.config):
        _warn_about_filter(run)
        return
    settings = run.settings
    manager = manager_name(run.config)
    ignored = {
        "algorithm.gdpo.variant": settings.variant != "gdpo",
        "algorithm.gdpo.gate": settings.gate is not None,
        # With our manager, conditions and weights are part of the score, and have an effect.
        "algorithm.gdpo.conditions": settings.conditions and manager != MANAGER_NAME,
        "algorithm.gdpo_reward_weights": settings.reward_weights and manager != MANAGER_NAME,
    }
    keys = [key for key, is_ignored in ignored.items() if is_ignored]
    if keys:
        logger.warning(
            "%s: no effect on what is learned under algorithm.adv_estimator=%s, which optimises "
            "the score that reward.reward_manager.name=%s gives. Weights and conditions are part "
            "of the score of %s.",
            ", ".join(keys),
            run.config.algorithm.get("adv_estimator"),
            manager,
            MANAGER_NAME,
        )


def _other_filter(config: Any) -> str | None:
    """Return the metric by which verl filters groups; None without a filter or with ours."""
    node = config.algorithm.get("filter_groups") or {}
    metric: str | None = node.get("metric")
    return metric if node.get("enable", False) and metric != FILTER_METRIC else None


def _warn_about_filter(run: Run) -> None:
    metric = _other_filter(run.config)
    # A gate on the same component excludes the same groups as the filter.
    if not metric or run.settings.gate == {"on": metric, "when": "constant"}:
        return
    logger.warning(
        "algorithm.filter_groups.metric=%s drops groups in which %s does not vary although "
        "other components may, from which GDPO learns. Use algorithm.filter_groups.metric=%s "
        "to drop the groups from which GDPO learns nothing.",
        metric,
        "the score" if metric in ("reward", "score") else f"{metric!r} alone",
        FILTER_METRIC,
    )


# The names are those of the table in docs/settings.md.
CHECKS: Mapping[Moment, Mapping[str, Callable[[Run], object]]] = {
    Moment.KEYS: {
        "verl": check_verl,
        "keys": check_keys,
        "old keys": check_old_keys,
        "values": lambda run: run.settings,
        "schedule": check_schedule,
    },
    Moment.CONFIGURATION: {
        "reward manager": check_reward_manager,
        "LoRA": lambda run: check_lora(run.config),
        "shared prompts": lambda run: shared_prompts.check(run.config),
        "lengths": check_lengths,
        "own functions": load_functions,
        "no effect": warn_of_no_effect,
        "KL penalty": check_kl,
        "group size": check_group_size,
        "batch": lambda run: batches.check(run.config),
    },
    Moment.FILES: {
        "model": lambda run: check_model(run.config),
    },
    Moment.COMPONENTS: {
        "components": lambda run: run.objective,
        "variant": check_variant,
        "trainer": check_trainer,
    },
    Moment.ROWS: {
        "prompts": check_prompts,
        "arguments": check_arguments,
        "responses": check_responses,
    },
    Moment.RETURNED: {
        "filter": check_filter,
    },
}


def check_before_ray(config: Any) -> None:
    """Make the checks that are possible in verl's driver, before Ray starts.

    If the run joins a cluster, the trainer may run on another machine, whose files are checked
    later. A run that does not use the plug-in is not checked.
    """
    if not uses_plugin(config):
        return
    run = Run(config)
    check_run(run, Moment.KEYS, Moment.CONFIGURATION)
    if not joins_cluster(config):
        check_run(run, Moment.FILES, Moment.COMPONENTS)


def check_run(run: Run, *moments: Moment) -> None:
    """Make the checks of these moments, in the order of the list.

    If the installed verl is not supported, a run with another estimator is not checked, because
    none of our hooks are installed.

    Raises:
      ValueError: a check rejects the run.
    """
    if contract.first_violation() and not is_gdpo(run.config):
        return
    for moment, named in CHECKS.items():
        if moment in moments:
            for reject in named.values():
                reject(run)
