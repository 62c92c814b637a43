"""Conditioned rewards: a component counts only where other components meet their limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gdpo_verl.advantage.checks import is_number, type_name

LIMITS = ("at_least", "at_most", "equals")
"""The names of the limits. A condition has one or more of them."""


def apply_conditions(
    rewards: Tensor,
    keys: Sequence[str],
    conditions: Mapping[str, Any],
    looked_at: Tensor | None = None,
) -> Tensor:
    """Let a component count only where other components meet their limits.

    r_k <- r_k where r_l >= t, else 0

    This is Eq. 8 of https://arxiv.org/abs/2601.05242, and is applied to raw rewards. Where r_l is
    below its threshold t, r_k becomes 0, even if r_k was not scored. Where r_l is not scored, r_k
    becomes not scored. Values and thresholds are compared as float32, or in the half precision of
    the rewards, so that a reward of 0.7 reaches a threshold of 0.7 in each dtype.

    A component may have a list of conditions, all of which must hold. If one of them fails, the
    component is 0, whatever the other conditions are. A condition may refer to a component that has
    conditions itself. Then the value after those conditions is compared.

    >>> rewards = torch.tensor([[1.0, 1.0], [0.0, 1.0]])
    >>> condition = {"length": {"on": "correctness", "at_least": 1.0}}
    >>> apply_conditions(rewards, ["correctness", "length"], condition).tolist()
    [[1.0, 1.0], [0.0, 0.0]]
    >>> nested = {"runs": {"on": "parses", "equals": 1}, "passes": {"on": "runs", "at_least": 1}}
    >>> rewards = torch.tensor([[1.0, 1.0, 1.0], [0.0, 1.0, 1.0]])
    >>> apply_conditions(rewards, ["parses", "runs", "passes"], nested).tolist()
    [[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]]

    Args:
      rewards: float, shape (B, K), in reward units; NaN where not scored.
      keys: the names of the K components.
      conditions: ``{component: {"on": other component, "at_least": threshold}}``, or a list of
        such conditions for a component. `at_most` and `equals` may be used like `at_least`.
      looked_at: the rewards that are compared with the limits, in the same shape. By default these
        are the `rewards` after the conditions.

    Returns:
      float, shape (B, K), in reward units. The input is not changed.

    Raises:
      ValueError: there is not one name per component, a component is unknown, a field is missing
        or unknown, a limit is not a finite number, or components depend on each other in a cycle.
    """
    if not isinstance(rewards, Tensor) or rewards.ndim != 2 or rewards.shape[1] != len(keys):
        raise ValueError(
            f"rewards: expected a tensor of shape (B, {len(keys)}), one column for each of "
            f"{list(keys)}, found {tuple(getattr(rewards, 'shape', ())) or type_name(rewards)}"
        )
    check_conditions(keys, conditions)
    result = rewards.clone()
    looked_at = result if looked_at is None else looked_at
    for name in _order(conditions):
        target = keys.index(name)
        fails = torch.zeros(len(rewards), dtype=torch.bool, device=rewards.device)
        unscored = torch.zeros_like(fails)
        for condition in listed(conditions[name]):
            source = looked_at[:, keys.index(condition["on"])]
            unscored |= source.isnan()
            fails |= ~holds(source, condition) & ~source.isnan()
        # A failed condition is applied last, because it makes the reward 0 even if another
        # condition could not be evaluated, or if the reward itself was not scored.
        result[:, target] = result[:, target].masked_fill(unscored, torch.nan)
        result[:, target] = result[:, target].masked_fill(fails, 0.0)
    return result


def listed(conditions: Any) -> list[Any]:
    """Return the conditions of a component as a list; it may have one condition without a list."""
    return list(conditions) if isinstance(conditions, (list, tuple)) else [conditions]


def each_condition(conditions: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield each condition with the name of the component that has it."""
    for name, of_component in conditions.items():
        for condition in listed(of_component):
            yield name, condition


def _order(conditions: Mapping[str, Any]) -> list[str]:
    """Return the components with conditions, each after the components that its conditions name.

    Raises graphlib.CycleError if there is no such order.
    """
    # This import is not at the top of the module, because a plug-in that is installed but not used
    # should import as little as possible.
    from graphlib import TopologicalSorter

    graph: dict[str, list[str]] = {name: [] for name in conditions}
    for name, condition in each_condition(conditions):
        graph[name].append(condition["on"])
    return [name for name in TopologicalSorter(graph).static_order() if name in conditions]


def holds(values: Tensor, condition: Mapping[str, Any]) -> Tensor:
    """Return for each reward whether it meets all limits of a condition; NaN meets no limit."""
    met = ~values.isnan()
    for limit in LIMITS:
        if limit not in condition:
            continue
        threshold = condition[limit]
        if limit != "at_most":
            met &= reaches(values, threshold)
        if limit != "at_least":
            met &= reaches(-values, -threshold)
    return met


def reaches(values: Tensor, threshold: Tensor | float) -> Tensor:
    """Return for each reward whether it is at least a threshold; NaN reaches no threshold.

    The two are compared as float32, or in the half precision of the rewards, because of rounding:
    six turns of 1/6 add up to 0.9999999999999999, and 0.7 as float32 is 0.699999988. Compared as
    float32, they are equal to 1 and to 0.7.
    """
    rounded = values.to(torch.float32) if values.dtype.itemsize > 2 else values
    same = rounded == torch.as_tensor(threshold, dtype=torch.float64).to(rounded)
    # Numbers beyond the range of float32 become infinite, and would all seem equal.
    return (values >= threshold) | (same & rounded.isfinite())


def check_conditions(
    keys: Sequence[str], conditions: Mapping[str, Any], where: str = "conditions"
) -> None:
    """Raise ValueError for conditions that `apply_conditions` rejects.

    The text of the error begins with `where`.
    """
    if not isinstance(conditions, Mapping):
        raise ValueError(f"{where}: expected a mapping, found {conditions!r}")
    for name, condition in each_condition(conditions):
        place = f"{where}.{name}"
        fields = set(condition) if isinstance(condition, Mapping) else set()
        if "on" not in fields or len(fields) < 2 or not fields <= {"on", *LIMITS}:
            raise ValueError(
                f"{place}: expected {{on: component, at_least: number}}, or at_most or equals "
                f"instead, or a list of these, found {condition}"
            )
        for component in (name, condition["on"]):
            if component not in keys:
                raise ValueError(
                    f"{place}: {component!r} is not among the reward components {list(keys)}"
                )
        for limit in fields - {"on"}:
            number = condition[limit]
            if not is_number(number):
                raise ValueError(f"{place}.{limit}: expected a finite number, found {number!r}")
    empty = [name for name, of_component in conditions.items() if not listed(of_component)]
    if empty:
        raise ValueError(f"{where}.{empty[0]}: expected one or more conditions, found none")
    from graphlib import CycleError

    try:
        _order(conditions)
    except CycleError as error:
        # Each name in the cycle has a condition on the next one.
        cycle = " -> ".join(map(str, reversed(error.args[1])))
        raise ValueError(
            f"{where}: the conditions form a cycle: {cycle}. Remove one of them, so that each "
            "component can be evaluated after those to which its conditions refer."
        ) from None
