"""Weights that change in the course of a training, as functions of the global step alone."""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gdpo_verl.advantage.checks import LARGEST
from gdpo_verl.text import did_you_mean

Shape = Literal["linear", "cosine", "list"]
_RAMP, _LIST = ("from", "to", "steps", "shape"), ("steps", "weights")


@dataclass(frozen=True)
class Schedule:
    """A component's weight at each global step; a resumed run goes on with the same.

    A ramp goes from ``weights[0]`` at step 0 to ``weights[1]`` at ``steps[1]`` and stays there; a
    list has ``weights[i]`` from ``steps[i]`` on. The weight acts after the normalisation, which
    would cancel a factor in the reward.

    >>> Schedule((0, 200), (0.0, 1.0)).weight(50)
    0.25
    >>> Schedule((0, 100), (0.0, 2.0), "list").weight(100)
    2.0
    """

    steps: tuple[int, ...]
    weights: tuple[float, ...]
    shape: Shape = "linear"

    def weight(self, step: int) -> float:
        """The weight at a global step; before the first of a list its first."""
        if self.shape == "list":
            return self.weights[max(bisect.bisect_right(self.steps, step) - 1, 0)]
        share = min(max(step, 0) / self.steps[-1], 1.0)
        if self.shape == "cosine":
            share = (1.0 - math.cos(math.pi * share)) / 2.0
        return self.weights[0] + (self.weights[1] - self.weights[0]) * share


def read_schedules(node: Any) -> dict[str, Schedule]:
    """`algorithm.gdpo.schedule`: a schedule for each component that has one.

    ``{from: 0.0, to: 1.0, steps: 200}``, with ``shape: cosine`` if not linear, or
    ``{steps: [0, 100, 200], weights: [0.0, 0.5, 1.0]}``.

    Raises:
      ValueError: names the key in full.
    """
    where = "algorithm.gdpo.schedule"
    if node is None:
        return {}
    if not isinstance(node, Mapping):
        raise ValueError(f"{where}: expected {{component: {{from, to, steps}}}}, found {node!r}")
    return {str(name): _read(given, f"{where}.{name}") for name, given in node.items()}


def check_schedules(schedules: Mapping[str, Schedule], weights: Mapping[str, float]) -> None:
    """Raise ValueError for an unknown component, one with a weight besides, or no weight at all.

    Args:
      weights: of all components, without schedules.
    """
    for name in schedules:
        where = f"algorithm.gdpo.schedule.{name}"
        if name not in weights:
            raise ValueError(
                f"{where}: not among the reward components {list(weights)}."
                f"{did_you_mean(name, weights)}"
            )
        if weights[name] != 1.0:
            raise ValueError(
                f"{where}: the schedule is the weight of {name!r}, and "
                f"algorithm.gdpo_reward_weights gives it {weights[name]:g} besides. Remove one."
            )
    if schedules and not any(weight for name, weight in weights.items() if name not in schedules):
        last = max(each.steps[-1] for each in schedules.values())
        for step in range(1, last + 1):
            if not any(each.weight(step) for each in schedules.values()):
                raise ValueError(
                    f"algorithm.gdpo.schedule: at step {step} all weights are 0, and nothing would "
                    "be learnt"
                )


def _read(given: Any, where: str) -> Schedule:
    if not isinstance(given, Mapping):
        raise ValueError(f"{where}: expected {{from, to, steps}}, found {given!r}")
    listed = "weights" in given
    known = _LIST if listed else _RAMP
    for key in given:
        if key not in known:
            raise ValueError(
                f"{where}.{key}: unknown key; known are {list(known)}.{did_you_mean(key, known)}"
            )
    return _read_list(given, where) if listed else _read_ramp(given, where)


def _read_ramp(given: Mapping[str, Any], where: str) -> Schedule:
    steps, shape = given.get("steps"), given.get("shape", "linear")
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ValueError(f"{where}.steps: expected a number of steps above 0, found {steps!r}")
    if shape not in ("linear", "cosine"):
        raise ValueError(f"{where}.shape: expected linear or cosine, found {shape!r}")
    low, high = (_number(given.get(key), f"{where}.{key}") for key in ("from", "to"))
    return Schedule((0, steps), (low, high), shape)


def _read_list(given: Mapping[str, Any], where: str) -> Schedule:
    steps: Any = given.get("steps")
    weights = given["weights"]
    if not _is_list(steps) or not all(isinstance(s, int) and s >= 0 for s in steps):
        raise ValueError(
            f"{where}.steps: expected a list of steps, as many as weights, found {steps!r}"
        )
    if list(steps) != sorted(set(steps)):
        raise ValueError(f"{where}.steps: expected rising steps, found {list(steps)}")
    if not _is_list(weights) or len(weights) != len(steps):
        raise ValueError(
            f"{where}.weights: expected {len(steps)}, one for each step, found {weights!r}"
        )
    numbers = tuple(_number(weight, f"{where}.weights") for weight in weights)
    return Schedule(tuple(steps), numbers, "list")


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and bool(value)


def _number(value: Any, where: str) -> float:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not abs(value) <= LARGEST:
        raise ValueError(f"{where}: expected a finite number, found {value!r}")
    return float(value)
