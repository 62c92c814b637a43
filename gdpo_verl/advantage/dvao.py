"""DVAO: the centred sum, over the sum of the rewards' deviations in the group.

Use it for GRPO's scale and no batch step, with the rewards that vary more in a group weighing more
there.
Assumes: weights of at least 0.
"""

from __future__ import annotations

from torch import Tensor

from gdpo_verl.advantage.decomposition import Decomposition
from gdpo_verl.advantage.variant import Variant


def dvao(d: Decomposition) -> Tensor:
    """A_i = sum_k w_k (r[i, k] - mean_g r[:, k]) / sum_l w_l std_g r[:, l]

    with the population's standard deviation and no epsilon (https://arxiv.org/abs/2605.25604). A
    reward that varies more in a group weighs more there, and abs(A) is at most GRPO's, the same
    where all correlations are 1.

    With one component it is GRPO with the population's deviation. It equals GDPO before the
    batch step only where one component varies in each group, and then up to the population's
    deviation, sqrt(n / (n - 1)), and the weight.
    """
    weights = d.weights / d.largest_weight
    centred = (d.spread.deviation * weights).sum(dim=1)
    if not d.scale:
        return centred
    # A group in which nothing varies, which the paper leaves open, is 0.
    width = (d.spread.population_std * weights).sum(dim=1)
    return (centred / width).where(width > 0, 0.0)


VARIANT = Variant("dvao", dvao, whiten="none", linear=False, uses_epsilon=False, weights="positive")
