"""Tchebycheff: a response is judged by the reward that is farthest below its highest value.

Use it as a baseline that improves the worst reward, before any normalisation.
Assumes: each component declares its range; weights of at least 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gdpo_verl.advantage.decomposition import Decomposition
from gdpo_verl.advantage.groups import Spread
from gdpo_verl.advantage.variant import Variant


def tchebycheff(d: Decomposition, *, rho: float = 0.05) -> Tensor:
    """Compute the augmented Tchebycheff scalarisation with GRPO's normalisation.

    d[i, k] = w_k (high_k - r[i, k]) / (high_k - low_k);  s_i = -(max_k d[i, k] + rho sum_k d[i, k])

    The maximum and the sum run over the components that are scored in the response. Then s is
    normalised within its group, as GRPO normalises a sum. The result is not whitened. The distances
    d are shares of the declared ranges, so the scales of the rewards do not matter. The method
    follows Steuer and Choo (Mathematical Programming 26, 1983), who minimise the distance to an
    ideal point. With one component the result is that of GRPO.

    Args:
      rho: the factor of the sum, at least 0. With 0 only the worst component counts.
    """
    assert d.ranges is not None
    low, high = d.ranges.unbind(dim=1)
    scored = d.spread.scored
    distance = (high - d.rewards) / (high - low) * (d.weights / d.largest_weight)
    # A component that is not scored must not count. In the maximum its distance is -inf, which is
    # never the largest, and in the sum it is 0.
    worst = distance.where(scored, -torch.inf).amax(dim=1)
    distance = distance.where(scored, 0.0)
    score = -(worst + rho * distance.sum(dim=1)).where(d.scored, torch.nan)
    # Scores that differ only by the rounding of their sums are treated as equal.
    noise = (1 + rho) * distance.abs().sum(dim=1) * (2 * len(low) * torch.finfo(score.dtype).eps)
    return Spread(score[:, None], d.groups, noise[:, None]).normalized(d.epsilon, d.scale)[:, 0]


VARIANT = Variant(
    "tchebycheff",
    tchebycheff,
    limits={"rho": (0.0, 1e6)},
    whiten="none",
    linear=False,
    needs_ranges=True,
    weights="positive",
)
