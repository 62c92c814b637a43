"""GDPO: normalise each component within its group, add, whiten over the batch."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from gdpo_verl.advantage.arguments import check_rewards, result_dtype
from gdpo_verl.advantage.decomposition import decompose
from gdpo_verl.advantage.groups import GroupIds
from gdpo_verl.advantage.tokens import MaskedRows
from gdpo_verl.advantage.whitening import Whiten


def gdpo_advantages(
    rewards: Tensor,
    group_ids: GroupIds,
    response_mask: Tensor,
    *,
    weights: Sequence[float] | None = None,
    whiten: Whiten = "token",
    epsilon: float = 1e-6,
    scale: bool = True,
) -> Tensor:
    """GDPO: normalise each component within its group, add, whiten over the batch.

    a_i = sum_k w_k z[i, k];  A[i, t] = mask[i, t] (a_i - mean a) / sqrt(var a + 1e-8)

    where z is `group_normalize` (Eq. 4, 5 and 7 of https://arxiv.org/abs/2601.05242), and
    mean and unbiased variance run over all response tokens (``whiten="token"``, as the
    paper's verl code does) or over all responses (``"sequence"``, Eq. 6).

    >>> import torch
    >>> rewards = torch.tensor([[1.0, 0.0], [0.0, 0.0], [1.0, 1.0], [0.0, 0.0]])
    >>> mask = torch.ones(4, 2)
    >>> gdpo_advantages(rewards, [0, 0, 1, 1], mask)[:, 0].round(decimals=4)
    tensor([ 0.5916, -0.5916,  1.1832, -1.1832])

    Args:
      rewards: shape (B, K), in reward units; NaN where not scored.
      group_ids: B hashables, or a tensor of shape (B,); equal ids share a prompt.
      response_mask: shape (B, T), 0 or 1 of any dtype, holes allowed.
      weights: K finite numbers, not all zero; only their ratios matter unless
        ``whiten="none"``. Default: all 1.
      whiten: "token", "sequence" or "none".
      epsilon: added to each group's standard deviation, in reward units.
      scale: False leaves out the division by the groups' standard deviations.

    Returns:
      shape (B, T), unitless, on the mask's device, without a gradient, in the rewards' float
      dtype (float32 for others); masked tokens, rows without any scored component and
      batches that cancel are exactly 0. What the dtype cannot hold becomes its largest
      number. An empty batch gives an empty result.

    Raises:
      ValueError: an argument is no dense tensor where one is expected, shapes disagree, a
        reward is complex or larger than 1e300, group ids are not hashable, the mask is not
        0/1, the weights are not K finite numbers of which one is not zero, epsilon is not a
        finite number >= 0, or `whiten` is none of the three.
    """
    raw = check_rewards(rewards)
    rows = MaskedRows(response_mask, len(raw), result_dtype(rewards))
    scalars = gdpo_scalars(
        raw, group_ids, rows.counts, weights=weights, whiten=whiten, epsilon=epsilon, scale=scale
    )
    return rows.scale_(scalars)


def gdpo_scalars(
    rewards: Tensor,
    group_ids: GroupIds,
    token_counts: Tensor,
    *,
    weights: Sequence[float] | None = None,
    whiten: Whiten = "token",
    epsilon: float = 1e-6,
    scale: bool = True,
) -> Tensor:
    """`gdpo_advantages` before the broadcast: one float64 advantage a response, shape (B,).

    Args:
      token_counts: shape (B,), the response tokens that each row stands for. A row with
        none counts in its group's statistics and in no whitening statistic.
    """
    return decompose(
        rewards,
        group_ids,
        token_counts,
        weights=weights,
        whiten=whiten,
        epsilon=epsilon,
        scale=scale,
    ).gdpo


def decoupled_sum(
    rewards: Tensor,
    group_ids: GroupIds,
    *,
    weights: Sequence[float] | None = None,
    epsilon: float = 1e-6,
    scale: bool = True,
) -> Tensor:
    """sum_k w_k z[i, k] (Eq. 7), GDPO before whitening.

    Returns:
      float64, shape (B,). A component that is not scored adds 0; NaN where none is.
    """
    found = decompose(rewards, group_ids, weights=weights, epsilon=epsilon, scale=scale)
    return found.combined * found.unit
