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

# Usual names of the outcome, the component that says whether the task is solved. The first of these
# names that exists is used if neither a gate nor the conditions name the outcome.
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
    """The settings as they are written, before the components of the reward are known.

    `resolve` combines them with the components that a reward function returns.

    Attributes:
      reward_keys: `algorithm.gdpo_reward_keys`; None means the declared components.
      reward_weights: `algorithm.gdpo_reward_weights`, by component; None means that all are 1.
      variant: `algorithm.gdpo.variant`.
      options: the settings of the variant, as they are written.
      conditions, gate, schedule, derived, metrics: the keys of `algorithm.gdpo` with these names.
      estimator: the settings that the estimator gets as they are written. Its other settings depend
        on the components; `Objective.settings_at` has them all.
      wording: the words of error messages.
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
          algorithm: the node.
          wording: the words of error messages. If it is not verl's wording, the settings are an
            argument of one of our functions, and keys that would have no effect are rejected.

        Raises:
          ValueError: a setting is wrong. The error names the key in full, the value that was found
            and the value that is expected.
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
        """The variant with its settings. If it is a user's own function, this imports it.

        Raises:
          ValueError: the function cannot be imported, or the variant has no such setting.
        """
        section = f"{self.wording.root}.gdpo"
        where = f"{section}.{own_name(self.variant)}."
        variant = find_variant(self.variant, f"{section}.variant")
        # `with_settings` returns a copy. GDPO has no settings and must not be copied, because other
        # code compares by identity (`variant is GDPO`).
        return variant.with_settings(self.options, where) if self.options else variant

    def resolve(
        self,
        declared: Sequence[Component | str],
        returned: Sequence[str] | None = None,
        listed: Iterable[str] = (),
        mapped: Iterable[str] = (),
    ) -> Objective:
        """Combine the settings with the components of a reward function, and check them.

        Args:
          declared: the components that the reward function or manager declares; may be empty.
          returned: the keys of a dict that the reward function returned, if one is known.
          listed: names of components that are by turn, even if they are not declared so.
          mapped: names of components that are by criterion, even if they are not declared so.

        Returns:
          The components that enter the estimator, in order, with their weights and settings.

        Raises:
          ValueError: no components are declared or named, or a key, weight or condition names a
            component that the reward function does not return.
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
        # The keys may leave out components that the reward function declares.
        used = [component for component in components if component.name in keys]
        by_turn = frozenset(component.name for component in used if component.by_turn)
        by_turn |= set(keys).intersection(listed)
        by_criterion = frozenset(component.name for component in used if component.by_criterion)
        by_criterion |= set(keys).intersection(mapped)
        # The declared range of a component by turn holds for one turn, not for the sum over turns.
        ranges = {c.name: c.range for c in used if c.range is not None and c.name not in by_turn}
        for name, derived in self.derived.items():
            if derived.range is not None:
                ranges[name] = derived.range
        self._check_limits(ranges)
        most = {c.name: c.most_unscored for c in used if c.most_unscored is not None}
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
        """Return the names of the components, in order.

        Derived components that `gdpo_reward_keys` does not name come last.
        """
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
        # Every reward function returns `score`. It is the sum of the components, and not a
        # component itself.
        known = [key for key in returned if key != "score"]
        for key in keys:
            if key not in (*returned, *optional, *self.derived):
                raise ValueError(
                    f"{where}: {key!r} is not among the reward components {known}. "
                    f"{self.wording.absent}{did_you_mean(key, known)}"
                )
        return keys

    def _weights(self, keys: tuple[str, ...]) -> tuple[float, ...]:
        """Return the weight of each component."""
        weights = self.reward_weights or {}
        for key in weights:
            parsing.check_component(f"{self.wording.weights}.{key}", key, keys)
        chosen = tuple(float(weights.get(key, 1.0)) for key in keys)
        if not any(chosen):
            raise ValueError(f"{self.wording.weights}: all are zero, found {list(chosen)}")
        return chosen

    def _check_limits(self, ranges: Mapping[str, tuple[float, float]]) -> None:
        """Reject limits outside of the ranges, and warn about conditions that reward failing."""
        section = f"{self.wording.root}.gdpo.conditions"
        for name, condition in each_condition(self.conditions):
            on = condition["on"]
            low, high = ranges.get(on, (-math.inf, math.inf))
            if on in self.conditions:  # this component is 0 where its own conditions fail
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
        """Check that the components meet the requirements of a built-in variant.

        A user's own variant has no requirements.
        """
        variant = VARIANTS.get(self.variant)
        if variant is None:
            return
        # It is enough to check the weights at the steps of the schedules: between two steps, a
        # weight lies between the weights at these steps, and has no other sign.
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
        """Reject groups of one response, and warn about settings that make GDPO equal to GRPO."""
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
    """Return a warning about a condition for a component that is never above 0, a penalty.

    Args:
      key: the full key of the condition, which ends in the name of the component.
      outcome: the component that the condition refers to.
    """
    name = key.rpartition(".")[2]
    return (
        f"{key}: {name!r} is never above 0, and it counts as 0 where {outcome!r} fails. Failing "
        f"therefore earns the best value of {name!r}. Return a value that is never below 0, such "
        f"as 1 + penalty. Or remove the condition, and return None where {outcome!r} fails."
    )


@cache
def _warn_once(text: str) -> None:
    """Log a warning only once. `advantages_of` reads the settings again for each batch."""
    logger.warning(text)


@dataclass(frozen=True)
class Objective:
    """The quantity to optimise: the components in order, their weights, and the settings.

    Attributes:
      keys: the names of the components. Their order is the order of the columns of rewards.
      weights: the weight of each component, without schedules.
      optional: the components that may be missing.
      ranges: (low, high), in reward units, of the components that declare both.
      config: the settings as they are written.
      most_unscored: the share of a batch in which a component may be not scored, for the components
        that declare it.
      by_turn: the components whose value is a list, with one number for each turn.
      by_criterion: the components whose value is a mapping, with one number for each criterion.
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
        """The columns in which our reward manager passes the components to verl."""
        lists = [f"{key}{BY_TURN}" for key in self.keys if key in self.by_turn]
        mappings = [f"{key}{BY_CRITERION}" for key in self.keys if key in self.by_criterion]
        return [*self.keys, *lists, *mappings]

    @property
    def credits_turns(self) -> bool:
        """True if each turn has its own advantage."""
        return bool(self.by_turn) and self.config.estimator.credit != "answer"

    @property
    def masks_key(self) -> str:
        """The setting that needs the response masks as they were sampled, else an empty string.

        These masks are needed to find the turns of a response and to count its tokens.
        """
        if not (self.config.derived or self.credits_turns):
            return ""
        name = "derived" if self.config.derived else f"credit={self.config.estimator.credit}"
        return f"{self.config.wording.root}.gdpo.{name}"

    def check_groups(self, size: int | None = None) -> None:
        """Check the size of the groups, and try a user's own variant on a small batch.

        Args:
          size: the number of responses to a prompt; None if it is not known, or does not matter.

        Raises:
          ValueError: the groups are too small, or the user's function is wrong.
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
        """Return the weight of each component at a global step, with schedules."""
        schedule = self.config.schedule
        return tuple(
            schedule[key].weight(step) if key in schedule else weight
            for key, weight in zip(self.keys, self.weights, strict=True)
        )

    def settings_at(self, step: int) -> EstimatorSettings:
        """Return the settings of the estimator at a global step."""
        return replace(
            self.config.estimator,
            weights=self.weights_at(step),
            ranges=self.range_list,
            gate=self.gate,
            variant=self.config.chosen_variant.with_columns(self.keys),
        )

    def of_answers(self) -> Objective:
        """Return this objective with credit for complete responses instead of turns.

        It is for estimators other than ours, which know no turns.
        """
        estimator = replace(self.config.estimator, credit="answer")
        return replace(self, config=replace(self.config, estimator=estimator))

    def conditioned(self, raw: Tensor, looked_at: Tensor | None = None) -> Tensor:
        """Return the rewards after the conditions (`apply_conditions`): shape (B, K)."""
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
        """Compute the derived components, and return the rewards with their columns filled in.

        Args:
          raw: float64, shape (B, K), with the columns in the order of the keys.
          infos: the dict that the reward function returned for each response.
          lengths: the length of each response in tokens.
          groups: the group of each response. Responses in the same group share a prompt.

        Raises:
          ValueError: a function of a derived component failed. The error names the function and
            the group.
        """
        if not self.config.derived:
            return raw
        # An optional component that a dict lacks is None in it, so that functions need not check.
        defaults = dict.fromkeys(key for key in self.keys if key not in self.config.derived)
        complete = [defaults | dict(info) for info in infos]
        filled = raw.clone()
        for name, derived in self.config.derived.items():
            column = derived.column(complete, lengths, groups)
            filled[:, self.keys.index(name)] = torch.tensor(column, dtype=torch.float64)
        return filled

    def try_derived(self, info: Mapping[str, Any]) -> None:
        """Call the functions of the derived components on an invented group, to find faults early.

        Args:
          info: a dict that the reward function returned for some response.

        Raises:
          ValueError: a function cannot be imported, raises an exception, or returns no numbers.
        """
        low = dict(info)
        high = dict(info)
        for key in self.keys:
            if key not in self.config.derived:
                low[key], high[key] = self.ranges.get(key, (0.0, 1.0))
        unscored = torch.full((4, len(self.keys)), torch.nan, dtype=torch.float64)
        self.with_derived(unscored, [low, high] * 2, [12, 7, 30, 7], ["made up"] * 4)

    def score(self, raw: Tensor) -> Tensor:
        """Return the score, sum_k w_k r_k after the conditions: (B, K) to (B,), in reward units.

        Schedules are not used. A component that is not scored adds 0.
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
        """Decompose a batch of rewards with the settings of a global step.

        Args:
          raw: the rewards before the conditions: float64, shape (B, K), with the columns in the
            order of the keys, including derived components.
          group_ids, token_counts: as in `gdpo_verl.advantage.decompose`.
          step: the global step.
          graded: for each component by criterion, the criteria of each response.
          rows: the name of each response in error messages.

        Raises:
          ValueError: two responses of a group give a criterion different weights.
        """
        settings = self.settings_at(step)
        groups = factorize_groups(group_ids, raw)
        conditioned = self.conditioned(raw)
        # `counts` is 1 where the conditions of a component hold, 0 where a condition fails, and
        # NaN where a condition cannot be evaluated.
        counts = self.conditioned(torch.ones_like(raw), conditioned)
        criteria = []
        for key, of_responses in (graded or {}).items():
            column = self.keys.index(key)
            where = f"{self.config.wording.rewards}: {key!r}"
            table = Criteria.of(column, of_responses, groups, rows, where)
            criteria.append(table.conditioned(counts[:, column]))
        return decompose(
            raw, groups, token_counts, settings, conditioned=conditioned, criteria=criteria
        )

    @property
    def range_list(self) -> Ranges:
        """The range of each component, in the order of the columns; None without a range."""
        return [self.ranges.get(key) for key in self.keys]

    @property
    def gate(self) -> Gate | None:
        """The outcome gate, which refers to the outcome by its column; None without a gate."""
        gate = self.config.gate
        return None if gate is None else Gate(self.keys.index(gate["on"]), gate["when"])

    @property
    def outcome_column(self) -> int | None:
        """The column of the component that says whether the task is solved, if it is known.

        It is the component that the gate names. Without a gate it is the component that all
        conditions refer to, and otherwise the first of the usual names that exists.
        """
        if self.gate is not None:
            return self.gate.column
        on = {condition["on"] for _, condition in each_condition(self.config.conditions)}
        names = on if len(on) == 1 else [name for name in _OUTCOMES if name in self.keys]
        return next(map(self.keys.index, names), None)
