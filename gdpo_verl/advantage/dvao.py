"""DVAO: the centred sum, divided by the sum of the rewards' deviations in the group.

Use it for the scale of GRPO without a batch step, where a reward that varies more in a group should
have a larger weight there.
Assumes: weights of at least 0.
"""

from __future__ import annotations

from torch import Tensor

from gdpo_verl.advantage.decomposition import Decomposition
from gdpo_verl.advantage.variant import Variant


def dvao(d: Decomposition) -> Tensor:
    """Divide the centred weighted sum by the weighted sum of the deviations in the group.

    A_i = sum_k w_k (r[i, k] - mean_g r[:, k]) / sum_l w_l std_g r[:, l]

    The standard deviation is the population's (with n instead of n - 1), and there is no epsilon
    (https://arxiv.org/abs/2605.25604). A reward that varies more in a group has a larger weight
    there. abs(A) is at most as large as with GRPO, and equally large if all correlations are 1.

    With one component the result is GRPO with the population's deviation. It equals GDPO before
    whitening only if a single component varies in each group, except for the factor
    sqrt(n / (n - 1)) of the population's deviation and for the weight of the component.
    """
    weights = d.weights / d.largest_weight
    centred = (d.spread.deviation * weights).sum(dim=1)
    if not d.scale:
        return centred
    # The paper does not define the result for a group in which nothing varies. Here it is 0.
    width = (d.spread.population_std * weights).sum(dim=1)
    return (centred / width).where(width > 0, 0.0)


VARIANT = Variant("dvao", dvao, whiten="none", linear=False, uses_epsilon=False, weights="positive")
