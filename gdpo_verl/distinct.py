"""The one meaning of "the same advantage"."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

DISTINCT_TOLERANCE = 1e-4
"""In order of size, neighbours that differ by no more are the same advantage.

The estimator takes as much for noise (`gdpo_verl.advantage.NOISE_FLOOR`): of components that
cancel, the groups' epsilon leaves a rest.
"""


def levels(advantages: Sequence[float]) -> list[int]:
    """The number of each response's advantage, counted from the smallest of the group.

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
