"""The tolerance within which two advantages are the same."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

DISTINCT_TOLERANCE = 1e-4
"""Two neighbours in a sorted list of advantages are the same if they differ by at most this number.

The estimator treats numbers of this size as noise (`gdpo_verl.advantage.NOISE_FLOOR`): when
components cancel, the epsilon in the group normalisation leaves a small remainder.
"""


def levels(advantages: Sequence[float]) -> list[int]:
    """Return the rank of each response among the distinct advantages of its group.

    The smallest advantage has the rank 0, and equal advantages have the same rank.

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
