"""Groups (the responses to one prompt), and the mean and deviation of each reward within them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from copy import copy
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gdpo_verl.advantage.checks import (
    EPSILON,
    check_epsilon,
    check_rewards,
    result_dtype,
    type_name,
)


class Groups(NamedTuple):
    """The group of each row, as a number from 0 to number - 1.

    Attributes:
      codes: the number of each row's group: int64, shape (B,).
      number: the number of groups.
    """

    codes: Tensor
    number: int

    @property
    def largest(self) -> int:
        """The number of rows in the largest group; 0 if there is no group."""
        return int(self.codes.bincount().max()) if self.number else 0


GroupIds = Sequence[Hashable] | Tensor | Groups


def factorize_groups(group_ids: GroupIds, rewards: Tensor, where: str = "group_ids") -> Groups:
    """Number the groups; `Groups` are returned unchanged.

    Args:
      group_ids: B hashables, or a tensor of shape (B,); equal ids share a prompt.
      rewards: a tensor with B rows, on the device that the result should be on.
      where: the name of the ids in error messages.

    Raises:
      ValueError: there is not one id per row, or an id cannot be hashed.
    """
    if isinstance(group_ids, Groups):
        return group_ids
    size = len(rewards)
    if isinstance(group_ids, Tensor):
        if group_ids.shape != (size,):
            raise ValueError(f"{where}: expected shape ({size},), found {tuple(group_ids.shape)}")
        values, codes = torch.unique(group_ids.detach().to(rewards.device), return_inverse=True)
        return Groups(codes, len(values))
    try:
        number: Any = len(group_ids)
    except TypeError:
        number = type_name(group_ids)
    if number != size:
        raise ValueError(f"{where}: expected {size}, one per row of rewards, found {number}")
    # The defaultdict gives the next number to each new id.
    seen: defaultdict[Hashable, int] = defaultdict(count().__next__)
    try:
        codes = torch.from_numpy(np.fromiter(map(seen.__getitem__, group_ids), np.int64, size))
    except TypeError as error:
        raise ValueError(f"{where}: expected hashable ids: {error}") from error
    if any(isinstance(group, Tensor) for group in seen):
        raise ValueError(
            f"{where}: expected one tensor or hashable ids, found several tensors. A "
            "tensor is equal only to itself, so stack them into one tensor."
        )
    return Groups(codes.to(rewards.device), len(seen))


def groups_with_any(rows: Tensor, groups: Groups) -> Tensor:
    """Return for each column which groups have a true row: bool, from (B, K) to (groups, K)."""
    counts = rows.new_zeros((groups.number, rows.shape[1]), dtype=torch.float32)
    return counts.index_add_(0, groups.codes, rows.to(torch.float32)) > 0


class Spread:
    """The mean and the standard deviation of each reward within the groups.

    All attributes have shape (B, K): a row has the statistics of its group.

    Attributes:
      scored: bool; the reward of this row is scored.
      group_varies: bool; the reward is not constant in the row's group.
      varies: bool; `group_varies`, and the row is scored.
      count: float64; the number of scored rows in the row's group.
      mean: float64, in reward units; the mean over the scored rows of the row's group.
      std: float64, in reward units; the unbiased standard deviation over the same rows.
      deviation: float64, in reward units; reward - mean, and 0 where not scored.

    Args:
      rewards: float64, shape (B, K); NaN where not scored.
      groups: the groups of the rows.
      noise: shape (B, K), in reward units. A reward is constant in a group if its values differ by
        no more than the largest noise in the group.
    """

    def __init__(self, rewards: Tensor, groups: Groups, noise: Tensor | None = None) -> None:
        codes = groups.codes
        shape = (groups.number, rewards.shape[1])
        rows = codes[:, None].expand_as(rewards)

        def group_sum(x: Tensor) -> Tensor:
            return x.new_zeros(shape).index_add_(0, codes, x)

        def extreme(values: Tensor, fill: float, which: str) -> Tensor:
            values = torch.where(self.scored, values, fill)
            return rewards.new_full(shape, fill).scatter_reduce_(0, rows, values, which)

        self.scored = ~rewards.isnan()
        n = group_sum(self.scored.to(rewards))
        self.count = n[codes]
        self.mean = (group_sum(rewards.nan_to_num(0.0)) / n.clamp(min=1))[codes]
        self.deviation = torch.where(self.scored, rewards - self.mean, 0.0)
        # A group is constant if its largest and its smallest value are equal. The deviations do not
        # show it: because of rounding they are small numbers instead of 0.
        width = extreme(rewards, -torch.inf, "amax") - extreme(rewards, torch.inf, "amin")
        least = 0.0 if noise is None else extreme(noise, 0.0, "amax")
        self.group_varies = (width > least)[codes]
        self.varies = self.group_varies & self.scored
        # The deviations are divided by the width, so that no square overflows or underflows.
        width = torch.where(width > 0, width, 1.0)
        squares = group_sum((self.deviation / width[codes]).square())
        self.std = (width * (squares / (n - 1).clamp(min=1)).sqrt())[codes]

    def with_columns(self, columns: Tensor, other: Spread, rows: Tensor) -> Spread:
        """Return this spread with some columns replaced by columns of another spread.

        Args:
          columns: the columns to replace: bool, shape (K,).
          other: the spread with the new columns.
          rows: the row of `other` that belongs to each row of this spread: int64, shape (B,).
        """
        spread = copy(self)
        for name, values in vars(self).items():
            setattr(spread, name, torch.where(columns, getattr(other, name)[rows], values))
        return spread

    @property
    def population_std(self) -> Tensor:
        """The standard deviation with n instead of n - 1; exactly 0 in a constant group."""
        # The std of a constant group may be a rounding error instead of 0. Some variants divide by
        # it without epsilon, so it must be exactly 0 here.
        share = (self.count - 1).clamp(min=0) / self.count.clamp(min=1)
        return torch.where(self.group_varies, self.std * share.sqrt(), 0.0)

    def normalized(self, epsilon: float, scale: bool) -> Tensor:
        """Return (r - mean) / (std + epsilon), or r - mean if not `scale`; NaN where not scored."""
        values = self.deviation / (self.std + epsilon) if scale else self.deviation
        return torch.where(self.varies, values, torch.where(self.scored, 0.0, torch.nan))


def group_normalize(
    rewards: Tensor, group_ids: GroupIds, *, epsilon: float = EPSILON, scale: bool = True
) -> Tensor:
    """Normalise each reward component within its group.

    z[i, k] = (r[i, k] - mean_g r[:, k]) / (std_g r[:, k] + epsilon)

    This is Eq. 4 of GDPO (https://arxiv.org/abs/2601.05242), with the unbiased standard deviation
    over the group's scored rows. It differs from `compute_grpo_outcome_advantage` of verl 0.9.1 in
    two cases. For a group with one scored row it returns 0, while verl returns the raw reward. For
    a constant group it returns exactly 0, while verl returns a rounding error divided by epsilon.

    >>> group_normalize(torch.tensor([[1.0], [0.0], [3.0]]), ["a", "a", "b"]).round(decimals=4)
    tensor([[ 0.7071],
            [-0.7071],
            [ 0.0000]])

    Args:
      rewards: shape (B, K), in reward units; NaN where not scored.
      group_ids: B hashables, or a tensor of shape (B,); equal ids share a prompt.
      epsilon: added to the standard deviation, in reward units.
      scale: if False, only the mean is subtracted, and the result is in reward units.

    Returns:
      shape (B, K), unitless, in the rewards' float dtype (float32 for other dtypes); NaN
      where not scored.

    Raises:
      ValueError: shapes disagree, a reward is larger than 1e300, or epsilon is not a finite
        number >= 0.
    """
    raw = check_rewards(rewards)
    check_epsilon(epsilon)
    spread = Spread(raw, factorize_groups(group_ids, raw))
    return spread.normalized(epsilon, scale).to(result_dtype(rewards))
