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

# If the sum of the correlations is below the square of this number, the rewards cancel, and the sum
# is only a rounding error.
_CANCELS = 1e-4


def corr_grpo(d: Decomposition) -> Tensor:
    """Divide the centred weighted sum by the root of the sum of the correlations in the group.

    A_i = sum_k w_k (r[i, k] - mean_g r[:, k]) / (sqrt(max(sum_kl rho_kl, 0)) + epsilon)

    Here rho are the sample correlations of the weighted rewards in the group
    (https://arxiv.org/abs/2609.36820). The correlations of a reward that is constant in the group,
    including the one with itself, count as 0. The authors' code has epsilon within the root. If the
    correlations of a group add up to 0, its advantages are 0, and a warning is logged.

    With one component the result is Dr.GRPO, r - mean. In general CorrGRPO does not equal GDPO,
    because it keeps the rewards' units and does not whiten.
    """
    spread = d.spread
    weights = d.weights / d.largest_weight
    centred = (spread.deviation * weights).sum(dim=1)
    if not d.scale:
        return centred
    # Σ rho_kl = Σ_i (Σ_k u[i, k])² with unit vectors u_k. This needs no K × K matrix per group.
    length = spread.std * (spread.count - 1).clamp(min=1).sqrt()
    unit_vectors = (spread.deviation / length).where(spread.varies, 0.0) * weights.sign()
    codes, number = d.groups
    total = centred.new_zeros(number).index_add_(0, codes, unit_vectors.sum(dim=1).square())
    root = total.clamp(min=0.0).sqrt()[codes]
    # In groups whose correlations cancel, the formula divides by epsilon alone, which would give an
    # advantage of about 100,000.
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
