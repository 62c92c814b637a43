"""GDPO's settings, read from verl's `algorithm` node and checked before training."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard, get_args

from gdpo_verl.advantage import Whiten, check_conditions
from gdpo_verl.advantage.arguments import LARGEST
from gdpo_verl.rewards.components import Component

_GDPO_KEYS = ("whiten", "epsilon", "conditions", "metrics")


@dataclass(frozen=True)
class GdpoConfig:
    """The settings as written; `resolve` fits them to what a reward returns.

    Attributes:
      reward_keys: `algorithm.gdpo_reward_keys`; None means the declared components.
      reward_weights: `algorithm.gdpo_reward_weights`, by component; None means all 1.
      scale: `algorithm.norm_adv_by_std_in_grpo`.
      whiten, epsilon, conditions, metrics: the keys of `algorithm.gdpo`.
    """

    reward_keys: tuple[str, ...] | None = None
    reward_weights: Mapping[str, float] | None = None
    scale: bool = True
    whiten: Whiten = "token"
    epsilon: float = 1e-6
    conditions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    metrics: bool = True

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
        for key in node:
            if key not in _GDPO_KEYS:
                raise ValueError(
                    f"algorithm.gdpo.{key}: unknown key; known are {list(_GDPO_KEYS)}."
                    f"{did_you_mean(key, _GDPO_KEYS)}"
                )
        keys = _read_keys(algorithm.get("gdpo_reward_keys"))
        return cls(
            reward_keys=keys,
            reward_weights=_read_weights(algorithm.get("gdpo_reward_weights"), keys),
            scale=_read_flag("algorithm", algorithm, "norm_adv_by_std_in_grpo", cls.scale),
            whiten=_read_whiten(node.get("whiten", cls.whiten)),
            epsilon=_read_epsilon(node.get("epsilon", cls.epsilon)),
            conditions=_read_conditions(node.get("conditions")),
            metrics=_read_flag("algorithm.gdpo", node, "metrics", cls.metrics),
        )

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
        return Objective(keys, chosen, frozenset(optional), _finite_ranges(declared, keys), self)


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


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """' Did you mean …?' when a known word is close, else the empty string."""
    close = difflib.get_close_matches(str(word), [str(name) for name in known], n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


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
