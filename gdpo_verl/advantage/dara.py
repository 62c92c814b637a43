"""DARA: a reward counts more the fewer groups it varies in.

Use it where a sparse reward varies in few groups and the other rewards hide it.
Assumes: a reward that varies in few groups deserves a larger weight. This includes rare noise.
"""

from __future__ import annotations

from torch import Tensor

from gdpo_verl.advantage.decomposition import Decomposition
from gdpo_verl.advantage.groups import groups_with_any
from gdpo_verl.advantage.variant import Variant


def dara(d: Decomposition, *, w_max: float = 5.0, symmetric: bool = False) -> Tensor:
    """Enlarge the terms of the rewards that vary in few groups.

    a_i = sum_k c[i, k] + (v_k - 1) max(c[i, k], 0),  v_k = min(w_max, sqrt(max_l pi_l / pi_k))

    Here c = w z are GDPO's terms, and pi_k is the share of the groups in which component k varies.
    The result is whitened (https://arxiv.org/abs/2610.00574). Only positive terms are enlarged.
    With ``symmetric=True``, the other version in the paper, a_i = sum_k v_k c[i, k].

    DARA equals GDPO if all components vary in equally many groups, and with one component.

    Args:
      w_max: the largest factor, at least 1.
      symmetric: whether negative terms are enlarged, too.
    """
    # pi_k is a share of the groups in which the component is scored. The rewards decide whether a
    # component varies. Normalised values cannot decide it, because rounding can make them larger
    # than 1e-8.
    varying = groups_with_any(d.spread.varies, d.groups).sum(dim=0)
    scored = groups_with_any(d.spread.scored, d.groups).sum(dim=0)
    share = varying / scored.clamp(min=1)
    factor = (share.max() / share).sqrt().clamp(max=w_max).where(varying > 0, 1.0).to(d.terms)
    larger = d.terms if symmetric else d.terms.clamp(min=0.0)
    return (d.terms + (factor - 1.0) * larger).sum(dim=1)


VARIANT = Variant("dara", dara, limits={"w_max": (1.0, 1e6)})
