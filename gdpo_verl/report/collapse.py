"""Different rewards with the same advantage in one group, and rewards that do not vary."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gdpo_verl.distinct import levels
from gdpo_verl.rundir.metrics import is_number

Vector = tuple[float | None, ...]


@dataclass(frozen=True)
class Combination:
    """Rollouts of one group that got the same components.

    Attributes:
      rewards: one a component; None where it is not scored.
      count: how many rollouts.
      grpo, gdpo: their advantages.
      collapsed: GRPO gives it the advantage of another combination, GDPO does not.
    """

    rewards: Vector
    count: int
    grpo: float
    gdpo: float
    collapsed: bool


def reward_vector(row: Mapping[str, Any], components: Sequence[str]) -> Vector:
    """A row's components, None where it is not scored."""
    return tuple(float(row[key]) if is_number(row.get(key)) else None for key in components)


def constant_components(vectors: Sequence[Vector]) -> tuple[bool, ...]:
    """Return for each component whether all its scored values are equal; False if it has none.

    >>> constant_components([(1.0, 0.0, None), (1.0, 2.0, None)])
    (True, False, False)
    """
    columns = (
        {value for value in column if value is not None} for column in zip(*vectors, strict=True)
    )
    return tuple(len(values) == 1 for values in columns)


def stuck_at(vectors: Sequence[Vector]) -> Vector | None:
    """The rewards of a dead group: nothing varies, so that neither estimator learns from it.

    Returns None where something varies or nothing is scored.

    >>> stuck_at([(1.0, None), (1.0, 2.0)]), stuck_at([(1.0, 0.0), (1.0, 2.0)])
    ((1.0, 2.0), None)
    """
    columns = [
        {value for value in column if value is not None} for column in zip(*vectors, strict=True)
    ]
    if not any(columns) or any(len(values) > 1 for values in columns):
        return None
    return tuple(next(iter(values), None) for values in columns)


def combinations(
    vectors: Sequence[Vector], advantages: Sequence[tuple[float, float]]
) -> tuple[Combination, ...]:
    """A group's different rewards, the largest GRPO advantage first.

    Args:
      vectors: the rewards of each rollout of the group.
      advantages: of each rollout, GRPO's and GDPO's.
    """
    counts = Counter(vectors)
    firsts: dict[Vector, tuple[float, float]] = {}
    for rewards, pair in zip(vectors, advantages, strict=True):
        firsts.setdefault(rewards, pair)
    order = sorted(firsts, key=lambda rewards: firsts[rewards], reverse=True)
    grpo, gdpo = ([firsts[rewards][k] for rewards in order] for k in (0, 1))
    collapsed = _taken_for_equal(grpo, gdpo)
    return tuple(
        Combination(rewards, counts[rewards], *firsts[rewards], collapsed[i])
        for i, rewards in enumerate(order)
    )


def cancels(found: Sequence[Combination]) -> bool:
    """The reverse: whether GDPO gives one advantage to combinations that GRPO tells apart."""
    return any(_taken_for_equal([each.gdpo for each in found], [each.grpo for each in found]))


def _taken_for_equal(first: Sequence[float], second: Sequence[float]) -> list[bool]:
    """Tell whose first advantage is also that of one with another second advantage."""
    seconds = defaultdict(set)
    pairs = list(zip(levels(first), levels(second), strict=True))
    for same, other in pairs:
        seconds[same].add(other)
    return [len(seconds[same]) > 1 for same, _ in pairs]
