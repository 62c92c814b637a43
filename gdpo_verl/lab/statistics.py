"""95 % intervals of shares and means over questions, groups and pairs of runs; and pass@k."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, stdev
from typing import Any

import numpy as np

LEVEL = 0.95
RESAMPLES = 10_000
SEED = 0
_AT_ONCE = 2_000_000  # the largest number of values drawn at a time
# The number of times that groups are resampled. If there are more than `_LOTS` groups, they are
# first joined into `_LOTS` lots, and the lots are resampled.
DRAWS = 400
_LOTS = 4096
# Student's t by the number of pairs. For more pairs the last value is used, which is too wide.
_T = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}


@dataclass(frozen=True)
class MeanInterval:
    """A mean over questions with its interval; `low` and `high` are None if there is none."""

    mean: float
    low: float | None = None
    high: float | None = None
    method: str = ""  # 'wilson' or 'bootstrap'


def wilson(successes: float, total: int) -> tuple[float, float]:
    """Return Wilson's score interval of a share (Wilson 1927).

    (p + z²/2n ± z √(p(1-p)/n + z²/4n²)) / (1 + z²/n), where z = 1.96

    >>> [round(end, 4) for end in wilson(8, 10)]
    [0.4902, 0.9433]
    """
    z = NormalDist().inv_cdf(0.5 + LEVEL / 2)
    share = successes / total
    centre = share + z * z / (2 * total)
    half = z * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    scale = 1 + z * z / total
    return max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale)


def bootstrap(
    strata: Sequence[Sequence[float]], weights: Sequence[float]
) -> tuple[float, float] | None:
    """Return the percentile interval of the weighted sum of the strata's means.

    Questions are drawn with replacement within each stratum, `RESAMPLES` times with seed `SEED`.

    Args:
      strata: one value for each question; for two models, the difference of both values.
      weights: the weights of the strata, which add up to 1.

    Returns:
      the ends of the interval; None if all questions of each stratum have the same value, because
      the bootstrap then gives no interval.
    """
    generator = np.random.default_rng(SEED)
    means = np.zeros(RESAMPLES)
    varies = False
    for stratum, weight in zip(strata, weights, strict=True):
        values = np.asarray(stratum, dtype=np.float64)
        varies = varies or bool(np.ptp(values) > 0)
        # All draws of thousands of questions at once would take almost a gigabyte.
        rows = max(1, _AT_ONCE // len(values))
        for start in range(0, RESAMPLES, rows):
            size = min(rows, RESAMPLES - start)
            drawn = generator.integers(len(values), size=(size, len(values)))
            means[start : start + size] += values[drawn].mean(axis=1) * weight
    if not varies:
        return None
    low, high = np.quantile(means, [0.5 - LEVEL / 2, 0.5 + LEVEL / 2])
    return float(low), float(high)


def mean_interval(
    strata: Sequence[Sequence[float]], weights: Sequence[float], *, paired: bool = False
) -> MeanInterval:
    """Return the weighted sum of the strata's means with its interval.

    The interval is Wilson's if there is one stratum and each value is 0 or 1. Otherwise it is the
    bootstrap's.

    Args:
      strata, weights: as for `bootstrap`; no stratum may be empty.
      paired: True if the values are differences, for which Wilson's interval is not valid.
    """
    mean = float(np.dot([np.mean(stratum) for stratum in strata], weights))
    if not paired and len(strata) == 1 and set(strata[0]) <= {0.0, 1.0}:
        return MeanInterval(mean, *wilson(sum(strata[0]), len(strata[0])), "wilson")
    interval = bootstrap(strata, weights)
    return MeanInterval(mean, *interval, "bootstrap") if interval else MeanInterval(mean)


def pass_at_k(correct: int, total: int, k: int) -> float:
    """Return the unbiased estimate of pass@k (https://arxiv.org/abs/2107.03374).

    The estimate is 1 - C(n - c, k) / C(n, k), where c of n responses pass.

    >>> pass_at_k(1, 4, 2)
    0.5
    """
    return 1.0 - math.comb(total - correct, k) / math.comb(total, k)


def draws_of_groups(by_group: Mapping[str, Any]) -> dict[str, Any]:
    """Return each kind of sum over all groups, and over each resampling of the groups.

    Args:
      by_group: for each kind, the sums of each group: shape (G, …), float64.

    Returns:
      for each kind, shape (1 + DRAWS, …): first the sum over all groups, then the sums over G
      groups drawn with replacement.
    """
    groups = len(next(iter(by_group.values())))
    lots = min(groups, _LOTS)
    counts = np.random.default_rng(SEED).multinomial(lots, np.full(lots, 1 / lots), DRAWS)
    counts = np.concatenate([np.ones((1, lots)), counts])
    sums = {}
    for name, values in by_group.items():
        in_lots = np.zeros((lots, *values.shape[1:]))
        np.add.at(in_lots, np.arange(groups) % lots, values)
        sums[name] = np.tensordot(counts, in_lots, axes=1)
    return sums


def interval_of_draws(values: Any) -> tuple[float, float, float]:
    """Return a statistic of all groups, and the ends of its interval.

    Args:
      values: the statistic of all groups and of each draw, shape (1 + DRAWS,).
    """
    with warnings.catch_warnings():
        # The statistic may be NaN in all draws; NumPy warns then.
        warnings.simplefilter("ignore", RuntimeWarning)
        low, high = np.nanquantile(values[1:], [0.025, 0.975])
    return float(values[0]), float(low), float(high)


def half_interval(differences: Sequence[float]) -> float:
    """Return half the width of the interval of the mean of paired differences, by Student's t.

    The result is t s / sqrt(n). For more than ten pairs, t is the value for ten, so that the
    interval is too wide.

    >>> round(half_interval([1.0, 2.0, 3.0]), 3)  # 4.303 / sqrt(3)
    2.484
    """
    count = len(differences)
    return _T[min(count, max(_T))] * stdev(differences) / math.sqrt(count)
