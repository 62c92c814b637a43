"""Checks of the arguments that every function of this package takes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import Tensor

# The largest reward. Sums over a group and differences are then finite numbers, too.
LARGEST = 1e300
EPSILON = 1e-6
"""Added to the standard deviation of a group, in reward units, unless another is given."""


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
    # float32 keeps only few digits of a small difference between large rewards.
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
    """Return the weights as float64 of shape (K,); all are 1 for None."""
    size = rewards.shape[1]
    expected = f"weights: expected {size} finite numbers, not all zero"
    try:
        given = [1.0] * size if weights is None else list(weights)
        values = torch.tensor(given, dtype=torch.float64, device=rewards.device)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise ValueError(f"{expected}, found {weights!r}") from error
    if values.shape != (size,) or not bool(values.isfinite().all()) or not bool(values.any()):
        raise ValueError(f"{expected}, found {values.tolist()}")
    return values


def check_ranges(
    ranges: Sequence[tuple[float, float] | None] | None, rewards: Tensor
) -> Tensor | None:
    """Return the ranges as float64 of shape (K, 2), with NaN for a component without a range.

    The result is None where `ranges` is None.

    Raises:
      ValueError: there is not one range per component, or a range is not two finite numbers
        low < high.
    """
    if ranges is None:
        return None
    size = rewards.shape[1]
    expected = "pairs (low, high) of finite numbers, low < high, or None"
    try:
        given = [(math.nan, math.nan) if pair is None else tuple(pair) for pair in ranges]
        values = torch.tensor(given, dtype=torch.float64, device=rewards.device)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise ValueError(f"ranges: expected {size} {expected}, found {ranges!r}") from error
    # Two NaN are a component without a range. One NaN is a range with one end missing.
    known = ~values.isnan()
    if values.shape != (size, 2) or bool(
        (known.any(1) & ~((values[:, 0] < values[:, 1]) & values.isfinite().all(1))).any()
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
    """Return the dtype of the rewards where torch can compute with it, else float32."""
    plain = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
    return rewards.dtype if rewards.dtype in plain else torch.float32


def type_name(value: Any) -> str:
    """Name the dtype or type of a value for an error message."""
    return str(value.dtype) if isinstance(value, Tensor) else type(value).__name__


def is_number(value: Any) -> TypeGuard[float]:
    """Return whether a value is an int or a float of at most `LARGEST` in size, but not a bool."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= LARGEST


def read_number(value: Any) -> float:
    """Return a value as a float: NaN for None, infinity for all that is not a usable number.

    A number is usable when it is at most `LARGEST` in size.
    """
    if isinstance(value, (int, float)) and abs(value) <= LARGEST:
        return float(value)  # the usual case, thousands of times per batch
    if value is None:
        return math.nan
    # Text is rejected, although float() would read "nan" and "1": a reward must be a number.
    try:
        number = math.inf if isinstance(value, (str, bytes)) else float(value)
    except (TypeError, ValueError, OverflowError):
        return math.inf
    if abs(number) > LARGEST:
        return math.inf
    return _as_written(number, value)


def _as_written(number: float, value: Any) -> float:
    """Return 0.7 for a half-precision 0.7, which as a float64 is 0.69921875 or 0.70019531."""
    dtype = torch.float16 if isinstance(value, np.float16) else getattr(value, "dtype", None)
    if dtype not in (torch.float16, torch.bfloat16):
        return number
    written = (float(f"{number:.{digits}g}") for digits in range(1, 6))
    return next((x for x in written if float(torch.tensor(x).to(dtype)) == number), number)
