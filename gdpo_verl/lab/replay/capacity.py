"""The capacity of a set of rewards at a group size, from more responses to each prompt.

A group of n responses is drawn from the N that a prompt has. A component varies in it unless all
scored responses have the same value: of N responses, c_v have the value v and m are not scored,

  P(n varies) = 1 - (sum_v C(c_v + m, n) - (V - 1) C(m, n)) / C(N, n)

with V values. The mean over the prompts is exact.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from math import comb, isnan
from statistics import fmean
from typing import Any

from gdpo_verl.lab.rundir.responses import places_by_group

SIZES = (4, 8, 16)


def varies(values: Sequence[float], size: int) -> float:
    """Return the probability that a component varies among `size` of a prompt's responses.

    >>> varies([0.0, 0.0, 0.0, 1.0], 2)
    0.5
    """
    counts = Counter(value for value in values if not isnan(value))
    unscored = len(values) - counts.total()
    if not counts:
        return 0.0
    same = sum(comb(count + unscored, size) for count in counts.values())
    same -= (len(counts) - 1) * comb(unscored, size)
    return 1 - same / comb(len(values), size)


def capacity(
    rewards: Sequence[Sequence[float]],
    groups: Sequence[Hashable],
    keys: Sequence[str],
    *,
    size: int,
) -> dict[str, Any]:
    """Return the share of groups in which each component varies, by group size.

    Args:
      rewards: K components of each response after conditions; NaN where not scored.
      groups: the prompt of each response.
      size: the size of the run's groups.

    Returns:
      `answers` (N of the prompt with the fewest responses), `size`, `varies` (by size and
      component; only for sizes up to N), and `teaches` (the sum over the components at `size`, of
      `rewards`).
    """
    places_of_groups = places_by_group(groups)
    least = min(map(len, places_of_groups), default=0)
    columns: dict[str, list[list[float]]] = {}
    for k, key in enumerate(keys):
        columns[key] = []
        for places in places_of_groups:
            columns[key].append([rewards[place][k] for place in places])
    shares_by_size: dict[int, dict[str, float]] = {}
    for n in sorted({*SIZES, size}):
        if 1 < n <= least:
            shares_by_size[n] = {}
            for key, column in columns.items():
                shares_by_size[n][key] = fmean(varies(values, n) for values in column)
    shares = shares_by_size.get(size, {})
    return {
        "answers": least,
        "size": size,
        "varies": {str(n): shares for n, shares in shares_by_size.items()},
        "teaches": sum(shares.values()) if shares else None,
        "rewards": len(keys),
    }
