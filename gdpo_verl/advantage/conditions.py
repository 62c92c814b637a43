"""Conditioned rewards: a component counts only where another component reached its threshold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gdpo_verl.advantage.checks import is_number, type_name


def apply_conditions(
    rewards: Tensor,
    keys: Sequence[str],
    conditions: Mapping[str, Mapping[str, Any]],
    looked_at: Tensor | None = None,
) -> Tensor:
    """Let a component count only where another component reached its threshold.

    r_k <- r_k where r_l >= t, else 0 (Eq. 8 of https://arxiv.org/abs/2601.05242), on raw
    rewards. Where r_l is not scored, r_k becomes not scored. Where r_l is below its threshold, r_k
    becomes 0, even if it was not scored. Values and thresholds are compared as float32, or in the
    half precision of the rewards, so that 0.7 reaches a threshold of 0.7 in each of them.

    >>> rewards = torch.tensor([[1.0, 1.0], [0.0, 1.0]])
    >>> condition = {"length": {"on": "correctness", "at_least": 1.0}}
    >>> apply_conditions(rewards, ["correctness", "length"], condition).tolist()
    [[1.0, 1.0], [0.0, 0.0]]

    Args:
      rewards: float, shape (B, K), in reward units; NaN where not scored.
      keys: the names of the K components.
      conditions: ``{component: {"on": other component, "at_least": threshold}}``.
      looked_at: the rewards that are compared with the thresholds, of the same shape; default:
        `rewards`.

    Returns:
      float, shape (B, K), in reward units; the input is not changed.

    Raises:
      ValueError: there is not one name per component, a component is unknown, a field is missing
        or unknown, a threshold is not a finite number, or a condition refers to a component that
        has a condition itself.
    """
    if not isinstance(rewards, Tensor) or rewards.ndim != 2 or rewards.shape[1] != len(keys):
        raise ValueError(
            f"rewards: expected a tensor of shape (B, {len(keys)}), one column for each of "
            f"{list(keys)}, found {tuple(getattr(rewards, 'shape', ())) or type_name(rewards)}"
        )
    check_conditions(keys, conditions)
    looked_at = rewards if looked_at is None else looked_at
    result = rewards.clone()
    for name, condition in conditions.items():
        target = keys.index(name)
        source = looked_at[:, keys.index(condition["on"])]
        # 0 where the condition fails, also for a reward that is not scored: it does not count
        # there.
        kept = torch.where(reaches(source, condition["at_least"]), rewards[:, target], 0.0)
        result[:, target] = torch.where(source.isnan(), torch.nan, kept)
    return result


def reaches(values: Tensor, threshold: Tensor | float) -> Tensor:
    """Return where rewards are at least a threshold, compared as float32 or in half precision.

    Six turns of 1/6 add up to 0.9999999999999999, and 0.7 as float32 is 0.699999988. Compared as
    float32, they are equal to 1 and to 0.7. NaN reaches no threshold.
    """
    rounded = values.to(torch.float32) if values.dtype.itemsize > 2 else values
    same = rounded == torch.as_tensor(threshold, dtype=torch.float64).to(rounded)
    # Beyond the range of float32 both are infinite, and every such value would seem equal.
    return (values >= threshold) | (same & rounded.isfinite())


def check_conditions(
    keys: Sequence[str], conditions: Mapping[str, Mapping[str, Any]], where: str = "conditions"
) -> None:
    """Raise the ValueError that `apply_conditions` documents; it begins with `where`."""
    if not isinstance(conditions, Mapping):
        raise ValueError(f"{where}: expected a mapping, found {conditions!r}")
    for name, condition in conditions.items():
        place = f"{where}.{name}"
        if not isinstance(condition, Mapping) or set(condition) != {"on", "at_least"}:
            raise ValueError(
                f"{place}: expected {{on: component, at_least: number}}, found {condition}"
            )
        for component in (name, condition["on"]):
            if component not in keys:
                raise ValueError(
                    f"{place}: {component!r} is not among the reward components {list(keys)}"
                )
        threshold = condition["at_least"]
        if not is_number(threshold):
            raise ValueError(f"{place}.at_least: expected a finite number, found {threshold!r}")
        if condition["on"] in conditions:
            raise ValueError(
                f"{place}.on: {condition['on']!r} has a condition itself. Conditions look at the "
                "raw rewards and cannot be chained. Name a component without a condition."
            )
