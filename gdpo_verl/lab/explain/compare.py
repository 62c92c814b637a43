"""Compare GRPO and GDPO on one group, and count the advantages that each can distinguish.

Every advantage here comes from `gdpo_verl.advantage`.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gdpo_verl.advantage import (
    VARIANTS,
    Decomposition,
    EstimatorSettings,
    Gate,
    apply_conditions,
    decompose,
)
from gdpo_verl.distinct import levels

WITHOUT_EPSILON = EstimatorSettings(epsilon=0.0)


@dataclass(frozen=True)
class Rollout:
    """One rollout of a group.

    Attributes:
      name: its name on the page.
      rewards: its components after conditions, in reward units.
      score: their weighted sum; GRPO sees only this.
      terms: w_k z_k, the terms that GDPO adds.
      grpo: its GRPO advantage.
      gdpo: its GDPO advantage.
      tie: a letter that the rollouts of the group share if they have the same GRPO advantage
        although their rewards differ; empty when there is none.
      split: whether at least two rollouts of that tie have different GDPO advantages.
    """

    name: str
    rewards: tuple[float, ...]
    score: float
    terms: tuple[float, ...]
    grpo: float
    gdpo: float
    tie: str = ""
    split: bool = False


def decompose_group(
    rewards: Tensor,
    keys: Sequence[str],
    *,
    weights: Sequence[float] | None = None,
    conditions: Mapping[str, Mapping[str, Any]] | None = None,
    gate: int | None = None,
    whiten: bool = True,
    variant: str = "gdpo",
    highest: Sequence[float] | None = None,
) -> Decomposition:
    """Decompose the rewards of one group.

    Args:
      rewards: shape (G, K), in reward units, before conditions.
      keys: the names of the K components.
      weights, conditions: as in `gdpo_verl.gdpo_advantages` and `apply_conditions`.
      gate: the column of the outcome, if there is a gate.
      whiten: whether to whiten over this one group, where the variant whitens.
      variant: the name of a variant, which is used with its default settings.
      highest: the largest value of each reward, for variants that need ranges; the smallest is 0.

    Raises:
      ValueError: `gdpo_advantages` or `apply_conditions` would raise it.
    """
    settings = EstimatorSettings(
        weights=weights,
        ranges=None if highest is None else [(0.0, value) for value in highest],
        gate=None if gate is None else Gate(gate),
        variant=VARIANTS[variant],
        # None means the whitening of each estimator: GDPO and the variant share one decomposition.
        whiten=None if whiten else "none",
    )
    return decompose(
        rewards,
        [0] * len(rewards),
        torch.ones(len(rewards)),
        settings,
        conditioned=apply_conditions(rewards, list(keys), conditions or {}),
    )


def compare(names: Sequence[str], decomposition: Decomposition) -> list[Rollout]:
    """Combine both advantages of each named rollout, the highest GDPO advantage first."""
    grpo = decomposition.grpo.tolist()
    gdpo = decomposition.gdpo.tolist()
    rewards = [tuple(row) for row in decomposition.rewards.tolist()]
    scores = decomposition.score.tolist()
    terms = (decomposition.terms * decomposition.largest_weight).tolist()
    ties = find_ties(rewards, grpo, gdpo)
    return [
        Rollout(names[i], rewards[i], scores[i], tuple(terms[i]), grpo[i], gdpo[i], *ties[i])
        for i in sorted(range(len(names)), key=lambda i: (-gdpo[i], -grpo[i]))
    ]


def find_ties(
    rewards: Sequence[tuple[float, ...]], grpo: Sequence[float], gdpo: Sequence[float]
) -> list[tuple[str, bool]]:
    """Give each rollout its tie's letter, and whether GDPO splits that tie (see `Rollout`)."""
    # Advantages that differ only by rounding are equal, so levels are compared, not numbers.
    by_grpo = levels(grpo)
    by_gdpo = levels(gdpo)
    ties = [("", False)] * len(rewards)
    letters = iter("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
    for level in sorted(set(by_grpo), reverse=True):
        members = [i for i in range(len(rewards)) if by_grpo[i] == level]
        # Equal rewards must get equal advantages, so they are not a tie.
        if len({rewards[i] for i in members}) > 1:
            tie = next(letters), len({by_gdpo[i] for i in members}) > 1
            for i in members:
                ties[i] = tie
    return ties


def tied_pairs(group: Sequence[Rollout]) -> list[tuple[Rollout, Rollout]]:
    """Return for each tie of GRPO the two rollouts whose GDPO advantages differ most."""
    pairs = []
    for letter in dict.fromkeys(rollout.tie for rollout in group if rollout.tie):
        # The group is sorted by GDPO; among equal ones, take the first whose rewards differ.
        first, *others = [rollout for rollout in group if rollout.tie == letter]
        different = [rollout for rollout in others if rollout.rewards != first.rewards]
        pairs.append((first, min(different, key=lambda rollout: rollout.gdpo)))
    return pairs


class Counts(NamedTuple):
    """Numbers of groups: all, and those that each method distinguishes."""

    groups: int
    grpo: int
    grpo_unscaled: int
    gdpo: int


def count_distinct(components: int, group_size: int) -> Counts:
    """Count distinct groups of advantages over all groups of binary rewards.

    Advantages are taken before whitening and with epsilon 0, so that equal ones differ only by
    rounding.

    >>> count_distinct(2, 2)
    Counts(groups=10, grpo=2, grpo_unscaled=3, gdpo=3)
    """
    kinds = torch.tensor(list(itertools.product((0.0, 1.0), repeat=components)))
    picked = list(itertools.combinations_with_replacement(range(len(kinds)), group_size))
    rewards = kinds[torch.tensor(picked).reshape(-1)].to(torch.float64)
    ids = torch.arange(len(picked)).repeat_interleave(group_size)

    def distinct(advantage: Tensor) -> int:
        # The advantages of a group are sorted, because the order of the rollouts does not matter,
        # and rounded, so that equal advantages are equal numbers.
        groups = advantage.reshape(len(picked), group_size).sort(dim=1).values
        return len(set(map(tuple, groups.round(decimals=9).tolist())))

    scaled = decompose(rewards, ids, settings=WITHOUT_EPSILON)
    unscaled = replace(scaled, settings=replace(WITHOUT_EPSILON, scale=False))
    return Counts(len(picked), *map(distinct, (scaled.grpo, unscaled.grpo, scaled.combined)))
