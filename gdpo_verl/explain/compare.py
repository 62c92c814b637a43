"""GRPO and GDPO on one group side by side, and how many advantages each can tell apart.

Every advantage here is one of `gdpo_verl.advantage`'s.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from gdpo_verl.advantage import (
    VARIANTS,
    apply_conditions,
    decompose,
    group_normalize,
)
from gdpo_verl.distinct import levels

# The columns of the two tables: rollouts of 2 rewards, and rewards of 4 rollouts.
ROLLOUTS = (2, 3, 4, 6, 8, 10)
REWARDS = (1, 2, 3, 4, 5)
# The most groups that the page goes through when asked to: about a second's work.
MOST_GROUPS = 60_000


@dataclass(frozen=True)
class Rollout:
    """One rollout of a group.

    Attributes:
      name: what the page calls it.
      rewards: its components as they enter the advantage, in reward units; NaN where not scored.
      grpo: its GRPO advantage.
      gdpo: its GDPO advantage.
      tie: a letter shared by the rollouts of the group that have this GRPO advantage though
        their rewards differ; empty when there is none.
      split: whether GDPO tells at least two rollouts of that tie apart.
    """

    name: str
    rewards: tuple[float, ...]
    grpo: float
    gdpo: float
    tie: str = ""
    split: bool = False


def compare(
    names: Sequence[str],
    rewards: Tensor,
    keys: Sequence[str],
    *,
    weights: Sequence[float] | None = None,
    conditions: Mapping[str, Mapping[str, Any]] | None = None,
    whiten: bool = True,
) -> list[Rollout]:
    """Both advantages of each rollout of one group, the highest GDPO advantage first.

    Args:
      names: one for each rollout.
      rewards: shape (G, K), in reward units, before conditions.
      keys: the names of the K components.
      weights, conditions: as in `gdpo_verl.gdpo_advantages` and `apply_conditions`.
      whiten: over the sequences of this one group.

    Raises:
      ValueError: as `gdpo_advantages` and `apply_conditions`.
    """
    counted = apply_conditions(rewards, list(keys), conditions or {})
    found = decompose(
        counted,
        [0] * len(counted),
        torch.ones(len(counted)),
        weights=weights,
        whiten="sequence" if whiten else "none",
    )
    return mark_ties(names, counted.tolist(), found.grpo.tolist(), found.gdpo.tolist())


def variant_advantages(
    rewards: Tensor,
    keys: Sequence[str],
    variant: str,
    *,
    highest: Sequence[float],
    weights: Sequence[float] | None = None,
    conditions: Mapping[str, Mapping[str, Any]] | None = None,
    gate: int | None = None,
    whiten: bool = True,
) -> list[float]:
    """A variant's advantage of each rollout of one group, in their order.

    Args:
      rewards, keys, weights, conditions: as in `compare`.
      variant: its name, at its default settings.
      highest: the largest value of each reward, whose smallest is 0.
      gate: the column of the outcome, if there is a gate.
      whiten: over this group, where the variant whitens.

    Raises:
      ValueError: the variant is not defined for these weights.
    """
    found = decompose(
        rewards,
        [0] * len(rewards),
        torch.ones(len(rewards)),
        conditioned=apply_conditions(rewards, list(keys), conditions or {}),
        weights=weights,
        whiten="sequence" if whiten and VARIANTS[variant].whiten != "none" else "none",
        variant=VARIANTS[variant],
        ranges=[(0.0, value) for value in highest],
        gate=gate,
    )
    return found.advantage.tolist()


def mark_ties(
    names: Sequence[str],
    rewards: Sequence[Sequence[float]],
    grpo: Sequence[float],
    gdpo: Sequence[float],
) -> list[Rollout]:
    """Rollouts of one group, the highest GDPO advantage first, with GRPO's ties lettered.

    Which advantages are equal, `gdpo_verl.distinct` says.
    """
    order = sorted(range(len(names)), key=lambda i: (-gdpo[i], -grpo[i]))
    by_grpo, by_gdpo = levels(grpo), levels(gdpo)
    ties: dict[int, tuple[str, bool]] = {}
    letters = (letter * n for n in itertools.count(1) for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ")
    for level in sorted(set(by_grpo), reverse=True):
        tie = [i for i in order if by_grpo[i] == level]
        if len({_hashable(rewards[i]) for i in tie}) > 1:
            ties |= dict.fromkeys(tie, (next(letters), len({by_gdpo[i] for i in tie}) > 1))
    return [
        Rollout(names[i], tuple(rewards[i]), grpo[i], gdpo[i], *ties.get(i, ("", False)))
        for i in order
    ]


def _hashable(rewards: Sequence[float]) -> tuple[float | None, ...]:
    return tuple(None if math.isnan(value) else value for value in rewards)


@dataclass(frozen=True)
class Pair:
    """Two rollouts with one GRPO advantage, and the terms of their GDPO advantages.

    Attributes:
      first, second: the rollouts.
      sums: sum_k w_k r_k of each, which is all that GRPO sees.
      deviations: of each component in the group, unbiased, in reward units.
      terms: w_k z_k of each, which GDPO adds; shape (2, K).
      gap: GDPO's first minus second, before whitening.
    """

    first: Rollout
    second: Rollout
    sums: tuple[float, float]
    deviations: tuple[float, ...]
    terms: tuple[tuple[float, ...], tuple[float, ...]]
    gap: float


def tied_pairs(group: Sequence[Rollout], *, weights: Sequence[float] | None = None) -> list[Pair]:
    """For each tie of GRPO, its two rollouts that lie farthest apart for GDPO."""
    rewards = torch.tensor([each.rewards for each in group], dtype=torch.float64)
    factors = [1.0] * rewards.shape[1] if weights is None else list(weights)
    terms = group_normalize(rewards, [0] * len(group)) * torch.tensor(factors)
    sums = (rewards.nan_to_num(0.0) * torch.tensor(factors)).sum(dim=1).tolist()
    gdpo = decompose(rewards, [0] * len(group), weights=weights, whiten="none").gdpo.tolist()
    deviations = tuple(rewards.std(dim=0).tolist())
    pairs = []
    for letter in dict.fromkeys(each.tie for each in group if each.tie):
        members = [i for i, each in enumerate(group) if each.tie == letter]
        # The group is sorted by GDPO; among equals, the first whose rewards differ.
        i = members[0]
        others = [m for m in members if group[m].rewards != group[i].rewards]
        j = max(others, key=lambda m: gdpo[i] - gdpo[m])
        pairs.append(
            Pair(
                group[i],
                group[j],
                (sums[i], sums[j]),
                deviations,
                (tuple(terms[i].tolist()), tuple(terms[j].tolist())),
                gdpo[i] - gdpo[j],
            )
        )
    return pairs


def gaps_of_a_trade(group_size: int) -> Tensor:
    """The gap between [1, 0, x] and [0, 1, x], in every group they can be in.

    Only the counts of the first reward, n1, and of the second, n2, in the group matter.

    >>> gaps_of_a_trade(4).round(decimals=4).tolist()
    [[0.0, 0.2679, 0.0], [-0.2679, 0.0, -0.2679], [0.0, 0.2679, 0.0]]

    Args:
      group_size: G, at least 2.

    Returns:
      float64, shape (G - 1, G - 1): GDPO's advantage of [1, 0, x] minus that of [0, 1, x],
      before whitening, rows n1 = 1 … G - 1, columns n2.
    """
    counts = range(1, group_size)
    groups = list(itertools.product(counts, counts))
    rows = torch.tensor(
        [
            [float(i < n1), float(i >= group_size - n2)]
            for n1, n2 in groups
            for i in range(group_size)
        ],
        dtype=torch.float64,
    )
    ids = torch.arange(len(groups)).repeat_interleave(group_size)
    advantage = decompose(rows, ids, epsilon=0.0).combined.reshape(len(groups), group_size)
    return (advantage[:, 0] - advantage[:, -1]).reshape(group_size - 1, group_size - 1)


@dataclass(frozen=True)
class Counts:
    """Numbers of groups: all, and those that each method tells apart."""

    groups: int
    grpo: int
    grpo_unscaled: int
    gdpo: int


def group_count(components: int, group_size: int) -> int:
    """Unordered groups of `group_size` rollouts with `components` binary rewards.

    >>> group_count(2, 2)
    10
    """
    return math.comb(2**components + group_size - 1, group_size)


@lru_cache(maxsize=64)
def count_distinct(components: int, group_size: int) -> Counts:
    """Distinct groups of advantages, by enumeration of all groups of binary rewards.

    Advantages are taken before whitening and with epsilon 0, so that what is equal is equal up
    to rounding.

    >>> count_distinct(2, 2)
    Counts(groups=10, grpo=2, grpo_unscaled=3, gdpo=3)
    """
    kinds = torch.tensor(list(itertools.product((0.0, 1.0), repeat=components)))
    picked = list(itertools.combinations_with_replacement(range(len(kinds)), group_size))
    rewards = kinds[torch.tensor(picked).reshape(-1)].to(torch.float64)
    ids = torch.arange(len(picked)).repeat_interleave(group_size)

    def distinct(advantage: Tensor) -> int:
        groups = advantage.reshape(len(picked), group_size).sort(dim=1).values
        return len(set(map(tuple, groups.round(decimals=9).tolist())))

    found = decompose(rewards, ids, epsilon=0.0)
    return Counts(
        groups=len(picked),
        grpo=distinct(found.grpo),
        grpo_unscaled=distinct(replace(found, scale=False).grpo),
        gdpo=distinct(found.combined),
    )


def orders_alike(first: Sequence[float], second: Sequence[float]) -> int:
    """Count the pairs that both sequences put in the same order; ties count in neither.

    >>> orders_alike([1.0, 2.0, 3.0], [1.0, 3.0, 2.0])
    2
    """
    pairs = itertools.combinations(range(len(first)), 2)
    return sum((first[i] - first[j]) * (second[i] - second[j]) > 0 for i, j in pairs)
