"""95 % intervals over questions, and the estimate of pass@k."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

LEVEL = 0.95
RESAMPLES = 10_000
SEED = 0
_AT_ONCE = 2_000_000  # numbers drawn at a time


@dataclass(frozen=True)
class MeanInterval:
    """A mean over questions with its interval, if there is one."""

    mean: float
    low: float | None = None
    high: float | None = None
    method: str = ""  # 'wilson' or 'bootstrap'


def wilson(successes: float, total: int) -> tuple[float, float]:
    """Wilson's score interval of a share (Wilson 1927).

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

    Questions are drawn with replacement within each stratum, `RESAMPLES` times from `SEED`.

    Args:
      strata: one value for each question; of two models, the difference of that question.
      weights: of the strata, adding up to 1.

    Returns:
      None where no question of a stratum differs from another, so that drawing says nothing.
    """
    generator = np.random.default_rng(SEED)
    means = np.zeros(RESAMPLES)
    varies = False
    for stratum, weight in zip(strata, weights, strict=True):
        values = np.asarray(stratum, dtype=np.float64)
        varies = varies or bool(np.ptp(values) > 0)
        # In blocks: all draws of thousands of questions at once take most of a gigabyte.
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

    Wilson's, where each value is 0 or 1 and there is one stratum; else the bootstrap's.

    Strata, none of them empty, and weights are those of `bootstrap`; where ``paired``, the values
    are differences, which are never shares.
    """
    mean = float(np.dot([np.mean(stratum) for stratum in strata], weights))
    if not paired and len(strata) == 1 and set(strata[0]) <= {0.0, 1.0}:
        return MeanInterval(mean, *wilson(sum(strata[0]), len(strata[0])), "wilson")
    interval = bootstrap(strata, weights)
    return MeanInterval(mean, *interval, "bootstrap") if interval else MeanInterval(mean)


def pass_at_k(correct: int, total: int, k: int) -> float:
    """Return the unbiased estimate of pass@k (https://arxiv.org/abs/2107.03374).

    1 - C(n - c, k) / C(n, k), where c of n responses pass.

    >>> pass_at_k(1, 4, 2)
    0.5
    """
    return 1.0 - math.comb(total - correct, k) / math.comb(total, k)
