"""The batch step: whitening to mean 0 and deviation 1 over the tokens or responses of the batch."""

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
# Below this deviation, in units of the largest weight, the components cancel, and only rounding and
# the effect of the groups' epsilon are left. Whitening would enlarge them to size one.
NOISE_FLOOR = DISTINCT_TOLERANCE


@dataclass(frozen=True, eq=False)
class BatchStep:
    """The values of a variant before and after its last step, (combined - mean) * factor.

    Attributes:
      combined: float64, shape (B,), in units of the largest weight; NaN where left out.
      whitened: whether the factor divides by the deviation of the batch.
    """

    combined: Tensor
    mean: float
    factor: float
    whitened: bool = True

    @cached_property
    def advantage(self) -> Tensor:
        """One number per response: shape (B,); 0 where left out."""
        return ((self.combined - self.mean) * self.factor).nan_to_num(0.0)


def moments(
    values: Tensor, token_counts: Tensor, over: Whiten, *, unbiased: bool = True
) -> tuple[float, Tensor | None]:
    """Return mean and variance over tokens or rows; the variance is None with fewer than two."""
    live = ~values.isnan()
    share = token_counts.to(values) if over == "token" else (token_counts > 0).to(values)
    share = torch.where(live, share, 0.0)
    values = torch.where(live, values, 0.0)
    n = float(share.sum())
    if n < 2:
        return 0.0, None
    mean = (share * values).sum() / n
    return float(mean), (share * (values - mean).square()).sum() / (n - unbiased)
