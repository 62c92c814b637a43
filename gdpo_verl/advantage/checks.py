"""The arguments that every function of this package takes, checked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import Tensor

# The largest reward: sums over a group, and differences, are then numbers, too.
LARGEST = 1e300
EPSILON = 1e-6
"""Added to the standard deviation of a group, in reward units, unless another is given."""


def check_rewards(rewards: Tensor) -> Tensor:
    """Rewards as float64 of shape (B, K), detached.

    Raises:
      ValueError: no dense tensor of real numbers, another shape, or a number that is infinite
        or larger than `LARGEST`.
    """
    if not isinstance(rewards, Tensor) or rewards.is_complex():
        raise ValueError(f"rewards: expected a tensor of real numbers, found {type_name(rewards)}")
    check_dense("rewards", rewards)
    if rewards.ndim != 2 or rewards.shape[1] == 0:
        raise ValueError(
            f"rewards: expected shape (B, K) with K >= 1, found {tuple(rewards.shape)}"
        )
    # Of a small difference between large rewards float32 keeps few digits.
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
    """Weights as float64 of shape (K,); all 1 for None."""
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
    """Ranges as float64 of shape (K, 2), NaN for a component without; None where none is given.

    Raises:
      ValueError: not one a component, or not two finite numbers low < high.
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
    # Two NaN are a component without a range; one is a range without an end.
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
    """The rewards' dtype where torch can compute with it, else float32."""
    plain = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
    return rewards.dtype if rewards.dtype in plain else torch.float32


def type_name(value: Any) -> str:
    """A value's dtype or type, for an error message."""
    return str(value.dtype) if isinstance(value, Tensor) else type(value).__name__


def is_number(value: Any) -> TypeGuard[float]:
    """Return whether a value is an int or a float of at most `LARGEST` in size, and no bool."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= LARGEST


def read_number(value: Any) -> float:
    """A value as float64: NaN for None, infinite for what is no number of at most `LARGEST`."""
    if isinstance(value, (int, float)) and abs(value) <= LARGEST:
        return float(value)  # as most are, and a batch has thousands
    if value is None:
        return math.nan
    # Text is refused although float() would read "nan" and "1": a reward returns numbers.
    try:
        number = math.inf if isinstance(value, (str, bytes)) else float(value)
    except (TypeError, ValueError, OverflowError):
        return math.inf
    if abs(number) > LARGEST:
        return math.inf
    return _as_written(number, value)


def _as_written(number: float, value: Any) -> float:
    """0.7 for a half-precision 0.7, which as a float64 is 0.69921875 or 0.70019531."""
    dtype = torch.float16 if isinstance(value, np.float16) else getattr(value, "dtype", None)
    if dtype not in (torch.float16, torch.bfloat16):
        return number
    written = (float(f"{number:.{digits}g}") for digits in range(1, 6))
    return next((x for x in written if float(torch.tensor(x).to(dtype)) == number), number)
