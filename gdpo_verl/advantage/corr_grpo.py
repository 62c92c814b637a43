"""CorrGRPO: the centred sum, divided by the root of the sum of the rewards' correlations.

Use it where rewards measure nearly the same thing, and the sum should not count it twice.
Assumes: groups of three or more; correlations that do not cancel.
"""

from __future__ import annotations

import logging

from torch import Tensor

from gdpo_verl.advantage.decomposition import Decomposition
from gdpo_verl.advantage.variant import Variant

logger = logging.getLogger(__name__)

# A sum of correlations below the square of this number is rounding, of rewards that cancel.
_CANCELS = 1e-4


def corr_grpo(d: Decomposition) -> Tensor:
    """A_i = sum_k w_k (r[i, k] - mean_g r[:, k]) / (sqrt(max(sum_kl rho_kl, 0)) + epsilon)

    with the sample correlations rho of the weighted rewards in the group; a reward that is
    constant there has none, not even with itself (https://arxiv.org/abs/2609.36820; its code has
    epsilon within the root). Groups whose correlations add up to 0 get 0, with a warning.

    With one component it is Dr.GRPO, r - mean. In general it does not equal GDPO, because it keeps
    the rewards' units and does not whiten.
    """
    spread = d.spread
    weights = d.weights / d.largest_weight
    centred = (spread.deviation * weights).sum(dim=1)
    if not d.scale:
        return centred
    # Σ rho_kl = Σ_i (Σ_k u[i, k])² with unit vectors u_k: no K × K matrix for each group.
    length = spread.std * (spread.count - 1).clamp(min=1).sqrt()
    unit_vectors = (spread.deviation / length).where(spread.varies, 0.0) * weights.sign()
    codes, number = d.groups
    total = centred.new_zeros(number).index_add_(0, codes, unit_vectors.sum(dim=1).square())
    root = total.clamp(min=0.0).sqrt()[codes]
    # There the formula divides by epsilon alone, which gives an advantage of about 100,000.
    cancels = (root < _CANCELS) & spread.group_varies.any(dim=1)
    if bool(cancels.any()):
        logger.warning(
            "variant corr_grpo: in %d of %d groups the rewards' correlations add up to 0, and the "
            "formula has no finite value; their advantage is 0.",
            len(codes[cancels].unique()),
            number,
        )
    return (centred / (root + d.epsilon)).where(root >= _CANCELS, 0.0)


VARIANT = Variant("corr_grpo", corr_grpo, whiten="none", keeps_units=True, least_group=3)
