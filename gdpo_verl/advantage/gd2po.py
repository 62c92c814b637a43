"""GD²PO: responses whose rewards contradict each other are left out.

Use it where rewards disagree about a response and such responses are noise.
Assumes: the rewards agree on enough responses, because the other responses get no advantage.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gdpo_verl.advantage.decomposition import Decomposition
from gdpo_verl.advantage.variant import Variant

# The authors' code uses this number twice. Terms that are smaller have no sign, and the number is
# added to a divisor that could be 0.
_NO_SIGN = 1e-8


def gd2po(d: Decomposition, *, tau: float = 0.8, hard: bool = False) -> Tensor:
    """Drop responses in conflict, and scale the others by the share of their group that is kept.

    GDPO's terms are c = w z. A response is in conflict if one of its terms is above 1e-8 and
    another term is below -1e-8. It is dropped if abs(sum_k c) / (sum_k abs(c) + 1e-8) < tau. With
    ``hard`` it is always dropped. The sum of each other response is multiplied by the share of its
    group that is kept. The results are whitened over the kept responses alone
    (https://arxiv.org/abs/2606.16771). If all responses are dropped, all advantages are 0.

    With ``tau=0`` the result is that of GDPO, and with ``tau=1`` it is the same as with ``hard``.

    Args:
      tau: the threshold, from 0 to 1. The authors' scripts use 0.8.
      hard: whether to drop every response in conflict.
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
    # As in the authors' code, the sums are multiplied by the share before they are whitened.
    share = (counts[0] / counts[1].clamp(min=1))[codes]
    return (terms.sum(dim=1) * share).where(kept, torch.nan)


VARIANT = Variant("gd2po", gd2po, limits={"tau": (0.0, 1.0)}, may_drop_rows=True)
