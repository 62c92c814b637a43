"""All quantities that GDPO, GRPO and the variants compute from rewards, each computed once.

A *decomposition* is the rewards of a batch together with these quantities. Its last step, the
*batch step*, whitens the values of the responses (normalises them over the batch), unless the
settings or the variant leave the values as they are.
"""

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
# A larger advantage causes a warning. For comparison, whitened advantages of n responses are below
# the square root of n, which is 32 for 1,000 responses.
LARGE_ADVANTAGE = 100.0


@dataclass(frozen=True)
class EstimatorSettings:
    """The settings of an estimator for rewards with K components.

    The settings refer to a component by its column in the rewards, not by its name.

    Attributes:
      weights: the weight of each component; None means that all weights are 1.
      ranges: (low, high) of each component, in reward units, or None for a component without a
        range.
      gate: the rule by which groups get no advantage, if there is one.
      variant: the variant, with its own settings.
      whiten: how the batch step whitens; None means the default of the variant.
      epsilon, scale: as in `gdpo_verl.gdpo_advantages`.
      credit: the reward that a turn is credited with: "to_go" is the sum of this turn's and all
        later rewards, "turn" is the reward of this turn, and "answer" is the sum over all turns,
        which credits the complete response.
      criteria: for a component by criterion (a rubric), "decoupled" normalises each criterion, and
        "sum" normalises only the rubric's total (`rubric_number`).

    Raises:
      ValueError: `whiten` or `epsilon` has a value that is not allowed.
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
        allowed = get_args(Whiten)
        if self.whiten is not None and self.whiten not in allowed:
            raise ValueError(f"whiten: expected one of {list(allowed)}, found {self.whiten!r}")
        check_epsilon(self.epsilon)


DEFAULTS = EstimatorSettings()


@dataclass(frozen=True)
class Decomposition:
    """The rewards of B responses, their groups and settings, and all that is computed from them.

    A variant computes its advantages from a decomposition. Values are float64, and are computed
    when they are first read. Use `decompose` to create a decomposition.

    Attributes:
      raw: shape (B, K), in reward units, as the reward function returned them; NaN where not
        scored.
      rewards: the rewards after the conditions, shape (B, K).
      groups: the group of each response.
      weights: the weights of the components, shape (K,).
      ranges: float64, shape (K, 2), in reward units. The row of a component without a declared
        range is NaN. `ranges` is None if the settings have no ranges.
      token_counts: the number of response tokens of each row, shape (B,). It may be None if
        nothing is whitened.
      settings: the settings of the estimator. A decomposition has the advantages of its variant,
        and also the advantages of GDPO and GRPO.
      criteria: the criteria of each component by criterion.
      prepared: the spread, if it cannot be computed from `rewards` and `groups`. This is so for
        turns, because components by turn are normalised within other groups.
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
        """The number that is added to each group's standard deviation, in reward units."""
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
        """The mean and the deviation of each component within the groups."""
        return Spread(self.rewards, self.groups) if self.prepared is None else self.prepared

    @cached_property
    def normalized(self) -> Tensor:
        """The normalised rewards, z of Eq. 4: shape (B, K), unitless; NaN where not scored."""
        z = self.spread.normalized(self.epsilon, self.scale)
        for criteria in self._decoupled:
            scored = self.spread.scored[:, criteria.column]
            z[:, criteria.column] = criteria.normalized(scored, self.groups, self.epsilon)
        return z

    @property
    def _decoupled(self) -> Sequence[Criteria]:
        """The criteria that are normalised one by one.

        If values are not divided by deviations, there are none, because normalising criteria one
        by one differs from normalising their sum only by these divisions.
        """
        return self.criteria if self.scale and self.settings.criteria == "decoupled" else ()

    @cached_property
    def terms(self) -> Tensor:
        """The terms that GDPO adds, w_k z[i, k] / largest weight: shape (B, K); 0 if not scored."""
        # Whitening adds 1e-8 to the variance, so the size of all weights together would matter.
        # In units of the largest weight, only the ratios of the weights matter.
        return self.normalized.nan_to_num(0.0) * (self.weights / self.largest_weight)

    @cached_property
    def scored(self) -> Tensor:
        """The rows with at least one scored component: bool, shape (B,)."""
        return self.spread.scored.any(dim=1)

    @cached_property
    def gated(self) -> Tensor:
        """The rows of the groups to which the gate gives no advantage: bool, shape (B,)."""
        gate = self.settings.gate
        if gate is None:
            return torch.zeros_like(self.scored)
        return gate.closed(self.spread)

    @cached_property
    def has_advantage(self) -> Tensor:
        """The rows that get an advantage: bool, shape (B,)."""
        return self.scored & ~self.gated

    @cached_property
    def combined(self) -> Tensor:
        """GDPO's sum before whitening (Eq. 7), in units of the largest weight: shape (B,).

        It is NaN if no component is scored, or if the gate gives the group no advantage.
        """
        # A matrix product would be wrong here: BLAS may round equal rows differently, and
        # responses with equal rewards must have exactly equal sums.
        return torch.where(self.has_advantage, self.terms.sum(dim=1), torch.nan)

    @cached_property
    def score(self) -> Tensor:
        """The weighted sum of the rewards, sum_k w_k r[i, k]: shape (B,), in reward units.

        A component that is not scored adds 0.
        """
        score = (self.rewards.nan_to_num(0.0) * self.weights).sum(dim=1)
        # An infinite sum minus the mean of its group would be NaN, which means "not scored".
        if not bool(score.isfinite().all()):
            row = int((~score.isfinite()).nonzero()[0])
            raise ValueError(
                f"weights: with {self.weights.tolist()} the sum of row {row} is beyond float64"
            )
        return score

    @cached_property
    def grpo(self) -> Tensor:
        """GRPO's advantage for the same score: shape (B,); 0 where nothing is scored."""
        return self._summed.normalized(self.epsilon, self.scale)[:, 0].nan_to_num(0.0)

    @cached_property
    def grpo_terms(self) -> Tensor:
        """The part of each component in GRPO's advantage: shape (B, K), unitless.

        A part is w_k (r[i, k] - mean_g r[:, k]), divided by the deviation of the scores of the
        group. It is 0 where the component is not scored, and where all scores of the group are the
        same.
        """
        divisor = self._summed.std + self.epsilon if self.scale else torch.ones_like(self.score)
        parts = self.spread.deviation * self.weights / divisor.reshape(-1, 1)
        return torch.where(self._summed.varies, parts, 0.0)

    @cached_property
    def _summed(self) -> Spread:
        """The mean and the deviation of the score within the groups."""
        sizes = (self.rewards.nan_to_num(0.0) * self.weights).abs().sum(dim=1)
        # Scores that differ only by the rounding of the addition are treated as equal.
        noise = sizes * (self.weights.numel() - 1) * 2 * torch.finfo(torch.float64).eps
        total = torch.where(self.scored, self.score, torch.nan)
        return Spread(total[:, None], self.groups, noise[:, None])

    @cached_property
    def batch_step(self) -> BatchStep:
        """The values of the chosen variant before and after the batch step."""
        variant = self.settings.variant
        return self._gdpo if variant is GDPO else self._batch_step_of(variant)

    @cached_property
    def has_signal(self) -> Tensor:
        """The rows of the groups to which the chosen variant gives an advantage: bool, shape (B,).

        A group gets no advantage if the value of the variant, before the batch step, is 0 for all
        of its rows. The small remainder of components that cancel, which comes from rounding and
        epsilon, is treated as 0.
        """
        # If values are not divided by deviations, a small value may come from small rewards, and
        # is not treated as a remainder.
        variant = self.settings.variant
        size = self._combine(variant).nan_to_num(0.0).abs()
        least = 0.0 if not self.scale or variant.keeps_units else NOISE_FLOOR
        return groups_with_any((size > least)[:, None], self.groups)[self.groups.codes, 0]

    @cached_property
    def advantage(self) -> Tensor:
        """The advantage of each response with the chosen variant: shape (B,); 0 if left out.

        A response is left out if it is not scored, if its group is gated, or if the variant drops
        it.
        """
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
        """The advantage of each response with GDPO: shape (B,); 0 if left out."""
        return self._gdpo.advantage

    @cached_property
    def _gdpo(self) -> BatchStep:
        return self._batch_step_of(GDPO)

    def _batch_step_of(self, variant: Variant) -> BatchStep:
        combined = self._combine(variant)
        over = self.settings.whiten or variant.whiten
        if over == "none":
            # `combined` is in units of the largest weight. The result of a linear variant is
            # multiplied by that weight, so that the weights keep their effect.
            unit = float(self.largest_weight) if variant.linear else 1.0
            return BatchStep(combined, 0.0, unit, whitened=False)
        if self.token_counts is None:
            raise ValueError("token_counts: whitening needs the response tokens of each row")
        mean, variance = moments(combined, self.token_counts, over, unbiased=variant.unbiased)
        if variance is None or self._is_noise(variance, variant, over):
            # The factor 0 makes the advantages exactly 0, also where rounding left a remainder.
            return BatchStep(combined, mean, 0.0)
        return BatchStep(combined, mean, float(torch.rsqrt(variance + WHITEN_EPSILON)))

    def _combine(self, variant: Variant) -> Tensor:
        """Compute the value of each response with a variant; NaN if it is left out."""
        if variant is GDPO or not len(self.has_advantage):
            return self.combined
        values = variant.combine(self, **variant.settings)
        shape, kept = tuple(getattr(values, "shape", ())), self.has_advantage
        if shape != tuple(kept.shape):
            raise ValueError(
                f"variant {variant.name!r}: expected a tensor of shape {tuple(kept.shape)}, "
                f"one number per response, found {shape or type(values).__name__}"
            )
        # Rows that are gated or not scored are left out here, so that no variant has to do it.
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
        """Return whether the values are only the remainder of components that cancel.

        The remainder comes from rounding and from the epsilon of the group normalisation. In that
        case the deviation is below `NOISE_FLOOR`, either with the epsilon or without it. Both are
        tried, because the effect of epsilon is large if the groups' deviations are not much larger
        than epsilon.
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
    """Check that the settings fit the rewards and groups, and return a `Decomposition`.

    Args:
      rewards: shape (B, K), in reward units; NaN where not scored.
      group_ids: B hashables, a tensor of shape (B,), or `Groups`.
      token_counts: shape (B,). A row without tokens counts in the statistics of its group, but not
        in those of whitening.
      settings: the settings of the estimator.
      conditioned: the rewards after `apply_conditions`; the default is `rewards`.
      criteria: the criteria of each component by criterion, after the conditions. The component
        also has a column in `rewards`, with its `rubric_number`.

    Raises:
      ValueError: as in `gdpo_verl.gdpo_advantages`.
    """
    raw = check_rewards(rewards)
    if token_counts is not None and token_counts.shape != raw.shape[:1]:
        raise ValueError(
            f"token_counts: expected shape ({len(raw)},), found {tuple(token_counts.shape)}"
        )
    # The checks come first, because an error should name the argument. Otherwise torch would report
    # a wrong shape.
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
