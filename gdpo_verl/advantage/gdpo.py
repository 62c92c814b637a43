"""GDPO, or a variant: normalise each reward within its group, add, whiten.

Use it where several rewards of different scales or frequencies are to be learned at once.
Assumes: several responses to a prompt; a reward that is constant in a group teaches nothing there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from gdpo_verl.advantage.checks import EPSILON, check_rewards, result_dtype
from gdpo_verl.advantage.decomposition import EstimatorSettings, decompose
from gdpo_verl.advantage.gate import Gate, check_gate
from gdpo_verl.advantage.groups import GroupIds
from gdpo_verl.advantage.tokens import MaskedRows
from gdpo_verl.advantage.variant import Ranges
from gdpo_verl.advantage.variants import find_variant
from gdpo_verl.advantage.whitening import Whiten


def gdpo_advantages(
    rewards: Tensor,
    group_ids: GroupIds,
    response_mask: Tensor,
    *,
    weights: Sequence[float] | None = None,
    whiten: Whiten | None = None,
    epsilon: float = EPSILON,
    scale: bool = True,
    variant: str = "gdpo",
    ranges: Ranges | None = None,
    gate: Gate | int | None = None,
    **options: Any,
) -> Tensor:
    """GDPO: normalise each component within its group, add, whiten over the batch.

    a_i = sum_k w_k z[i, k];  A[i, t] = mask[i, t] (a_i - mean a) / sqrt(var a + 1e-8)

    where z is `group_normalize` (Eq. 4, 5 and 7 of https://arxiv.org/abs/2601.05242), and
    mean and unbiased variance run over all response tokens (``whiten="token"``, as the
    paper's verl code does) or over all responses (``"sequence"``, Eq. 6). A `variant` computes
    another a_i from the same rewards; its equation is in the docstring of its function.

    >>> import torch
    >>> rewards = torch.tensor([[1.0, 0.0], [0.0, 0.0], [1.0, 1.0], [0.0, 0.0]])
    >>> mask = torch.ones(4, 2)
    >>> gdpo_advantages(rewards, [0, 0, 1, 1], mask)[:, 0].round(decimals=4)
    tensor([ 0.5916, -0.5916,  1.1832, -1.1832])
    >>> gdpo_advantages(rewards, [0, 0, 1, 1], mask, variant="dvao")[:, 0].round(decimals=4)
    tensor([ 1., -1.,  1., -1.])

    Args:
      rewards: shape (B, K), in reward units; NaN where not scored.
      group_ids: B hashables, or a tensor of shape (B,); equal ids share a prompt.
      response_mask: shape (B, T), 0 or 1 of any dtype, holes allowed.
      weights: K finite numbers, not all zero; only their ratios matter when whitening. Default:
        all 1.
      whiten: "token", "sequence" or "none". Default: that of the variant, which is "token" for
        GDPO.
      epsilon: added to each group's standard deviation, in reward units.
      scale: False omits the division by the groups' standard deviations.
      variant: a name in `gdpo_verl.advantage.VARIANTS`, or your function as
        "pkg://module:function" or "FILE.py:function".
      ranges: for each component the smallest and the largest value, in reward units, or None.
      gate: the column of the outcome. In a group in which the outcome does not vary, all
        advantages are 0 and take no part in whitening. With ``Gate(column, "failed")`` this
        applies only where the outcome is at most 0.
      options: the settings of the variant.

    Returns:
      shape (B, T), unitless, on the mask's device, without a gradient, in the rewards' float
      dtype (float32 for other dtypes). Masked tokens, rows without any scored component and
      batches in which the components cancel are exactly 0. A number that is too large for the
      dtype becomes its largest number. An empty batch gives an empty result.

    Raises:
      ValueError: an argument is not a dense tensor where one is expected, shapes disagree, a
        reward is complex or larger than 1e300, group ids are not hashable, the mask has values
        other than 0 and 1, the weights are not K finite numbers or are all zero, epsilon is not a
        finite number >= 0, `whiten` is not one of the three values, the variant or a setting is
        unknown, or the variant is not defined for these weights, ranges or groups of two.
    """
    raw = check_rewards(rewards)
    rows = MaskedRows(response_mask, len(raw), result_dtype(rewards))
    chosen = find_variant(variant)
    if options:
        chosen = chosen.with_settings(options)
    settings = EstimatorSettings(
        weights=weights,
        ranges=ranges,
        gate=check_gate(gate, raw.shape[1]),
        variant=chosen,
        whiten=whiten,
        epsilon=epsilon,
        scale=scale,
    )
    found = decompose(raw, group_ids, rows.counts, settings)
    # The size of the groups depends on the batch, and `decompose` has checked only the settings.
    if chosen.least_group > 1:
        chosen.check_group_size(found.groups.largest, raw.shape[1])
    return rows.scale_(found.advantage)
