"""GRPO, the baseline: add the components, then normalise the sum within its group.

Use it as a baseline for GDPO, or with a single reward.
Assumes: combinations of rewards with the same sum need not be distinguished.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from gdpo_verl.advantage.checks import EPSILON, result_dtype
from gdpo_verl.advantage.decomposition import EstimatorSettings, decompose
from gdpo_verl.advantage.groups import GroupIds
from gdpo_verl.advantage.tokens import MaskedRows


def grpo_advantages(
    rewards: Tensor,
    group_ids: GroupIds,
    response_mask: Tensor,
    *,
    weights: Sequence[float] | None = None,
    epsilon: float = EPSILON,
    scale: bool = True,
) -> Tensor:
    """Compute the advantages of GRPO: add the components, then normalise the sum in its group.

    A[i, t] = mask[i, t] (s_i - mean_g s) / (std_g s + epsilon),  s_i = sum_k w_k r[i, k]

    >>> import torch
    >>> rewards = torch.tensor([[1.0, 0.0], [0.0, 0.0], [1.0, 1.0], [0.0, 0.0]])
    >>> grpo_advantages(rewards, [0, 0, 1, 1], torch.ones(4, 1))[:, 0].round(decimals=4)
    tensor([ 0.7071, -0.7071,  0.7071, -0.7071])

    Arguments, result and errors are those of `gdpo_advantages`. The result is not whitened. A
    component that is not scored adds 0 to the sum. Sums that differ only by the rounding of the
    addition are treated as equal.
    """
    settings = EstimatorSettings(weights=weights, epsilon=epsilon, scale=scale)
    decomposition = decompose(rewards, group_ids, settings=settings)
    rows = MaskedRows(response_mask, len(decomposition.raw), result_dtype(rewards))
    return rows.scale_(decomposition.grpo)
