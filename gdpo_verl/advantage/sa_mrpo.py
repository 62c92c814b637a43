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
    """Reduce the weight of each reward as its mean approaches the upper end of its range.

    s_k = (mean r_k - low_k) / (high_k - low_k);  a_i = sum_k w_k (1 - s_k)^gamma z[i, k]

    The mean runs over the scored responses of the batch. The result is whitened. Both the group
    normalisation and the whitening use the population's standard deviation (with n instead of
    n - 1), and no epsilon (https://arxiv.org/abs/2608.16072). If all rewards are saturated, the
    result is 0, where the formula in the paper is 0 / 0.

    With ``gamma=0`` the result is GDPO with the population's deviations. In groups of equal size
    that is GDPO times sqrt(n / (n - 1)) for n whitened tokens or responses, except for epsilon.

    A target replaces high_k, so that the weight is 0 when the mean has reached the target. Targets
    are not part of the paper. Other methods reach targets with multipliers that are updated in
    each step and stored in the checkpoint. Here the weight depends on the batch alone.

    Args:
      gamma: the exponent. With 0 the weights do not change; the paper uses 0.25 and 0.5.
      targets: for each component the mean at which it is solved, in reward units, above low_k, or
        None. In the configuration they are given by name: ``targets: {format: 0.9}``.
      targets_floor: the lowest (1 - s_k)^gamma of a component with a target.
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
    # A mean above the declared range would give a negative number below, and its power would be
    # NaN.
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
