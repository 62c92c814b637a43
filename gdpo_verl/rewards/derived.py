"""Rewards that compare a response with its group: by its length, or by its rank in a component.

Use them in `algorithm.gdpo.derived`, for rewards that need the other responses of the group.
Assumes: several responses to a prompt.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gdpo_verl.advantage.conditions import reaches


def relative_length(
    rewards: Sequence[Mapping[str, Any]],
    lengths: Sequence[int],
    *,
    outcome: str,
    at_least: float = 1.0,
) -> list[float | None]:
    """Compare the length of each response with the other responses that pass.

    A response passes if its outcome reaches a threshold. Its reward is

    (longest - length) / (longest - shortest)

    over the responses that pass: 1 for the shortest, and 0 for the longest. If all of them have the
    same length, it is 1. The result is None for a response that does not pass. It is None for all
    responses if fewer than two pass.

    Args:
      rewards: the dict that the reward function returned for each response of one group.
      lengths: the length of each response in tokens.
      outcome: the component that says whether a response passes.
      at_least: the lowest value that passes, compared as in a condition (`reaches`).

    >>> right = [{"correctness": value} for value in (1, 1, 0, 1)]
    >>> relative_length(right, [10, 30, 5, 15], outcome="correctness")
    [1.0, 0.0, None, 0.75]
    """
    passing = reaches(_values(rewards, outcome), at_least).tolist()
    passing_lengths = [length for length, passes in zip(lengths, passing, strict=True) if passes]
    if len(passing_lengths) < 2:
        return [None] * len(lengths)
    longest = max(passing_lengths)
    width = longest - min(passing_lengths)
    values = [(longest - length) / width if width else 1.0 for length in lengths]
    return [value if passes else None for value, passes in zip(values, passing, strict=True)]


def rank(
    rewards: Sequence[Mapping[str, Any]], lengths: Sequence[int], *, of: str
) -> list[float | None]:
    """Rank each response within its group by a component, from 0 to 1.

    The rank is the share of the other scored responses with a lower value. A response with an equal
    value counts half. The rank is None if the component is not scored, or if no other response is
    scored.

    Args:
      rewards: the dict that the reward function returned for each response of one group.
      lengths: ignored.
      of: the name of the component.

    >>> rank([{"quality": value} for value in (0.2, 0.9, 0.2, None)], [1] * 4, of="quality")
    [0.25, 1.0, 0.25, None]
    """
    values = _values(rewards, of)
    scored = values[~values.isnan()]
    others = len(scored) - 1

    def place(value: Tensor) -> float:
        not_below = int(reaches(scored, value).sum())
        not_above = int(reaches(value, scored).sum())
        return (others + not_above - not_below) / (2 * others)

    return [None if value.isnan() or not others else place(value) for value in values]


def _values(rewards: Sequence[Mapping[str, Any]], name: str) -> Tensor:
    """Return the values of a component: shape (B,), NaN where not scored.

    The value of a component by turn is the sum of its list.
    """
    values = [_value(info, name) for info in rewards]
    return torch.tensor(values, dtype=torch.float64)


def _value(info: Mapping[str, Any], name: str) -> float:
    if name not in info:
        raise ValueError(f"expected one of {sorted(info)}, found {name!r}")
    value = info[name]
    if isinstance(value, (list, tuple)):
        turns = [float(turn) for turn in value if turn is not None]
        value = sum(turns) if turns else None
    return math.nan if value is None else float(value)
