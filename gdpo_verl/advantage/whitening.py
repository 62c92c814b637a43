"""The batch step: whitening over the tokens or responses of the batch.

Whitened values have the mean 0 and the standard deviation 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from gdpo_verl.distinct import DISTINCT_TOLERANCE

Whiten = Literal["token", "sequence", "none"]

# verl's `masked_whiten` (verl/utils/torch_functional.py) adds this number to the variance.
WHITEN_EPSILON = 1e-8
# If the deviation of the batch is below this number, in units of the largest weight, the components
# cancel. The values are then only a remainder that comes from rounding and from the epsilon of the
# group normalisation. Whitening would enlarge this remainder to a deviation of 1.
NOISE_FLOOR = DISTINCT_TOLERANCE


@dataclass(frozen=True, eq=False)
class BatchStep:
    """The values of a variant before and after its last step, (combined - mean) * factor.

    Attributes:
      combined: the values before the step: float64, shape (B,), in units of the largest weight.
        The value of a response that is left out is NaN.
      mean: the mean of the batch, or 0 without whitening.
      factor: 1 / deviation of the batch, or the factor without whitening.
      whitened: whether the step whitens.
    """

    combined: Tensor
    mean: float
    factor: float
    whitened: bool = True

    @cached_property
    def advantage(self) -> Tensor:
        """The advantage of each response: shape (B,); 0 for a response that is left out."""
        return ((self.combined - self.mean) * self.factor).nan_to_num(0.0)


def moments(
    values: Tensor, token_counts: Tensor, over: Whiten, *, unbiased: bool = True
) -> tuple[float, Tensor | None]:
    """Return the mean and the variance of the values over tokens or over rows.

    Rows with NaN and rows without tokens are ignored. With fewer than two tokens or rows the mean
    is 0 and the variance is None.

    Args:
      values: one number for each row, shape (B,).
      token_counts: the number of tokens of each row, shape (B,).
      over: "token" weights each row by its tokens; "sequence" gives all rows the same weight.
      unbiased: whether to divide by n - 1 instead of n.
    """
    live = ~values.isnan()
    share = token_counts.to(values) if over == "token" else (token_counts > 0).to(values)
    share = torch.where(live, share, 0.0)
    values = torch.where(live, values, 0.0)
    n = float(share.sum())
    if n < 2:
        return 0.0, None
    mean = (share * values).sum() / n
    return float(mean), (share * (values - mean).square()).sum() / (n - unbiased)
