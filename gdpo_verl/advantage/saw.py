"""SAW: a reward counts more the more it varies in the batch, relative to its mean.

Use it where the scales of the rewards differ, and rewards that still vary should count more.
Assumes: a meaningful mean to divide by, that is, ranges with a declared lower end.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gdpo_verl.advantage.decomposition import Decomposition
from gdpo_verl.advantage.variant import Variant


def saw(d: Decomposition, *, delta: float = 0.0) -> Tensor:
    """Weight each normalised reward by its coefficient of variation in the batch.

    a_i = sum_k v_k w_k z[i, k],  v_k = K CV_k / sum_l CV_l,  CV = std(x) / mean(x)

    Here x = r - low + delta over the scored responses of the batch, std is the unbiased standard
    deviation, and K is the number of components (https://arxiv.org/abs/2606.07705). The result is
    whitened. `low` is the lower end of the component's declared range; without a range it is the
    smallest value in the batch. The authors' code has two rewards, and adds a fixed 3 to the one
    with the range [-3, 3].

    SAW equals GDPO if all coefficients of variation are equal, and with one component.

    Args:
      delta: the number that is added to the shifted rewards, in reward units, at least 0.
    """
    scored = d.spread.scored
    low = d.rewards.where(scored, torch.inf).amin(dim=0)
    if d.ranges is not None:
        low = d.ranges[:, 0].where(~d.ranges[:, 0].isnan(), low)
    count = scored.sum(dim=0)
    shifted = (d.rewards - low + delta).where(scored, 0.0)
    # CV does not change if all values are divided by the same number. The values are divided by
    # the largest one, so that no square overflows or underflows.
    largest = shifted.abs().amax(dim=0)
    shifted = shifted / largest.where(largest > 0, 1.0)
    mean = shifted.sum(dim=0) / count.clamp(min=1)
    squares = (shifted - mean).where(scored, 0.0).square().sum(dim=0)
    std = (squares / (count - 1).clamp(min=1)).sqrt()
    variation = (std / mean.abs()).where((std > 0) & (mean != 0), 0.0)
    # If no reward varies, all rewards count equally.
    total = variation.sum()
    factor = variation * len(variation) / total if total > 0 else torch.ones_like(variation)
    return (d.terms * factor).sum(dim=1)


VARIANT = Variant("saw", saw, limits={"delta": (0.0, 1e300)})
