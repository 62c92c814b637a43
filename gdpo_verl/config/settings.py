"""GDPO's settings, read from verl's `algorithm` node and checked before training."""

from __future__ import annotations

import logging
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor

from gdpo_verl.advantage import (
    VARIANTS,
    Decomposition,
    EstimatorSettings,
    Gate,
    Variant,
    apply_conditions,
    check_conditions,
    decompose,
    find_variant,
    validate_variant,
)
from gdpo_verl.advantage.conditions import LIMITS, each_condition
from gdpo_verl.advantage.criteria import Criteria, Graded, check_criteria
from gdpo_verl.advantage.groups import GroupIds, factorize_groups
from gdpo_verl.advantage.schedule import Schedule
from gdpo_verl.advantage.turns import check_credit
from gdpo_verl.advantage.variant import Ranges
from gdpo_verl.advantage.variants import own_name
from gdpo_verl.config import parsing
from gdpo_verl.config.components import BY_CRITERION, BY_TURN, Component, as_components
from gdpo_verl.config.derived import Derived
from gdpo_verl.config.wording import VERL, Wording
from gdpo_verl.names import did_you_mean

logger = logging.getLogger(__name__)

# Looked for, in this order, where neither a gate nor a condition names the outcome.
_OUTCOMES = (
    "correctness",
    "accuracy",
    "pass",
    "outcome",
    "acc",
    "accuracy_reward",
    "correct",
    "exact",
    "right",
)


@dataclass(frozen=True)
class GdpoConfig:
    """The settings as written; `resolve` fits them to what a reward returns.

    Attributes:
      reward_keys: `algorithm.gdpo_reward_keys`; None means the declared components.
      reward_weights: `algorithm.gdpo_reward_weights`, by component; None means all 1.
      variant: `algorithm.gdpo.variant`, and `options`, its settings, as written.
      conditions, gate, schedule, derived, metrics: the keys of `algorithm.gdpo`.
      estimator: what reaches the estimator as it is written. The rest of these settings depends on
        the components: `Objective.settings_at`.
      wording: of errors.
    """

    reward_keys: tuple[str, ...] | None = None
    reward_weights: Mapping[str, float] | None = None
    conditions: Mapping[str, Any] = field(default_factory=dict)
    metrics: bool = True
    variant: str = "gdpo"
    options: Mapping[str, Any] = field(default_factory=dict)
    gate: Mapping[str, Any] | None = None
    schedule: Mapping[str, Schedule] = field(default_factory=dict)
    derived: Mapping[str, Derived] = field(default_factory=dict)
    estimator: EstimatorSettings = field(default_factory=EstimatorSettings)
    wording: Wording = field(default=VERL, compare=False, repr=False)

    @classmethod
    def from_algorithm(
        cls, algorithm: Mapping[str, Any] | None, wording: Wording = VERL
    ) -> GdpoConfig:
        """Read verl's `algorithm` node (a mapping or an omegaconf DictConfig).

        Args:
          wording: another than verl's where the settings are an argument of ours; every key that
            would have no effect is then rejected.

        Raises:
          ValueError: names the key in full, what was found and what is expected.
        """
        root, section = wording.root, f"{wording.root}.gdpo"
        algorithm = parsing.plain(parsing.mapping(root, algorithm))
        node = parsing.gdpo_node(algorithm, root)
        variant, options = parsing.variant(node, root)
        keys = parsing.reward_keys(algorithm.get("gdpo_reward_keys"), wording)
        weights = parsing.reward_weights(algorithm.get("gdpo_reward_weights"), keys, wording)
        return cls(
            reward_keys=keys,
            reward_weights=weights,
            variant=variant,
            options=options,
            estimator=parsing.estimator(algorithm, node, root),
            conditions=parsing.conditions(node.get("conditions"), section),
            gate=parsing.gate(node.get("gate"), section),
            schedule=parsing.schedules(node.get("schedule"), section),
            derived=parsing.derived(node.get("derived"), wording),
            metrics=parsing.flag(section, node, "metrics", cls.metrics),
            wording=wording,
        )

    @cached_property
    def chosen_variant(self) -> Variant:
        """The variant with its settings; a function of the user's own is imported.

        Raises:
          ValueError: it cannot be imported, or has no such setting.
        """
        section = f"{self.wording.root}.gdpo"
        where = f"{section}.{own_name(self.variant)}."
        found = find_variant(self.variant, f"{section}.variant")
        # GDPO itself is known by identity (`variant is GDPO`), so that it is not copied.
        return found.with_settings(self.options, where) if self.options else found

    def resolve(
        self,
        declared: Sequence[Component | str],
        returned: Sequence[str] | None = None,
        listed: Iterable[str] = (),
        mapped: Iterable[str] = (),
    ) -> Objective:
        """The components that enter the estimator, in order, with weights and conditions.

        Args:
          declared: what the reward function or manager declares; may be empty.
          returned: the keys of a dict that it returned, where one is known.
          listed, mapped: components that are by turn and by criterion, whether or not they are
            declared.

        Raises:
          ValueError: nothing is declared or named, or a key, weight or condition names
            something that the reward does not return.
        """
        components = as_components(declared)
        optional = frozenset(component.name for component in components if component.optional)
        keys = self._keys([component.name for component in components], optional, returned)
        section = f"{self.wording.root}.gdpo"
        check_conditions(keys, self.conditions, f"{section}.conditions")
        weights = self._weights(keys)
        parsing.check_schedules(self.schedule, dict(zip(keys, weights, strict=True)), self.wording)
        if self.gate is not None:
            parsing.check_component(f"{section}.gate.on", self.gate["on"], keys)
        # The reward may declare components that the keys leave out.
        own = [component for component in components if component.name in keys]
        by_turn = frozenset(each.name for each in own if each.by_turn)
        by_turn |= set(keys).intersection(listed)
        by_criterion = frozenset(each.name for each in own if each.by_criterion)
        by_criterion |= set(keys).intersection(mapped)
        # The range of one turn is none of the sum.
        ranges = {c.name: c.range for c in own if c.range is not None and c.name not in by_turn}
        ranges |= {k: each.range for k, each in self.derived.items() if each.range is not None}
        self._check_limits(ranges)
        most = {c.name: c.most_unscored for c in own if c.most_unscored is not None}
        objective = Objective(keys, weights, optional, ranges, self, most, by_turn, by_criterion)
        self._check_variant(objective)
        if objective.credits_turns:
            variant = self.chosen_variant
            check_credit(variant, self.estimator.whiten or variant.whiten, section)
        estimator = self.estimator
        if by_criterion and estimator.criteria == "decoupled" and estimator.scale:
            names = sorted(by_criterion)
            check_criteria(self.chosen_variant, objective.credits_turns, names, section)
        return objective

    def _keys(
        self, declared: Sequence[str], optional: frozenset[str], returned: Sequence[str] | None
    ) -> tuple[str, ...]:
        """The names of the components, in order; derived ones that are not named come last."""
        for name in self.derived:
            if name in declared or name in (returned or ()):
                raise ValueError(
                    f"{self.wording.root}.gdpo.derived.{name}: the reward itself returns a value "
                    "of this name. Choose another one."
                )
        where = f"{self.wording.root}.gdpo_reward_keys"
        if self.reward_keys is None and not declared:
            found = f", although it returns {list(returned)}" if returned else ""
            raise ValueError(
                f"{where}: the reward declares no components and none are named{found}. "
                f"{self.wording.components}"
            )
        keys = self.reward_keys or tuple(declared)
        keys += tuple(name for name in self.derived if name not in keys)
        if returned is None:
            return keys
        # Every reward returns `score`, the sum of the components: it is never one of them.
        known = [key for key in returned if key != "score"]
        for key in keys:
            if key not in (*returned, *optional, *self.derived):
                raise ValueError(
                    f"{where}: {key!r} is not among the reward components {known}. "
                    f"{self.wording.absent}{did_you_mean(key, known)}"
                )
        return keys

    def _weights(self, keys: tuple[str, ...]) -> tuple[float, ...]:
        """The weight of each component."""
        weights = self.reward_weights or {}
        for key in weights:
            parsing.check_component(f"{self.wording.weights}.{key}", key, keys)
        chosen = tuple(float(weights.get(key, 1.0)) for key in keys)
        if not any(chosen):
            raise ValueError(f"{self.wording.weights}: all are zero, found {list(chosen)}")
        return chosen

    def _check_limits(self, ranges: Mapping[str, tuple[float, float]]) -> None:
        """Refuse limits outside of the ranges, and warn of conditions that reward failing."""
        section = f"{self.wording.root}.gdpo.conditions"
        for name, condition in each_condition(self.conditions):
            on = condition["on"]
            low, high = ranges.get(on, (-math.inf, math.inf))
            if on in self.conditions:  # where its own conditions fail it is 0
                low = min(low, 0.0)
                high = max(high, 0.0)
            for limit in LIMITS:
                if limit not in condition:
                    continue
                threshold = condition[limit]
                if not low <= threshold <= high:
                    raise ValueError(
                        f"{section}.{name}.{limit}: expected a threshold from {low:g} to "
                        f"{high:g}, the declared range of {on!r}, found {threshold:g}. Beyond it "
                        "the condition always or never holds."
                    )
            _, highest = ranges.get(name, (0.0, math.inf))
            if highest <= 0:
                _warn_once(penalty_with_condition(f"{section}.{name}", on))

    def _check_variant(self, objective: Objective) -> None:
        """Check the components against a built-in variant; a user's variant has no requirements."""
        variant = VARIANTS.get(self.variant)
        if variant is None:
            return
        # Between its steps a schedule lies between their weights, so that no other sign occurs.
        steps = {0}
        for schedule in self.schedule.values():
            steps.update(schedule.steps)
        for step in steps:
            variant.check_weights(objective.weights_at(step), self.wording.weights)
        where = f"{self.wording.root}.gdpo.variant"
        try:
            variant.check_ranges(objective.range_list, objective.keys, where)
        except ValueError as error:
            raise ValueError(f"{error} {self.wording.ranges}") from None
        if variant.by_component:
            where = f"{self.wording.root}.gdpo.{self.variant}"
            parsing.check_targets(self.options, objective.ranges, objective.keys, where)

    def check(self, group_size: int) -> None:
        """Refuse groups of one response, and warn of what makes no difference to GRPO."""
        if not self.estimator.scale:
            _warn_once(
                f"{self.wording.root}.{parsing.SCALE}=false: without the groups' standard "
                "deviations the components are only centred, and decoupling them makes no "
                "difference."
            )
        if group_size == 1:
            fault = (
                f"{self.wording.group_size}: expected at least 2 responses to a prompt, found 1: "
                f"the variant {self.variant!r}"
            )
            if self.variant in VARIANTS:
                raise ValueError(f"{fault} compares them, and every advantage would be 0.")
            _warn_once(f"{fault} learns only if it does not compare them.")


def penalty_with_condition(key: str, outcome: str) -> str:
    """Say why the condition of this key, on a component that is never above 0, is wrong."""
    name = key.rpartition(".")[2]
    return (
        f"{key}: {name!r} is never above 0, and it counts as 0 where {outcome!r} fails. Failing "
        f"therefore earns the best value of {name!r}. Return a value that is never below 0, such "
        f"as 1 + penalty. Or remove the condition, and return None where {outcome!r} fails."
    )


@cache
def _warn_once(text: str) -> None:
    """Log a warning the first time: settings are read anew for each batch by `advantages_of`."""
    logger.warning(text)


@dataclass(frozen=True)
class Objective:
    """The quantity to optimise: components in order, their weights, and the settings.

    Attributes:
      ranges: low and high, in reward units, of the components that declare both.
      most_unscored: the share of a batch that may be without a component, where one is declared.
      by_turn: the components that are a list, one number a turn.
      by_criterion: the components that are a mapping, one number a criterion.
    """

    keys: tuple[str, ...]
    weights: tuple[float, ...]
    optional: frozenset[str]
    ranges: Mapping[str, tuple[float, float]]
    config: GdpoConfig
    most_unscored: Mapping[str, float]
    by_turn: frozenset[str] = frozenset()
    by_criterion: frozenset[str] = frozenset()

    @property
    def columns(self) -> list[str]:
        """The columns in which our reward manager gives the components to verl."""
        lists = [f"{key}{BY_TURN}" for key in self.keys if key in self.by_turn]
        mappings = [f"{key}{BY_CRITERION}" for key in self.keys if key in self.by_criterion]
        return [*self.keys, *lists, *mappings]

    @property
    def credits_turns(self) -> bool:
        """Turns have advantages of their own."""
        return bool(self.by_turn) and self.config.estimator.credit != "answer"

    @property
    def masks_key(self) -> str:
        """The key that asks for the response masks as they were sampled; '' where none does."""
        if not (self.config.derived or self.credits_turns):
            return ""
        name = "derived" if self.config.derived else f"credit={self.config.estimator.credit}"
        return f"{self.config.wording.root}.gdpo.{name}"

    def check_groups(self, size: int | None = None) -> None:
        """Refuse groups, and a function of the user's own, that the estimator cannot work with.

        Args:
          size: the responses to a prompt; None where it is not known, or does not matter.
        """
        config, variant = self.config, self.config.chosen_variant
        if size is not None:
            config.check(size)
            variant.check_group_size(size, len(self.keys), config.wording.group_size)
        if config.variant not in VARIANTS:
            validate_variant(
                variant,
                f"{config.wording.root}.gdpo.variant",
                weights=self.weights,
                settings=self.settings_at(0),
            )

    def weights_at(self, step: int) -> tuple[float, ...]:
        """The weights at a global step: the scheduled ones, and the others as they are."""
        schedule = self.config.schedule
        return tuple(
            schedule[key].weight(step) if key in schedule else weight
            for key, weight in zip(self.keys, self.weights, strict=True)
        )

    def settings_at(self, step: int) -> EstimatorSettings:
        """The settings of the estimator at a global step."""
        return replace(
            self.config.estimator,
            weights=self.weights_at(step),
            ranges=self.range_list,
            gate=self.gate,
            variant=self.config.chosen_variant.with_columns(self.keys),
        )

    def of_answers(self) -> Objective:
        """The objective of an estimator that credits complete responses, never their turns."""
        estimator = replace(self.config.estimator, credit="answer")
        return replace(self, config=replace(self.config, estimator=estimator))

    def conditioned(self, raw: Tensor, looked_at: Tensor | None = None) -> Tensor:
        """The rewards after the conditions, as `apply_conditions`: shape (B, K)."""
        return apply_conditions(raw, self.keys, self.config.conditions, looked_at)

    @property
    def is_derived(self) -> Tensor:
        """The columns of the derived components: bool, shape (K,)."""
        return torch.tensor([key in self.config.derived for key in self.keys])

    def with_derived(
        self,
        raw: Tensor,
        infos: Sequence[Mapping[str, Any]],
        lengths: Sequence[int | None],
        groups: Sequence[Hashable],
    ) -> Tensor:
        """The rewards with the columns of the derived components.

        Args:
          raw: float64, shape (B, K), in the order of the keys.
          infos: what the reward returned for each response.
          lengths: of each in tokens.
          groups: of each; equal ones share a prompt.

        Raises:
          ValueError: names the function and the group.
        """
        if not self.config.derived:
            return raw
        known = dict.fromkeys(key for key in self.keys if key not in self.config.derived)
        complete = [known | dict(info) for info in infos]
        filled = raw.clone()
        for name, derived in self.config.derived.items():
            column = derived.column(complete, lengths, groups)
            filled[:, self.keys.index(name)] = torch.tensor(column, dtype=torch.float64)
        return filled

    def try_derived(self, info: Mapping[str, Any]) -> None:
        """Call the derived components' functions on a made-up group.

        Args:
          info: what the reward returned for some answer.

        Raises:
          ValueError: a function cannot be imported, raises, or returns no numbers.
        """
        low = dict(info)
        high = dict(info)
        for key in self.keys:
            if key not in self.config.derived:
                low[key], high[key] = self.ranges.get(key, (0.0, 1.0))
        unscored = torch.full((4, len(self.keys)), torch.nan, dtype=torch.float64)
        self.with_derived(unscored, [low, high] * 2, [12, 7, 30, 7], ["made up"] * 4)

    def score(self, raw: Tensor) -> Tensor:
        """sum_k w_k r_k after the conditions, without schedules: (B, K) to (B,), in reward units.

        An unscored component adds 0.
        """
        weights = torch.tensor(self.weights, dtype=torch.float64)
        return self.conditioned(raw).nan_to_num(0.0) @ weights

    def decompose(
        self,
        raw: Tensor,
        group_ids: GroupIds,
        token_counts: Tensor | None,
        step: int,
        graded: Mapping[str, Sequence[Graded | None]] | None = None,
        rows: Sequence[str] = (),
    ) -> Decomposition:
        """Decompose rewards, as they were returned, under the settings of a global step.

        Args:
          raw: float64, shape (B, K), in the order of the keys, with the derived ones.
          group_ids, token_counts: as in `gdpo_verl.advantage.decompose`.
          graded: the components by criterion of each response.
          rows: what to call each response in an error.

        Raises:
          ValueError: two responses of a group give a criterion different weights.
        """
        settings = self.settings_at(step)
        groups = factorize_groups(group_ids, raw)
        conditioned = self.conditioned(raw)
        # 1 where the conditions of a component hold, 0 where they fail, else NaN.
        counts = self.conditioned(torch.ones_like(raw), conditioned)
        criteria = []
        for key, own in (graded or {}).items():
            column = self.keys.index(key)
            where = f"{self.config.wording.rewards}: {key!r}"
            table = Criteria.of(column, own, groups, rows, where)
            criteria.append(table.conditioned(counts[:, column]))
        return decompose(
            raw, groups, token_counts, settings, conditioned=conditioned, criteria=criteria
        )

    @property
    def range_list(self) -> Ranges:
        """The ranges by column, None where there is none."""
        return [self.ranges.get(key) for key in self.keys]

    @property
    def gate(self) -> Gate | None:
        """The outcome gate, by column."""
        gate = self.config.gate
        return None if gate is None else Gate(self.keys.index(gate["on"]), gate["when"])

    @property
    def outcome_column(self) -> int | None:
        """The column of the component that says whether the task was solved, where it is known.

        The gate's, else the one that all conditions are on, else the first of the usual names.
        """
        if self.gate is not None:
            return self.gate.column
        # Rewards that all count only with one component are about what that one says.
        on = {condition["on"] for _, condition in each_condition(self.config.conditions)}
        names = on if len(on) == 1 else [name for name in _OUTCOMES if name in self.keys]
        return next(map(self.keys.index, names), None)
