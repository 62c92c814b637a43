"""GDPO and its variants: normalise each reward within its group, add the results, and whiten them.

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
    """Compute GDPO's advantages: normalise each component within its group, add, and whiten.

    a_i = sum_k w_k z[i, k];  A[i, t] = mask[i, t] (a_i - mean a) / sqrt(var a + 1e-8)

    z is the result of `group_normalize` (Eq. 4, 5 and 7 of https://arxiv.org/abs/2601.05242). The
    mean and the unbiased variance run over all response tokens with ``whiten="token"``, as in the
    paper's code for verl, or over all responses with ``whiten="sequence"`` (Eq. 6). A `variant`
    computes a different a_i from the same rewards; the docstring of its function has the equation.

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
      response_mask: shape (B, T), 0 or 1, of any dtype. It may have zeros between ones.
      weights: K finite numbers, not all zero. With whitening only their ratios matter. By default
        all weights are 1.
      whiten: "token", "sequence" or "none". The default depends on the variant; for GDPO it is
        "token".
      epsilon: added to each group's standard deviation, in reward units.
      scale: if False, values are not divided by the groups' standard deviations.
      variant: a name in `gdpo_verl.advantage.VARIANTS`, or your function as
        "pkg://module:function" or "FILE.py:function".
      ranges: for each component the lowest and the highest value, in reward units, or None.
      gate: the column of the outcome, the component that says whether the task is solved. If the
        outcome is constant in a group, all advantages of the group are 0, and the group takes no
        part in whitening. With ``Gate(column, "failed")`` this applies only if the outcome is also
        at most 0.
      options: the settings of the variant.

    Returns:
      The advantages: shape (B, T), unitless, on the mask's device, without a gradient. Their dtype
      is the float dtype of the rewards, or float32 if the rewards are not floats. Advantages are
      exactly 0 for masked tokens, for rows without any scored component, and for batches in which
      the components cancel. A number that is too large for the dtype becomes its largest number.
      The result for an empty batch is empty.

    Raises:
      ValueError: in one of these cases. An argument is not a dense tensor where one is expected.
        Shapes disagree. A reward is complex or larger than 1e300. Group ids are not hashable. The
        mask has values other than 0 and 1. The weights are not K finite numbers or are all zero.
        Epsilon is not a finite number >= 0. `whiten` is not one of the three values. The variant
        or a setting is unknown. The variant is not defined for these weights, ranges or groups of
        two.
    """
    raw = check_rewards(rewards)
    rows = MaskedRows(response_mask, len(raw), result_dtype(rewards))
    chosen_variant = find_variant(variant)
    if options:
        chosen_variant = chosen_variant.with_settings(options)
    settings = EstimatorSettings(
        weights=weights,
        ranges=ranges,
        gate=check_gate(gate, raw.shape[1]),
        variant=chosen_variant,
        whiten=whiten,
        epsilon=epsilon,
        scale=scale,
    )
    decomposition = decompose(raw, group_ids, rows.counts, settings)
    # `decompose` has checked only the settings. The size of the groups depends on the batch.
    if chosen_variant.least_group > 1:
        chosen_variant.check_group_size(decomposition.groups.largest, raw.shape[1])
    return rows.scale_(decomposition.advantage)
