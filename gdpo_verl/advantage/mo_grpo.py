"""MO-GRPO: the sum of the normalised rewards, without a batch step.

Use it to see the effect of GDPO's batch step.
Assumes: the learning rate fits advantages that are not whitened.
"""

from __future__ import annotations

from torch import Tensor

from gdpo_verl.advantage.decomposition import Decomposition
from gdpo_verl.advantage.variant import Variant


def mo_grpo(d: Decomposition) -> Tensor:
    """Add the normalised rewards, and do not whiten the sum.

    A_i = sum_k w_k z[i, k]

    See https://arxiv.org/abs/2509.22047. MO-GRPO is exactly GDPO with ``whiten="none"``.
    """
    return d.combined


VARIANT = Variant("mo_grpo", mo_grpo, whiten="none", reads_only_z=True)
