"""SA-MRPO: a reward counts less the nearer its mean is to the upper end of its range.

Use it where a reward that is nearly solved should leave more weight to the others.
Assumes: each component declares its range; weights of at least 0.
"""

from __future__ import annotations

from torch import Tensor

from gdpo_verl.advantage.decomposition import Decomposition
from gdpo_verl.advantage.variant import Variant


def sa_mrpo(d: Decomposition, *, gamma: float = 0.25) -> Tensor:
    """s_k = (mean r_k - low_k) / (high_k - low_k);  a_i = sum_k w_k (1 - s_k)^gamma z[i, k]

    whitened, with the population's standard deviation in both steps and no epsilon
    (https://arxiv.org/abs/2608.16072). The mean runs over the batch's scored responses. If all
    rewards are saturated, the result is 0, where the formula in the paper is 0 / 0.

    With ``gamma=0`` it is GDPO with the population's deviations: in groups of equal size that is
    GDPO times sqrt(n / (n - 1)) for n whitened tokens or responses, except for epsilon.

    Args:
      gamma: 0 does not change the weights; the paper uses 0.25 and 0.5.
    """
    assert d.ranges is not None
    low, high = d.ranges.unbind(dim=1)
    scored = d.spread.scored
    mean = d.rewards.nan_to_num(0.0).sum(dim=0) / scored.sum(dim=0).clamp(min=1)
    # A mean outside the declared range would give a negative base below, whose power is NaN.
    solved = ((mean - low) / (high - low)).clamp(0.0, 1.0)
    weights = d.weights / d.largest_weight * (1.0 - solved) ** gamma
    std = d.spread.population_std if d.scale else 1.0
    z = (d.spread.deviation / std).where(d.spread.varies, 0.0)
    return (z * weights).sum(dim=1)


VARIANT = Variant(
    "sa_mrpo",
    sa_mrpo,
    limits={"gamma": (0.0, 100.0)},
    unbiased=False,
    uses_epsilon=False,
    needs_ranges=True,
    weights="positive",
)
