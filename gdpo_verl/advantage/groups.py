"""Groups, the responses that share a prompt, and each reward's spread within them."""

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
    """Each row's group as a number 0…number-1.

    Attributes:
      codes: int64, shape (B,).
      number: of groups.
    """

    codes: Tensor
    number: int

    @property
    def largest(self) -> int:
        """The rows of the largest group; 0 of none."""
        return int(self.codes.bincount().max()) if self.number else 0


GroupIds = Sequence[Hashable] | Tensor | Groups


def factorize_groups(group_ids: GroupIds, rewards: Tensor, where: str = "group_ids") -> Groups:
    """Number the groups, once; `Groups` are returned as they are.

    Args:
      group_ids: B hashables, or a tensor of shape (B,); equal ids share a prompt.
      rewards: of B rows, on the device that the codes go to.
      where: what an error calls the ids.

    Raises:
      ValueError: not one id a row, or ids that cannot be hashed.
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
        found: Any = len(group_ids)
    except TypeError:
        found = type_name(group_ids)
    if found != size:
        raise ValueError(f"{where}: expected {size}, one a row of rewards, found {found}")
    # In one pass: an id that is new gets the next number.
    seen: defaultdict[Hashable, int] = defaultdict(count().__next__)
    try:
        codes = torch.from_numpy(np.fromiter(map(seen.__getitem__, group_ids), np.int64, size))
    except TypeError as error:
        raise ValueError(f"{where}: expected hashable ids: {error}") from error
    if any(isinstance(group, Tensor) for group in seen):
        raise ValueError(
            f"{where}: expected one tensor or hashable ids, found several tensors, which are "
            "equal to themselves only. Stack them."
        )
    return Groups(codes.to(rewards.device), len(seen))


def groups_with_any(rows: Tensor, groups: Groups) -> Tensor:
    """Groups of which a row is true, by column: bool, shape (B, K) to (groups, K)."""
    counts = rows.new_zeros((groups.number, rows.shape[1]), dtype=torch.float32)
    return counts.index_add_(0, groups.codes, rows.to(torch.float32)) > 0


class Spread:
    """Each reward's deviation from its group's mean, and each group's standard deviation.

    Attributes:
      scored: bool, shape (B, K).
      group_varies: bool, shape (B, K); in the row's group the reward is not constant.
      varies: the same, where the row is scored.
      count: float64, shape (B, K); the scored rows of the row's group.
      mean, std, deviation: float64, shape (B, K), in reward units; mean and unbiased standard
        deviation of the row's group over its scored rows. The deviation is 0 where not scored.

    Args:
      rewards: float64, shape (B, K); NaN where not scored.
      groups: of the rows.
      noise: shape (B, K), in reward units; rewards of a group that differ by no more than
        the largest of its noise are constant.
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
        # A constant group is recognised by its values: its deviations are rounding, not zero.
        width = extreme(rewards, -torch.inf, "amax") - extreme(rewards, torch.inf, "amin")
        least = 0.0 if noise is None else extreme(noise, 0.0, "amax")
        self.group_varies = (width > least)[codes]
        self.varies = self.group_varies & self.scored
        # In units of the width no square overflows or underflows.
        width = torch.where(width > 0, width, 1.0)
        squares = group_sum((self.deviation / width[codes]).square())
        self.std = (width * (squares / (n - 1).clamp(min=1)).sqrt())[codes]

    def with_columns(self, columns: Tensor, other: Spread, rows: Tensor) -> Spread:
        """The spread with the columns, bool of shape (K,), of these rows of another one."""
        spread = copy(self)
        for name, own in vars(self).items():
            setattr(spread, name, torch.where(columns, getattr(other, name)[rows], own))
        return spread

    @property
    def population_std(self) -> Tensor:
        """The deviation that divides by n instead of n - 1, exactly 0 in a constant group."""
        # A constant group's std is rounding, which a variant without epsilon would divide by.
        share = (self.count - 1).clamp(min=0) / self.count.clamp(min=1)
        return torch.where(self.group_varies, self.std * share.sqrt(), 0.0)

    def normalized(self, epsilon: float, scale: bool) -> Tensor:
        """(r - mean) / (std + epsilon), or r - mean; NaN where not scored."""
        values = self.deviation / (self.std + epsilon) if scale else self.deviation
        return torch.where(self.varies, values, torch.where(self.scored, 0.0, torch.nan))


def group_normalize(
    rewards: Tensor, group_ids: GroupIds, *, epsilon: float = EPSILON, scale: bool = True
) -> Tensor:
    """Normalise each reward component within its group.

    z[i, k] = (r[i, k] - mean_g r[:, k]) / (std_g r[:, k] + epsilon)

    Eq. 4 of GDPO (https://arxiv.org/abs/2601.05242), with the unbiased standard deviation
    over the group's scored rows. Differs from verl 0.9.1's `compute_grpo_outcome_advantage`
    where a group has one scored row (0 here, the raw reward there) or is constant (exactly
    0 here, rounding divided by epsilon there).

    >>> group_normalize(torch.tensor([[1.0], [0.0], [3.0]]), ["a", "a", "b"]).round(decimals=4)
    tensor([[ 0.7071],
            [-0.7071],
            [ 0.0000]])

    Args:
      rewards: shape (B, K), in reward units; NaN where not scored.
      group_ids: B hashables, or a tensor of shape (B,); equal ids share a prompt.
      epsilon: added to the standard deviation, in reward units.
      scale: False subtracts the mean only; the result is then in reward units.

    Returns:
      shape (B, K), unitless, in the rewards' float dtype (float32 for others). NaN where
      not scored.

    Raises:
      ValueError: shapes disagree, a reward is larger than 1e300, or epsilon is not a finite
        number >= 0.
    """
    raw = check_rewards(rewards)
    check_epsilon(epsilon)
    spread = Spread(raw, factorize_groups(group_ids, raw))
    return spread.normalized(epsilon, scale).to(result_dtype(rewards))
