"""Every quantity that GDPO, GRPO and the variants derive from rewards, each computed once."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, get_args

import torch
from torch import Tensor

from gdpo_verl.advantage.checks import (
    EPSILON,
    check_epsilon,
    check_ranges,
    check_rewards,
    check_weights,
)
from gdpo_verl.advantage.criteria import Criteria, CriteriaSetting
from gdpo_verl.advantage.gate import Gate
from gdpo_verl.advantage.groups import GroupIds, Groups, Spread, factorize_groups, groups_with_any
from gdpo_verl.advantage.variant import GDPO, Ranges, Variant
from gdpo_verl.advantage.whitening import NOISE_FLOOR, WHITEN_EPSILON, BatchStep, Whiten, moments

logger = logging.getLogger(__name__)

Credit = Literal["to_go", "turn", "answer"]
# A larger advantage causes a warning: whitened advantages of 1,000 responses stay below 32.
LARGE_ADVANTAGE = 100.0


@dataclass(frozen=True)
class EstimatorSettings:
    """The settings of an estimator for rewards with K components, which it knows by their columns.

    Attributes:
      weights: of the components; None: all are 1.
      ranges: of each component low and high, in reward units, or None.
      gate: the groups without advantage.
      variant: with its own settings.
      whiten: the batch step; None: the variant's own.
      epsilon, scale: as in `gdpo_verl.gdpo_advantages`.
      credit: what a turn is credited with.
      criteria: "decoupled" normalises each criterion of a component by criterion; "sum" normalises
        the usual number of the rubric alone.

    Raises:
      ValueError: `whiten` or `epsilon` is not allowed.
    """

    weights: Sequence[float] | None = None
    ranges: Ranges | None = None
    gate: Gate | None = None
    variant: Variant = GDPO
    whiten: Whiten | None = None
    epsilon: float = EPSILON
    scale: bool = True
    credit: Credit = "to_go"
    criteria: CriteriaSetting = "decoupled"

    def __post_init__(self) -> None:
        known = get_args(Whiten)
        if self.whiten is not None and self.whiten not in known:
            raise ValueError(f"whiten: expected one of {list(known)}, found {self.whiten!r}")
        check_epsilon(self.epsilon)


DEFAULTS = EstimatorSettings()


@dataclass(frozen=True)
class Decomposition:
    """Rewards of B responses, their groups and settings, and what is computed from them.

    A variant computes its advantages from it. Values are float64, and are computed when they are
    first read. See `decompose`.

    Attributes:
      raw: shape (B, K), in reward units, as the reward returned them; NaN where not scored.
      rewards: the same after the conditions.
      groups: which responses share a prompt.
      weights: shape (K,).
      ranges: float64, shape (K, 2), in reward units; NaN where a component declares none; None
        where no component declares a range.
      token_counts: shape (B,), the number of response tokens of each row; None where no
        whitening over tokens or sequences is needed.
      settings: of the estimator. The advantages of GDPO and GRPO are computed as well as those of
        its variant.
      criteria: of the components by criterion.
      prepared: the spread where components have groups of their own; None where all use `groups`.
    """

    raw: Tensor
    rewards: Tensor
    groups: Groups
    weights: Tensor
    ranges: Tensor | None
    token_counts: Tensor | None
    settings: EstimatorSettings
    criteria: Sequence[Criteria] = ()
    prepared: Spread | None = None

    @property
    def epsilon(self) -> float:
        """The number that is added to the standard deviation of a group, in reward units."""
        return self.settings.epsilon

    @property
    def scale(self) -> bool:
        """True if values are divided by the standard deviations of their groups."""
        return self.settings.scale

    @cached_property
    def largest_weight(self) -> Tensor:
        """The largest absolute weight, a scalar."""
        return self.weights.abs().max()

    @cached_property
    def spread(self) -> Spread:
        """Each component's mean and deviation within the groups."""
        return Spread(self.rewards, self.groups) if self.prepared is None else self.prepared

    @cached_property
    def normalized(self) -> Tensor:
        """z of Eq. 4: shape (B, K), unitless; NaN where not scored."""
        z = self.spread.normalized(self.epsilon, self.scale)
        for own in self._decoupled:
            scored = self.spread.scored[:, own.column]
            z[:, own.column] = own.normalized(scored, self.groups, self.epsilon)
        return z

    @property
    def _decoupled(self) -> Sequence[Criteria]:
        """The criteria that are normalised one by one.

        Where nothing is divided by a deviation, this makes no difference.
        """
        return self.criteria if self.scale and self.settings.criteria == "decoupled" else ()

    @cached_property
    def terms(self) -> Tensor:
        """The terms that GDPO adds, w_k z[i, k] / unit: shape (B, K); 0 where not scored."""
        # Whitening adds 1e-8 to the variance. In this unit only the ratios of the weights matter.
        return self.normalized.nan_to_num(0.0) * (self.weights / self.largest_weight)

    @cached_property
    def scored(self) -> Tensor:
        """Rows with at least one scored component: bool, shape (B,)."""
        return self.spread.scored.any(dim=1)

    @cached_property
    def gated(self) -> Tensor:
        """Rows of the groups that the gate leaves without advantage: bool, shape (B,)."""
        gate = self.settings.gate
        if gate is None:
            return torch.zeros_like(self.scored)
        return gate.closed(self.spread)

    @cached_property
    def has_advantage(self) -> Tensor:
        """Rows that carry an advantage: bool, shape (B,)."""
        return self.scored & ~self.gated

    @cached_property
    def combined(self) -> Tensor:
        """GDPO before whitening (Eq. 7), in units of the largest weight: shape (B,).

        NaN where no component is scored or the gate is closed.
        """
        # Not a matrix product: BLAS rounds equal rows differently, and constant groups must be
        # exact.
        return torch.where(self.has_advantage, self.terms.sum(dim=1), torch.nan)

    @cached_property
    def score(self) -> Tensor:
        """sum_k w_k r[i, k], shape (B,), in reward units; a component that is not scored adds 0."""
        score = (self.rewards.nan_to_num(0.0) * self.weights).sum(dim=1)
        # Infinity minus the mean of its group is NaN, which would mean "not scored".
        if not bool(score.isfinite().all()):
            row = int((~score.isfinite()).nonzero()[0])
            raise ValueError(
                f"weights: with {self.weights.tolist()} the sum of row {row} is beyond float64"
            )
        return score

    @cached_property
    def grpo(self) -> Tensor:
        """GRPO's advantage on the same weighted sum: shape (B,); 0 where nothing is scored."""
        return self._summed.normalized(self.epsilon, self.scale)[:, 0].nan_to_num(0.0)

    @cached_property
    def grpo_terms(self) -> Tensor:
        """Each component's part of GRPO's advantage: shape (B, K), unitless.

        w_k (r[i, k] - mean_g r[:, k]) divided by the deviation of the group's sums; 0 where not
        scored, or where the sums of the group are all the same.
        """
        divisor = self._summed.std + self.epsilon if self.scale else torch.ones_like(self.score)
        parts = self.spread.deviation * self.weights / divisor.reshape(-1, 1)
        return torch.where(self._summed.varies, parts, 0.0)

    @cached_property
    def _summed(self) -> Spread:
        """The weighted sum's mean and deviation within the groups."""
        sizes = (self.rewards.nan_to_num(0.0) * self.weights).abs().sum(dim=1)
        # Sums that differ only by the rounding of the addition are treated as equal.
        noise = sizes * (self.weights.numel() - 1) * 2 * torch.finfo(torch.float64).eps
        total = torch.where(self.scored, self.score, torch.nan)
        return Spread(total[:, None], self.groups, noise[:, None])

    @cached_property
    def batch_step(self) -> BatchStep:
        """The chosen variant's values before and after the batch step."""
        variant = self.settings.variant
        return self._gdpo if variant is GDPO else self._batch_step_of(variant)

    @cached_property
    def has_signal(self) -> Tensor:
        """Rows of the groups to which the chosen variant gives an advantage: bool, shape (B,).

        A group gets no advantage where the value of the variant, before the batch step, is 0 for
        all of its rows. What rounding and epsilon leave of components that cancel is treated as 0.
        """
        # Where nothing is divided by a deviation, small values come from small rewards.
        variant = self.settings.variant
        size = self._combine(variant).nan_to_num(0.0).abs()
        least = 0.0 if not self.scale or variant.keeps_units else NOISE_FLOOR
        return groups_with_any((size > least)[:, None], self.groups)[self.groups.codes, 0]

    @cached_property
    def advantage(self) -> Tensor:
        """The chosen variant's advantage of each response: shape (B,); 0 where left out."""
        advantage = self.batch_step.advantage
        if self.settings.variant is not GDPO and advantage.numel():
            largest = float(advantage.abs().max())
            if largest > LARGE_ADVANTAGE:
                logger.warning(
                    "variant %s: the largest advantage is %.3g; advantages are usually below 10.",
                    self.settings.variant.name,
                    largest,
                )
        return advantage

    @property
    def gdpo(self) -> Tensor:
        """GDPO's advantage of each response: shape (B,); 0 where left out."""
        return self._gdpo.advantage

    @cached_property
    def _gdpo(self) -> BatchStep:
        return self._batch_step_of(GDPO)

    def _batch_step_of(self, variant: Variant) -> BatchStep:
        combined = self._combine(variant)
        over = self.settings.whiten or variant.whiten
        if over == "none":
            # `combined` is in units of the largest weight; a linear variant is multiplied by it
            # again.
            unit = float(self.largest_weight) if variant.linear else 1.0
            return BatchStep(combined, 0.0, unit, whitened=False)
        if self.token_counts is None:
            raise ValueError("token_counts: whitening needs the response tokens of each row")
        mean, variance = moments(combined, self.token_counts, over, unbiased=variant.unbiased)
        if variance is None or self._is_noise(variance, variant, over):
            # Exactly 0 for every row, whatever rounding left in the values.
            return BatchStep(combined, mean, 0.0)
        return BatchStep(combined, mean, float(torch.rsqrt(variance + WHITEN_EPSILON)))

    def _combine(self, variant: Variant) -> Tensor:
        """Compute the values of a variant; NaN where a response is left out."""
        if variant is GDPO or not len(self.has_advantage):
            return self.combined
        values = variant.combine(self, **variant.settings)
        shape, kept = tuple(getattr(values, "shape", ())), self.has_advantage
        if shape != tuple(kept.shape):
            raise ValueError(
                f"variant {variant.name!r}: expected a tensor of shape {tuple(kept.shape)}, "
                f"one number per response, found {shape or type(values).__name__}"
            )
        # A variant need not know about gates and rows that are not scored: they are left out here.
        values = torch.where(kept, values.detach().to(self.rewards), torch.nan)
        broken = kept & (values.isinf() if variant.may_drop_rows else ~values.isfinite())
        if bool(broken.any()):
            row = int(broken.nonzero()[0])
            raise ValueError(
                f"variant {variant.name!r}: expected finite numbers, found {float(values[row])} "
                f"for the rewards {self.rewards[row].tolist()}"
            )
        return values

    def _is_noise(self, variance: Tensor, variant: Variant, over: Whiten) -> bool:
        """Return whether components cancel, so that only rounding and the effect of epsilon remain.

        The deviation is then below `NOISE_FLOOR`, either with the groups' epsilon or without it.
        The effect of epsilon grows as epsilon comes near the deviations of the groups.
        """
        if not self.scale or variant.keeps_units:
            return False
        deviation = float(variance.sqrt())
        if deviation < NOISE_FLOOR:
            return True
        if not variant.uses_epsilon or deviation > NOISE_FLOOR + self._most_epsilon_changes:
            return False
        # This costs as much as the variant itself, so it is the last check.
        exact = replace(self, settings=replace(self.settings, epsilon=0.0))._combine(variant)
        _, without = moments(exact, self.token_counts, over)  # type: ignore[arg-type]
        return without is not None and float(without.sqrt()) < NOISE_FLOOR

    @property
    def _most_epsilon_changes(self) -> float:
        """A bound on how far epsilon changes their deviation, from 2 K max |z| epsilon / min std.

        The bound is ten times that, because a variant may multiply the weight of a component.
        """
        if not self.epsilon or not self.normalized.numel():
            return 0.0
        if self._decoupled:
            return math.inf
        least = torch.where(self.spread.varies, self.spread.std, torch.inf).min()
        largest = self.normalized.nan_to_num(0.0).abs().max()
        return float(20 * self.weights.numel() * largest * self.epsilon / least)


def decompose(
    rewards: Tensor,
    group_ids: GroupIds,
    token_counts: Tensor | None = None,
    settings: EstimatorSettings = DEFAULTS,
    *,
    conditioned: Tensor | None = None,
    criteria: Sequence[Criteria] = (),
) -> Decomposition:
    """Check that settings fit the rewards and groups, and collect them in a `Decomposition`.

    Args:
      rewards: shape (B, K), in reward units; NaN where not scored.
      group_ids: B hashables, a tensor of shape (B,), or `Groups`.
      token_counts: shape (B,). A row without tokens counts in the statistics of its group, but not
        in those of whitening.
      settings: of the estimator.
      conditioned: the rewards after `apply_conditions`; default: `rewards`.
      criteria: of the components by criterion, after the conditions. The rewards have their
        numbers (`rubric_number`).

    Raises:
      ValueError: as `gdpo_verl.gdpo_advantages`.
    """
    raw = check_rewards(rewards)
    if token_counts is not None and token_counts.shape != raw.shape[:1]:
        raise ValueError(
            f"token_counts: expected shape ({len(raw)},), found {tuple(token_counts.shape)}"
        )
    # Before anything is computed, so that an error names the argument and not a tensor's shape.
    weights = check_weights(settings.weights, raw)
    settings.variant.check_weights(weights.tolist())
    ranges = check_ranges(settings.ranges, raw)
    settings.variant.check_ranges(settings.ranges, range(raw.shape[1]))
    return Decomposition(
        raw=raw,
        rewards=raw if conditioned is None else check_rewards(conditioned),
        groups=factorize_groups(group_ids, raw),
        weights=weights,
        ranges=ranges,
        token_counts=token_counts,
        settings=settings,
        criteria=criteria,
    )
