"""Measure the capacity of a set of rewards: how many of them vary in a group of a given size.

Let a prompt have N responses, from which a group of n responses is drawn without replacement. A
component varies in the group unless all scored responses of the group have the same value. With V
different values, c_v responses with the value v, and m responses that are not scored,

  P(component varies) = 1 - (sum_v C(c_v + m, n) - (V - 1) C(m, n)) / C(N, n)

The second term corrects for groups without any scored response, which the sum counts V times. The
capacity is the mean of these exact probabilities over the prompts, summed over the components.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from math import comb, isnan
from statistics import fmean
from typing import Any

from torch import Tensor

from gdpo_verl.lab.rundir.responses import places_by_group

SIZES = (4, 8, 16)


def varies(values: Sequence[float], size: int) -> float:
    """Return the probability that a component varies in a group drawn from a prompt's responses.

    Args:
      values: the component's value for each response; NaN if not scored.
      size: the number of responses in the group.

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
    rewards: Tensor,
    groups: Sequence[Hashable],
    keys: Sequence[str],
    *,
    size: int,
) -> dict[str, Any]:
    """Return the share of groups in which each component varies, for several group sizes.

    Args:
      rewards: the K components of each of the B responses, after conditions, shape (B, K); NaN if
        not scored.
      groups: the prompt of each response.
      keys: the names of the components.
      size: the group size of the run.

    Returns:
      a dict with `answers`, the number of responses to the prompt with the fewest; `size`;
      `varies`, the share by group size and component, for sizes up to `answers`; `teaches`, the sum
      of the shares over the components at `size`, None if unknown; `rewards`, which is K.
    """
    places_of_groups = places_by_group(groups)
    least = min(map(len, places_of_groups), default=0)
    shares_by_size: dict[int, dict[str, float]] = {}
    for n in sorted({*SIZES, size}):
        if 1 < n <= least:
            shares_by_size[n] = {}
            for k, key in enumerate(keys):
                chances = [varies(rewards[places, k].tolist(), n) for places in places_of_groups]
                shares_by_size[n][key] = fmean(chances)
    shares = shares_by_size.get(size, {})
    return {
        "answers": least,
        "size": size,
        "varies": {str(n): shares for n, shares in shares_by_size.items()},
        "teaches": sum(shares.values()) if shares else None,
        "rewards": len(keys),
    }
