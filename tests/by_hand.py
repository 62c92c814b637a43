"""Small inputs for advantages that are worked out by hand, and comparisons of their numbers."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from gdpo_verl.advantage import Whiten

NAN = math.nan
S = 1 / math.sqrt(2)
WHITEN: tuple[Whiten, ...] = ("token", "sequence", "none")


def close(found: Tensor, expected: Any, tolerance: float = 1e-5) -> None:
    """Assert that a tensor is equal to the expected numbers, up to an absolute tolerance."""
    expected = torch.as_tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(found.double(), expected, atol=tolerance, rtol=0.0)


def exactly_zero(found: Tensor) -> bool:
    return found.numel() > 0 and bool((found == 0).all())


def lengths(*tokens: int) -> Tensor:
    """Return a mask whose rows have these numbers of response tokens."""
    return (torch.arange(max(tokens)) < torch.tensor(tokens)[:, None]).long()


def by_row(advantage: Tensor, mask: Tensor) -> Tensor:
    """Return the advantage of each row; all its tokens must share it, and masked ones must be 0."""
    assert advantage.shape == mask.shape
    assert not bool(advantage[mask == 0].any())
    scalar = torch.stack(
        [row[kept != 0][0] for row, kept in zip(advantage, mask, strict=True) if kept.any()]
    )
    assert torch.equal(advantage[mask != 0], scalar.repeat_interleave(mask.sum(1)[mask.any(1)]))
    return scalar


TWO_GROUPS = torch.tensor([[1.0, 0.0], [0.0, 0.0], [1.0, 1.0], [0.0, 0.0]])
PAIRS = [0, 0, 1, 1]
