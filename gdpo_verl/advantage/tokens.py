"""Broadcast advantages from responses to tokens. Only this step uses tensors of size B×T."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from gdpo_verl.advantage.checks import check_dense, type_name

# The number of elements of a B×T tensor that are processed at a time, on a CPU and elsewhere. On a
# CPU the intermediate values of a block fit into the cache; on a GPU they are small compared with
# the result. With smaller blocks the cores of a machine would wait for each other more often, which
# is slow if other processes use the same cores.
BLOCK = {"cpu": 2**18, "other": 2**23}


class MaskedRows:
    """A response mask as floats. It is checked and counted once, and then scaled in place.

    Attributes:
      values: the mask: shape (B, T), 0.0 and 1.0, on the mask's device.
      counts: the number of response tokens of each row: float64, shape (B,).

    Args:
      response_mask: shape (B, T), 0 or 1, of any dtype.
      rows: the number of rows, B.
      dtype: the dtype of `values`, a float dtype.

    Raises:
      ValueError: the mask is not a dense tensor of real numbers of shape (B, T), or has values
        other than 0 and 1.
    """

    def __init__(self, response_mask: Tensor, rows: int, dtype: torch.dtype) -> None:
        mask = _check_mask(response_mask, rows)
        self.values = torch.empty(mask.shape, dtype=dtype, device=mask.device)
        self.counts = torch.zeros(rows, dtype=torch.float64, device=mask.device)
        # Copying may round a float such as 0.9999 to 1, so floats are checked before the copy.
        exact = mask.is_floating_point() and mask.dtype.itemsize > 1
        whole = not (mask.is_floating_point() or mask.dtype == torch.bool or dtype.itemsize < 4)
        # `valid` is read only once, at the end, because each read waits for the GPU.
        valid = torch.ones((), dtype=torch.bool, device=mask.device)
        for block in row_blocks(mask):
            copy = self.values[block].copy_(mask[block])
            counts = copy.sum(dim=1, dtype=torch.float32)  # exact up to 2^24 tokens
            if whole:  # the square of an integer is larger than itself, except for 0 and 1
                flat = copy.view(-1)
                valid &= flat.dot(flat) == counts.sum()
            elif mask.dtype != torch.bool:
                valid &= _zeros_and_ones(mask[block] if exact else copy)
            self.counts[block] = counts
        if not valid:
            raise ValueError("response_mask: expected only 0 and 1")

    def scale_(self, advantage: Tensor) -> Tensor:
        """Multiply the mask in place by the advantage of each response, and return it: (B, T).

        Masked tokens are exactly 0. A number that is too large for the dtype becomes its largest
        number.
        """
        # The numbers must be finite, because infinity times 0 is NaN.
        column = advantage.detach().to(self.values).nan_to_num()[:, None]
        for block in row_blocks(self.values):
            # A negative advantage times 0 is -0. Adding 0 changes it to 0.
            self.values[block].mul_(column[block]).add_(0.0)
        return self.values


def row_blocks(table: Tensor) -> Iterator[slice]:
    """Yield slices of rows with about `BLOCK` elements each; no slice for an empty table."""
    if not table.numel():
        return
    elements = BLOCK["cpu" if table.device.type == "cpu" else "other"]
    step = max(1, elements // table.shape[1])
    for start in range(0, len(table), step):
        yield slice(start, start + step)


def _check_mask(response_mask: Tensor, rows: int) -> Tensor:
    """Check the type, layout and shape of a response mask, and return it detached."""
    if not isinstance(response_mask, Tensor) or response_mask.is_complex():
        raise ValueError(
            f"response_mask: expected a tensor of real numbers, found {type_name(response_mask)}"
        )
    check_dense("response_mask", response_mask)
    if response_mask.ndim != 2 or len(response_mask) != rows:
        raise ValueError(
            f"response_mask: expected shape ({rows}, T), found {tuple(response_mask.shape)}"
        )
    return response_mask.detach()


def _zeros_and_ones(values: Tensor) -> Tensor:
    """Return whether all values are 0 or 1, as a tensor."""
    # Only 0 and 1 are their own squares. For infinity and NaN the difference is NaN.
    low, high = values.square().sub_(values).aminmax()
    return (low == 0) & (high == 0)
