"""GD²PO: responses whose rewards contradict each other are left out.

Use it where rewards disagree about a response and such responses are noise.
Assumes: the rewards agree on enough responses, because the other responses get no advantage.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gdpo_verl.advantage.decomposition import Decomposition
from gdpo_verl.advantage.variant import Variant

# As in the authors' code: smaller terms have no sign, and a sum of 0 has no ratio.
_NO_SIGN = 1e-8


def gd2po(d: Decomposition, *, tau: float = 0.8, hard: bool = False) -> Tensor:
    """Drop the responses in conflict, and scale the others by their group's kept share.

    With GDPO's terms c = w z, a response is in conflict when one of its terms is above 1e-8 and
    another below -1e-8. It is dropped when abs(sum_k c) / (sum_k abs(c) + 1e-8) < tau, and with
    ``hard`` always. The sum of each other response is multiplied by the share, and whitened over
    the kept responses alone (https://arxiv.org/abs/2606.16771). Where all are dropped, all are 0.

    With ``tau=0`` it is GDPO; with ``tau=1`` it is hard.

    Args:
      tau: from 0 to 1; 0.8 in the authors' scripts.
      hard: drop every conflict.
    """
    terms = d.terms
    conflict = (terms > _NO_SIGN).any(dim=1) & (terms < -_NO_SIGN).any(dim=1)
    if not hard:
        agreement = terms.sum(dim=1).abs() / (terms.abs().sum(dim=1) + _NO_SIGN)
        conflict &= agreement < tau
    kept = d.has_advantage & ~conflict
    codes, number = d.groups
    counts = terms.new_zeros(2, number)
    counts[0].index_add_(0, codes, kept.to(terms))
    counts[1].index_add_(0, codes, d.has_advantage.to(terms))
    # The share comes before the batch step, as in the authors' code.
    share = (counts[0] / counts[1].clamp(min=1))[codes]
    return (terms.sum(dim=1) * share).where(kept, torch.nan)


VARIANT = Variant("gd2po", gd2po, limits={"tau": (0.0, 1.0)}, may_drop_rows=True)
