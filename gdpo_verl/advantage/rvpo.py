"""RVPO: a smooth minimum of the normalised rewards in place of their sum.

Use it where the worst reward of a response should decide.
Assumes: equal weights; rewards that are comparable once normalised.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gdpo_verl.advantage.decomposition import Decomposition
from gdpo_verl.advantage.variant import Variant

_SHARPEST = 1e6  # the minimum to six digits; its inverse gives the mean


def rvpo(d: Decomposition, *, k: float = 1.0) -> Tensor:
    """a_i = -(1 / k) ln((1 / M) sum_j exp(-k z[i, j]))

    over the M components that are scored in the response, then whitened
    (https://arxiv.org/abs/2605.05750). It is not defined with weights, which are rejected.

    As k goes to 0 it becomes GDPO with equal weights; as k goes to infinity, the smallest z.

    Args:
      k: how near the result is to the minimum instead of the mean, above 0.
    """
    # A reward that is constant in the group has z = 0 and counts; one that is not scored does not.
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
