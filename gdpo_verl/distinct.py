"""The definition of "the same advantage"."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

DISTINCT_TOLERANCE = 1e-4
"""Neighbours in order of size that differ by at most this number are the same advantage.

The estimator treats the same size as noise (`gdpo_verl.advantage.NOISE_FLOOR`), because components
that cancel leave a small remainder, which comes from the groups' epsilon.
"""


def levels(advantages: Sequence[float]) -> list[int]:
    """Number the distinct advantages of a group from the smallest, for each response.

    >>> levels([0.5, -1.0, 0.50004, 0.7])
    [1, 0, 1, 2]
    """
    order = sorted(range(len(advantages)), key=lambda i: advantages[i])
    numbers = [0] * len(advantages)
    for smaller, larger in itertools.pairwise(order):
        numbers[larger] = numbers[smaller]
        if advantages[larger] - advantages[smaller] > DISTINCT_TOLERANCE:
            numbers[larger] += 1
    return numbers
