"""GDPO's settings, read from verl's `algorithm` node and checked before training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeGuard, get_args

from gdpo_verl.advantage import VARIANTS, Gate, Variant, Whiten, check_conditions, find_variant
from gdpo_verl.advantage.arguments import LARGEST
from gdpo_verl.advantage.gate import When
from gdpo_verl.advantage.schedule import Schedule, check_schedules, read_schedules
from gdpo_verl.advantage.variant import Ranges
from gdpo_verl.advantage.variants import OWN, own_name
from gdpo_verl.rewards.components import Component
from gdpo_verl.text import did_you_mean

_GDPO_KEYS = ("variant", "whiten", "epsilon", "conditions", "gate", "schedule", "metrics")
# Looked for, in this order, where neither a gate nor a condition names the outcome.
_OUTCOMES = ("correctness", "accuracy", "pass", "outcome")


@dataclass(frozen=True)
class GdpoConfig:
    """The settings as written; `resolve` fits them to what a reward returns.

    Attributes:
      reward_keys: `algorithm.gdpo_reward_keys`; None means the declared components.
      reward_weights: `algorithm.gdpo_reward_weights`, by component; None means all 1.
      scale: `algorithm.norm_adv_by_std_in_grpo`.
      variant: `algorithm.gdpo.variant`, and `options`, its settings, as written.
      whiten: None is the variant's own.
      epsilon, conditions, gate, schedule, metrics: the keys of `algorithm.gdpo`.
    """

    reward_keys: tuple[str, ...] | None = None
    reward_weights: Mapping[str, float] | None = None
    scale: bool = True
    whiten: Whiten | None = None
    epsilon: float = 1e-6
    conditions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    metrics: bool = True
    variant: str = "gdpo"
    options: Mapping[str, Any] = field(default_factory=dict)
    gate: Mapping[str, Any] | None = None
    schedule: Mapping[str, Schedule] = field(default_factory=dict)

    @classmethod
    def from_algorithm(cls, algorithm: Mapping[str, Any]) -> GdpoConfig:
        """Read verl's `algorithm` node (a mapping or an omegaconf DictConfig).

        Raises:
          ValueError: names the key in full, what was found and what is expected.
        """
        algorithm = _plain(algorithm)
        node = algorithm.get("gdpo")
        node = {} if node is None else node
        if not isinstance(node, Mapping):
            raise ValueError(f"algorithm.gdpo: expected a mapping, found {node!r}")
        variant, options = _read_variant(node)
        keys = _read_keys(algorithm.get("gdpo_reward_keys"))
        return cls(
            reward_keys=keys,
            reward_weights=_read_weights(algorithm.get("gdpo_reward_weights"), keys),
            scale=_read_flag("algorithm", algorithm, "norm_adv_by_std_in_grpo", cls.scale),
            variant=variant,
            options=options,
            whiten=_read_whiten(node["whiten"]) if "whiten" in node else None,
            epsilon=_read_epsilon(node.get("epsilon", cls.epsilon)),
            conditions=_read_conditions(node.get("conditions")),
            gate=_read_gate(node.get("gate")),
            schedule=read_schedules(node.get("schedule")),
            metrics=_read_flag("algorithm.gdpo", node, "metrics", cls.metrics),
        )

    @cached_property
    def estimator(self) -> Variant:
        """The variant with its settings; a function of the user's own is imported.

        Raises:
          ValueError: it cannot be imported, or has no such setting.
        """
        where = f"algorithm.gdpo.{own_name(self.variant)}."
        found = find_variant(self.variant, "algorithm.gdpo.variant")
        return found.with_settings(self.options, where) if self.options else found

    def resolve(
        self, declared: Sequence[Component], returned: Sequence[str] | None = None
    ) -> Objective:
        """The components that enter the estimator, in order, with weights and conditions.

        Args:
          declared: what the reward function or manager declares; may be empty.
          returned: the keys of a dict that it returned, where one is known.

        Raises:
          ValueError: nothing is declared or named, or a key, weight or condition names
            something that the reward does not return.
        """
        names = [component.name for component in declared]
        if self.reward_keys is None and not names:
            raise ValueError(
                "algorithm.gdpo_reward_keys: the reward declares no components and none are named"
                f"{_among(returned)}. Set algorithm.gdpo_reward_keys=[...] (on a stock verl "
                "configuration with a leading +), or declare them with "
                "gdpo_verl.rewards.components.declares."
            )
        keys = self.reward_keys or tuple(names)
        optional = {component.name for component in declared if component.optional}
        known = [key for key in returned or () if key != "score"]
        for key in keys:
            if returned is not None and key not in known and key not in optional:
                raise ValueError(
                    f"algorithm.gdpo_reward_keys: {key!r} is not among the reward components "
                    f"{known}. Return it from compute_score or remove the key."
                    f"{did_you_mean(key, known)}"
                )
        weights = dict(self.reward_weights or {})
        for key in weights:
            if key not in keys:
                raise ValueError(
                    f"algorithm.gdpo_reward_weights.{key}: not among the reward components "
                    f"{list(keys)}.{did_you_mean(key, keys)}"
                )
        check_conditions(keys, self.conditions)
        chosen = tuple(float(weights.get(key, 1.0)) for key in keys)
        if not any(chosen):
            raise ValueError(f"algorithm.gdpo_reward_weights: all are zero, found {list(chosen)}")
        check_schedules(self.schedule, dict(zip(keys, chosen, strict=True)))
        self._check_gate(keys)
        objective = Objective(
            keys, chosen, frozenset(optional), _finite_ranges(declared, keys), self
        )
        self._check_variant(objective)
        return objective

    def _check_gate(self, keys: Sequence[str]) -> None:
        if self.gate is not None and self.gate["on"] not in keys:
            raise ValueError(
                f"algorithm.gdpo.gate.on: {self.gate['on']!r} is not among the reward components "
                f"{list(keys)}.{did_you_mean(self.gate['on'], keys)}"
            )

    def _check_variant(self, objective: Objective) -> None:
        """Hold the components against a variant of ours; a user's own asks for nothing."""
        if (variant := VARIANTS.get(self.variant)) is None:
            return
        for step in {0, *(step for each in self.schedule.values() for step in each.steps)}:
            variant.check_weights(objective.weights_at(step), "algorithm.gdpo_reward_weights")
        try:
            variant.check_ranges(objective.range_list, objective.keys, "algorithm.gdpo.variant")
        except ValueError as error:
            raise ValueError(
                f"{error} Declare them beside the reward: @declares(Component(name, low, high)) of "
                "gdpo_verl.rewards."
            ) from None


@dataclass(frozen=True)
class Objective:
    """The quantity to optimise: components in order, their weights, and the settings.

    Attributes:
      ranges: low and high, in reward units, of the components that declare both.
    """

    keys: tuple[str, ...]
    weights: tuple[float, ...]
    optional: frozenset[str]
    ranges: Mapping[str, tuple[float, float]]
    config: GdpoConfig

    def weights_at(self, step: int) -> tuple[float, ...]:
        """The weights at a global step: the scheduled ones, and the others as they are."""
        schedule = self.config.schedule
        return tuple(
            schedule[key].weight(step) if key in schedule else weight
            for key, weight in zip(self.keys, self.weights, strict=True)
        )

    @property
    def range_list(self) -> Ranges:
        """The ranges in the order of the keys, None where there is none."""
        return [self.ranges.get(key) for key in self.keys]

    @property
    def gate(self) -> Gate | None:
        """The outcome gate, by column."""
        gate = self.config.gate
        return None if gate is None else Gate(self.keys.index(gate["on"]), gate["when"])

    @property
    def outcome(self) -> str | None:
        """The component that says whether the task was solved, where that can be known.

        The gate's, else the one that all conditions are on, else the first of the usual names.
        """
        if self.config.gate is not None:
            return str(self.config.gate["on"])
        on = {str(condition["on"]) for condition in self.config.conditions.values()}
        if len(on) == 1:
            return on.pop()
        return next((name for name in _OUTCOMES if name in self.keys), None)

    @property
    def outcome_column(self) -> int | None:
        """The column of the outcome."""
        return None if self.outcome not in self.keys else self.keys.index(self.outcome)


def _plain(node: Any) -> dict[str, Any]:
    from omegaconf import DictConfig, OmegaConf

    if isinstance(node, DictConfig):
        node = OmegaConf.to_container(node, resolve=True)
    return dict(node or {})


def _finite_ranges(
    declared: Sequence[Component], keys: Sequence[str]
) -> dict[str, tuple[float, float]]:
    return {
        component.name: (float(component.low), float(component.high))
        for component in declared
        if component.name in keys
        and _is_number(component.low)
        and _is_number(component.high)
        and component.low < component.high
    }


def _read_keys(keys: Any) -> tuple[str, ...] | None:
    if keys is None:
        return None
    where = "algorithm.gdpo_reward_keys"
    if isinstance(keys, str) or not isinstance(keys, Sequence) or not keys:
        raise ValueError(f"{where}: expected a list of component names, found {keys!r}")
    if (
        not all(isinstance(key, str) for key in keys)
        or len(set(keys)) < len(keys)
        or "score" in keys
    ):
        raise ValueError(
            f"{where}: expected distinct names of components, 'score' (their sum) not among them, "
            f"found {list(keys)}"
        )
    return tuple(keys)


def _read_weights(weights: Any, keys: tuple[str, ...] | None) -> dict[str, float] | None:
    where = "algorithm.gdpo_reward_weights"
    if weights is None:
        return None
    if not isinstance(weights, Mapping):
        if isinstance(weights, str) or not isinstance(weights, Sequence):
            raise ValueError(
                f"{where}: expected a list or {{component: weight}}, found {weights!r}"
            )
        if keys is None:
            raise ValueError(
                f"{where}: a list of weights needs algorithm.gdpo_reward_keys, which gives their "
                "order. Set it, or write {component: weight}."
            )
        if len(weights) != len(keys):
            raise ValueError(
                f"{where}: expected {len(keys)} weights, one for each of "
                f"algorithm.gdpo_reward_keys {list(keys)}, found {len(weights)}: {list(weights)}"
            )
        weights = dict(zip(keys, weights, strict=True))
    for key, weight in weights.items():
        if not _is_number(weight):
            raise ValueError(f"{where}: expected finite numbers, found {weight!r} for {key!r}")
    # Without keys the components, and so the weights that stay 1, are known only to `resolve`.
    if keys is not None and set(weights) >= set(keys) and not any(weights.values()):
        raise ValueError(f"{where}: all are zero, nothing would be learnt: {weights}")
    return dict(weights)


def _read_conditions(conditions: Any) -> dict[str, Mapping[str, Any]]:
    conditions = {} if conditions is None else conditions
    if not isinstance(conditions, Mapping):
        raise ValueError(f"algorithm.gdpo.conditions: expected a mapping, found {conditions!r}")
    # YAML 1.1 reads an unquoted key `on` as true.
    return {
        name: {"on" if key is True else key: value for key, value in condition.items()}
        if isinstance(condition, Mapping)
        else condition
        for name, condition in conditions.items()
    }


def _read_flag(where: str, node: Mapping[str, Any], key: str, default: bool) -> bool:
    value = node.get(key, default)
    if not isinstance(value, bool):
        raise ValueError(f"{where}.{key}: expected true or false, found {value!r}")
    return value


def _read_variant(node: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The variant and its settings; keys of other variants, and unknown ones, are refused."""
    name = node.get("variant", "gdpo")
    own = isinstance(name, str) and name.startswith(OWN)
    chosen = own_name(name) if own else find_variant(name, "algorithm.gdpo.variant").name
    known = [*_GDPO_KEYS, *([chosen] if own else []), *(v for v in VARIANTS if v != "gdpo")]
    for key, value in node.items():
        if key not in known:
            raise ValueError(
                f"algorithm.gdpo.{key}: unknown key; known are {list(_GDPO_KEYS)} and the names of "
                f"variants.{did_you_mean(key, known)}"
            )
        if key not in (*_GDPO_KEYS, chosen):
            first = f".{next(iter(value))}" if isinstance(value, Mapping) and value else ""
            raise ValueError(
                f"algorithm.gdpo.{key}{first}: a setting of the variant {key!r}, but "
                f"algorithm.gdpo.variant is {name!r}. Remove it, or choose that variant."
            )
    options = node.get(chosen) or {}
    if not isinstance(options, Mapping):
        raise ValueError(f"algorithm.gdpo.{chosen}: expected a mapping, found {options!r}")
    if not own:
        VARIANTS[chosen].with_settings(options, f"algorithm.gdpo.{chosen}.")
        _check_epsilon_counts(VARIANTS[chosen], node)
    return name, dict(options)


def _check_epsilon_counts(variant: Variant, node: Mapping[str, Any]) -> None:
    if not variant.uses_epsilon and node.get("epsilon") is not None:
        raise ValueError(
            f"algorithm.gdpo.epsilon: the variant {variant.name!r} has none, so that it would have "
            "no effect. Remove it."
        )


def _read_gate(gate: Any) -> dict[str, Any] | None:
    where = "algorithm.gdpo.gate"
    if gate is None:
        return None
    if not isinstance(gate, Mapping):
        raise ValueError(f"{where}: expected {{on: component}}, found {gate!r}")
    # YAML 1.1 reads an unquoted key `on` as true.
    given = {"on" if key is True else key: value for key, value in gate.items()}
    for key in given:
        if key not in ("on", "when"):
            raise ValueError(
                f"{where}.{key}: unknown key; known are ['on', 'when']."
                f"{did_you_mean(key, ('on', 'when'))}"
            )
    if not isinstance(given.get("on"), str):
        raise ValueError(f"{where}.on: expected a component, found {given.get('on')!r}")
    when = given.get("when", "constant")
    if when not in get_args(When):
        raise ValueError(f"{where}.when: expected one of {list(get_args(When))}, found {when!r}")
    return {"on": given["on"], "when": when}


def _read_whiten(value: Any) -> Whiten:
    if value not in get_args(Whiten):
        raise ValueError(
            f"algorithm.gdpo.whiten: expected one of {list(get_args(Whiten))}, found {value!r}"
        )
    return value  # type: ignore[no-any-return]


def _read_epsilon(value: Any) -> float:
    if not _is_number(value) or value < 0:
        raise ValueError(f"algorithm.gdpo.epsilon: expected a number >= 0, found {value!r}")
    return float(value)


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= LARGEST


def _among(returned: Sequence[str] | None) -> str:
    return f", although it returns {list(returned)}" if returned else ""
