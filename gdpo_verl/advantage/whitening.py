"""Whitening: mean 0 and deviation 1 over the batch, by tokens or by responses."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Whiten = Literal["token", "sequence", "none"]

# verl's `masked_whiten` (verl/utils/torch_functional.py) adds it to the variance.
WHITEN_EPSILON = 1e-8
# Below this deviation, in units of the largest weight, components that cancel leave only
# rounding and the groups' epsilon behind, which whitening would blow up to size one.
NOISE_FLOOR = 1e-4


def whitening(
    values: Tensor, token_counts: Tensor, *, over: Whiten = "token", floor: float = 0.0
) -> tuple[float, float]:
    """Mean and factor of the batch step, (a - mean) * factor (Eq. 6).

    factor = 1 / sqrt(unbiased var + 1e-8), mean and variance over all response tokens
    (``over="token"``) or over the rows that have any (``"sequence"``); NaN rows take no
    part. Fewer than two of them, or a deviation below `floor`, give the factor 0.

    Args:
      values: float64, shape (B,); NaN in rows without a scored component.
      token_counts: shape (B,).
    """
    if over == "none":
        return 0.0, 1.0
    mean, variance = moments(values, token_counts, over)
    if variance is None:
        return mean, 0.0
    if variance.sqrt() < floor:
        return mean, 0.0
    return mean, float(torch.rsqrt(variance + WHITEN_EPSILON))


def moments(
    values: Tensor, token_counts: Tensor, over: Whiten, *, unbiased: bool = True
) -> tuple[float, Tensor | None]:
    """Mean and variance over tokens or over rows; None with fewer than two of them."""
    live = ~values.isnan()
    share = token_counts.to(values) if over == "token" else (token_counts > 0).to(values)
    share, values = torch.where(live, share, 0.0), torch.where(live, values, 0.0)
    n = float(share.sum())
    if n < 2:
        return 0.0, None
    mean = (share * values).sum() / n
    return float(mean), (share * (values - mean).square()).sum() / (n - unbiased)
