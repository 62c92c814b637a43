"""Checks of the arguments that several functions of this package have in common."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import Tensor

# The largest allowed reward. With this limit, sums and differences of rewards stay finite.
LARGEST = 1e300
EPSILON = 1e-6
"""The default of the number that is added to each group's standard deviation, in reward units."""


def check_rewards(rewards: Tensor) -> Tensor:
    """Return the rewards as float64 of shape (B, K), detached.

    Raises:
      ValueError: the rewards are not a dense tensor of real numbers, have another shape, or
        contain a number that is infinite or larger than `LARGEST`.
    """
    if not isinstance(rewards, Tensor) or rewards.is_complex():
        raise ValueError(f"rewards: expected a tensor of real numbers, found {type_name(rewards)}")
    check_dense("rewards", rewards)
    if rewards.ndim != 2 or rewards.shape[1] == 0:
        raise ValueError(
            f"rewards: expected shape (B, K) with K >= 1, found {tuple(rewards.shape)}"
        )
    # In float32 a small difference between two large rewards would have few correct digits.
    values = rewards.detach().to(torch.float64)
    large = values.abs() > LARGEST
    if bool(large.any()):
        row, column = large.nonzero()[0].tolist()
        raise ValueError(
            f"rewards: expected finite numbers of at most {LARGEST:g} in size, or NaN, found "
            f"{values[row, column]} at row {row}, component {column}"
        )
    return values


def check_weights(weights: Sequence[float] | Tensor | None, rewards: Tensor) -> Tensor:
    """Return the weights as float64 of shape (K,); None means that all weights are 1.

    Raises:
      ValueError: the weights are not K finite numbers, or all of them are 0.
    """
    size = rewards.shape[1]
    expected = f"weights: expected {size} finite numbers, not all zero"
    try:
        numbers = [1.0] * size if weights is None else list(weights)
        values = torch.tensor(numbers, dtype=torch.float64, device=rewards.device)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise ValueError(f"{expected}, found {weights!r}") from error
    if values.shape != (size,) or not bool(values.isfinite().all()) or not bool(values.any()):
        raise ValueError(f"{expected}, found {values.tolist()}")
    return values


def check_ranges(
    ranges: Sequence[tuple[float, float] | None] | None, rewards: Tensor
) -> Tensor | None:
    """Return the ranges as float64 of shape (K, 2), with NaN for a component without a range.

    The result is None if `ranges` is None.

    Raises:
      ValueError: there is not one range for each component, or a range is not two finite numbers
        with low < high.
    """
    if ranges is None:
        return None
    size = rewards.shape[1]
    expected = "pairs (low, high) of finite numbers, low < high, or None"
    try:
        pairs = [(math.nan, math.nan) if pair is None else tuple(pair) for pair in ranges]
        values = torch.tensor(pairs, dtype=torch.float64, device=rewards.device)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise ValueError(f"ranges: expected {size} {expected}, found {ranges!r}") from error
    # Two NaN mean a component without a range. One NaN means that an end of a range is missing,
    # which is an error.
    present = ~values.isnan()
    if values.shape != (size, 2) or bool(
        (present.any(1) & ~((values[:, 0] < values[:, 1]) & values.isfinite().all(1))).any()
    ):
        raise ValueError(f"ranges: expected {size} {expected}, found {ranges!r}")
    return values


def check_epsilon(epsilon: float) -> None:
    """Raise ValueError unless epsilon is a finite number >= 0."""
    if not isinstance(epsilon, Real) or not 0 <= epsilon < math.inf:
        raise ValueError(f"epsilon: expected a finite number >= 0, found {epsilon!r}")


def check_dense(name: str, tensor: Tensor) -> None:
    """Raise ValueError for sparse and nested tensors."""
    if tensor.is_nested or tensor.layout != torch.strided:
        layout = "a nested tensor" if tensor.is_nested else str(tensor.layout)
        raise ValueError(f"{name}: expected a dense tensor, found {layout}")


def result_dtype(rewards: Tensor) -> torch.dtype:
    """Return the dtype of the rewards if torch can compute with it, else float32.

    Examples of the other dtypes are integers, bool and 8-bit floats.
    """
    plain = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
    return rewards.dtype if rewards.dtype in plain else torch.float32


def type_name(value: Any) -> str:
    """Name the dtype or type of a value for an error message."""
    return str(value.dtype) if isinstance(value, Tensor) else type(value).__name__


def is_number(value: Any) -> TypeGuard[float]:
    """Return whether a value is an int or a float of at most `LARGEST` in size, but not a bool."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= LARGEST


def read_number(value: Any) -> float:
    """Return a value as a float: NaN for None, and infinity for a value that is not a valid number.

    A number is valid if it is at most `LARGEST` in size.
    """
    if isinstance(value, (int, float)) and abs(value) <= LARGEST:
        return float(value)  # the usual case comes first: there are thousands of it in each batch
    if value is None:
        return math.nan
    # Text is rejected, although float() accepts "nan" and "1", because a reward must be a number.
    try:
        number = math.inf if isinstance(value, (str, bytes)) else float(value)
    except (TypeError, ValueError, OverflowError):
        return math.inf
    if abs(number) > LARGEST:
        return math.inf
    return _as_written(number, value)


def _as_written(number: float, value: Any) -> float:
    """Return the number with the fewest digits that rounds to the same half-precision value.

    A reward of 0.7 in bfloat16 or float16 is 0.69921875 or 0.70019531 as a float64. The result is
    0.7. Numbers of other types are returned unchanged.
    """
    dtype = torch.float16 if isinstance(value, np.float16) else getattr(value, "dtype", None)
    if dtype not in (torch.float16, torch.bfloat16):
        return number
    written = (float(f"{number:.{digits}g}") for digits in range(1, 6))
    same = (x for x in written if float(torch.tensor(x).to(dtype)) == number)
    return next(same, number)
