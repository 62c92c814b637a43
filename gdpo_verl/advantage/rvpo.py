"""RVPO: a smooth minimum of the normalised rewards in place of their sum.

Use it where the worst reward of a response should decide.
Assumes: equal weights; rewards that are comparable once normalised.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gdpo_verl.advantage.decomposition import Decomposition
from gdpo_verl.advantage.variant import Variant

# With this k the result is the minimum to six digits, and with its inverse the result is the mean.
_SHARPEST = 1e6


def rvpo(d: Decomposition, *, k: float = 1.0) -> Tensor:
    """Compute a smooth minimum of the normalised rewards of each response.

    a_i = -(1 / k) ln((1 / M) sum_j exp(-k z[i, j]))

    The sum runs over the M components that are scored in the response, and the result is whitened
    (https://arxiv.org/abs/2605.05750). RVPO is not defined with weights, so they are rejected.

    As k goes to 0, RVPO becomes GDPO with equal weights. As k goes to infinity, a_i becomes the
    smallest z.

    Args:
      k: the sharpness, above 0. The larger it is, the nearer the result is to the minimum.
    """
    # A reward that is constant in the group counts with z = 0. A reward that is not scored does
    # not count.
    scored = d.spread.scored
    z = d.normalized.where(scored, torch.inf)
    least = z.amin(dim=1, keepdim=True).where(d.scored[:, None], 0.0)
    # Exponents of at most 0 cannot overflow, and expm1 keeps the digits where k is small.
    less = torch.expm1(-k * (z - least)).where(scored, 0.0)
    mean = less.sum(dim=1) / scored.sum(dim=1).clamp(min=1)
    return least[:, 0] - torch.log1p(mean) / k


VARIANT = Variant(
    "rvpo",
    rvpo,
    limits={"k": (1 / _SHARPEST, _SHARPEST)},
    linear=False,
    weights="equal",
    reads_only_z=True,
)
