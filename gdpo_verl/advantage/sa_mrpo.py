"""SA-MRPO: a reward counts less the nearer its mean is to the upper end of its range.

Use it where a reward that is nearly solved should leave more weight to the others, or where a
reward should be raised to a target and no further.
Assumes: each component declares its range; weights of at least 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gdpo_verl.advantage.checks import is_number
from gdpo_verl.advantage.decomposition import Decomposition
from gdpo_verl.advantage.variant import Variant


def sa_mrpo(
    d: Decomposition,
    *,
    gamma: float = 0.25,
    targets: Sequence[float | None] | None = None,
    targets_floor: float = 0.0,
) -> Tensor:
    """s_k = (mean r_k - low_k) / (high_k - low_k);  a_i = sum_k w_k (1 - s_k)^gamma z[i, k]

    whitened, with the population's standard deviation in both steps and no epsilon
    (https://arxiv.org/abs/2608.16072). The mean runs over the batch's scored responses. If all
    rewards are saturated, the result is 0, where the formula in the paper is 0 / 0.

    With ``gamma=0`` it is GDPO with the population's deviations: in groups of equal size that is
    GDPO times sqrt(n / (n - 1)) for n whitened tokens or responses, except for epsilon.

    A target takes the place of high_k, so that the weight is 0 where the mean has reached it. This
    is not part of the paper. Others reach targets with multipliers that are updated in each step
    and stored in the checkpoint; this weight depends on the batch alone.

    Args:
      gamma: 0 does not change the weights; the paper uses 0.25 and 0.5.
      targets: of each component the mean from which on it is solved, in reward units, above
        low_k; or None. In the configuration they are named: ``targets: {format: 0.9}``.
      targets_floor: the least (1 - s_k)^gamma of a component with a target.
    """
    assert d.ranges is not None
    low, high = d.ranges.unbind(dim=1)
    ends = high.tolist()
    targets = [None] * len(ends) if targets is None else list(targets)
    fits = len(targets) == len(ends)
    for column, (target, least) in enumerate(zip(targets, low.tolist(), strict=False)):
        if target is not None:
            fits = fits and is_number(target) and target > least
            ends[column] = target
    if not fits:
        raise ValueError(
            f"targets: expected {len(low)} numbers above the lower ends {low.tolist()} of the "
            f"ranges, or None, found {targets}"
        )
    high = torch.tensor(ends, dtype=high.dtype, device=high.device)
    has_target = torch.tensor([target is not None for target in targets], device=high.device)
    scored = d.spread.scored
    mean = d.rewards.nan_to_num(0.0).sum(dim=0) / scored.sum(dim=0).clamp(min=1)
    # A mean outside the declared range would give a negative base below, whose power is NaN.
    solved = ((mean - low) / (high - low)).clamp(0.0, 1.0)
    left = (1.0 - solved) ** gamma
    left = left.clamp(min=targets_floor).where(has_target, left)
    weights = d.weights / d.largest_weight * left
    std = d.spread.population_std if d.scale else 1.0
    z = (d.spread.deviation / std).where(d.spread.varies, 0.0)
    return (z * weights).sum(dim=1)


VARIANT = Variant(
    "sa_mrpo",
    sa_mrpo,
    limits={"gamma": (0.0, 100.0), "targets_floor": (0.0, 1.0)},
    by_component=("targets",),
    unbiased=False,
    uses_epsilon=False,
    needs_ranges=True,
    weights="positive",
)
