"""All that GDPO and GRPO make of one batch of rewards, each number computed once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import get_args

import torch
from torch import Tensor

from gdpo_verl.advantage.arguments import check_epsilon, check_rewards, check_weights
from gdpo_verl.advantage.groups import GroupIds, Groups, Spread, factorize_groups
from gdpo_verl.advantage.whitening import NOISE_FLOOR, WHITEN_EPSILON, Whiten, moments


@dataclass(frozen=True)
class Decomposition:
    """Rewards of B responses, their groups and settings, and what is computed from them.

    The estimator, the metrics, the dumps and the report look at it. Values are float64 and are
    computed when they are first asked for. Made by `decompose`.

    Attributes:
      raw: shape (B, K), in reward units, as the reward returned them; NaN where not scored.
      rewards: the same after the conditions.
      groups: which responses share a prompt.
      weights: shape (K,).
      token_counts: shape (B,), the response tokens that each row stands for; None where no
        whitening over tokens or sequences will be asked for.
      whiten, epsilon, scale: as in `gdpo_verl.gdpo_advantages`.
    """

    raw: Tensor
    rewards: Tensor
    groups: Groups
    weights: Tensor
    token_counts: Tensor | None
    whiten: Whiten
    epsilon: float
    scale: bool

    @cached_property
    def unit(self) -> Tensor:
        """The largest weight: a number."""
        return self.weights.abs().max()

    @cached_property
    def spread(self) -> Spread:
        """Each component's mean and deviation within the groups."""
        return Spread(self.rewards, self.groups)

    @cached_property
    def normalized(self) -> Tensor:
        """z of Eq. 4: shape (B, K), unitless; NaN where not scored."""
        return self.spread.normalized(self.epsilon, self.scale)

    @cached_property
    def terms(self) -> Tensor:
        """The terms that GDPO adds, w_k z[i, k] / unit: shape (B, K); 0 where not scored."""
        return self._terms(self.normalized)

    @cached_property
    def scored(self) -> Tensor:
        """Rows of which a component is scored: bool, shape (B,)."""
        return self.spread.scored.any(dim=1)

    @cached_property
    def combined(self) -> Tensor:
        """GDPO before whitening (Eq. 7), in units of the largest weight: shape (B,).

        NaN where no component is scored.
        """
        return self._combine(self.terms)

    @cached_property
    def batch_step(self) -> tuple[float, float]:
        """Mean and factor of the last step, (combined - mean) * factor."""
        if self.whiten == "none":
            return 0.0, float(self.unit)
        if self.token_counts is None:
            raise ValueError("token_counts: whitening needs the response tokens of each row")
        mean, variance = moments(self.combined, self.token_counts, self.whiten)
        if variance is None or (self.scale and self._is_noise(variance)):
            return mean, 0.0
        return mean, float(torch.rsqrt(variance + WHITEN_EPSILON))

    @cached_property
    def gdpo(self) -> Tensor:
        """GDPO's advantage of each response: shape (B,); 0 where nothing is scored."""
        mean, factor = self.batch_step
        return ((self.combined - mean) * factor).nan_to_num(0.0)

    @cached_property
    def score(self) -> Tensor:
        """sum_k w_k r[i, k], an unscored component adding 0: shape (B,), in reward units."""
        score = (self.rewards.nan_to_num(0.0) * self.weights).sum(dim=1)
        if not bool(score.isfinite().all()):
            row = int((~score.isfinite()).nonzero()[0])
            raise ValueError(
                f"weights: with {self.weights.tolist()} the sum of row {row} is beyond float64"
            )
        return score

    @cached_property
    def grpo(self) -> Tensor:
        """GRPO's advantage on the same weighted sum: shape (B,); 0 where nothing is scored."""
        sizes = (self.rewards.nan_to_num(0.0) * self.weights).abs().sum(dim=1)
        # Sums that are equal but for the rounding of their addition are equal.
        noise = sizes * (self.weights.numel() - 1) * 2 * torch.finfo(torch.float64).eps
        total = torch.where(self.scored, self.score, torch.nan)
        spread = Spread(total[:, None], self.groups, noise[:, None])
        return spread.normalized(self.epsilon, self.scale)[:, 0].nan_to_num(0.0)

    def _terms(self, normalized: Tensor) -> Tensor:
        return normalized.nan_to_num(0.0) * (self.weights / self.unit)

    def _combine(self, terms: Tensor) -> Tensor:
        # Not a matrix product: BLAS rounds equal rows differently, and a constant group is exact.
        return torch.where(self.scored, terms.sum(dim=1), torch.nan)

    def _is_noise(self, variance: Tensor) -> bool:
        """Tell whether components that cancel left only rounding and what epsilon makes of them.

        Their deviation is below `NOISE_FLOOR` with the groups' epsilon or without it: what
        epsilon leaves grows as it nears the deviations.
        """
        deviation = float(variance.sqrt())
        if deviation < NOISE_FLOOR:
            return True
        if deviation > NOISE_FLOOR + self._most_epsilon_changes:
            return False
        exact = self._combine(self._terms(self.spread.normalized(0.0, True)))
        _, variance_without = moments(exact, self.token_counts, self.whiten)  # type: ignore[arg-type]
        return variance_without is not None and float(variance_without.sqrt()) < NOISE_FLOOR

    @property
    def _most_epsilon_changes(self) -> float:
        """A bound of how far epsilon moves their deviation: 2 K max |z| epsilon / min std."""
        if not self.epsilon or not self.normalized.numel():
            return 0.0
        least = torch.where(self.spread.varies, self.spread.std, torch.inf).min()
        largest = self.normalized.nan_to_num(0.0).abs().max()
        return float(2 * self.weights.numel() * largest * self.epsilon / least)


def decompose(
    rewards: Tensor,
    group_ids: GroupIds,
    token_counts: Tensor | None = None,
    *,
    conditioned: Tensor | None = None,
    weights: Sequence[float] | None = None,
    whiten: Whiten = "token",
    epsilon: float = 1e-6,
    scale: bool = True,
) -> Decomposition:
    """Check rewards, groups and settings, and set them side by side.

    Args:
      rewards: shape (B, K), in reward units; NaN where not scored.
      group_ids: B hashables, a tensor of shape (B,), or `Groups`.
      token_counts: shape (B,). A row with none counts in its group's statistics and in no
        whitening statistic.
      conditioned: the rewards after `apply_conditions`; default: as they are.
      weights, whiten, epsilon, scale: as in `gdpo_verl.gdpo_advantages`.

    Raises:
      ValueError: as `gdpo_verl.gdpo_advantages`.
    """
    if whiten not in get_args(Whiten):
        raise ValueError(f"whiten: expected one of {list(get_args(Whiten))}, found {whiten!r}")
    raw = check_rewards(rewards)
    if token_counts is not None and token_counts.shape != raw.shape[:1]:
        raise ValueError(
            f"token_counts: expected shape ({len(raw)},), found {tuple(token_counts.shape)}"
        )
    check_epsilon(epsilon)
    return Decomposition(
        raw=raw,
        rewards=raw if conditioned is None else check_rewards(conditioned),
        groups=factorize_groups(group_ids, raw),
        weights=check_weights(weights, raw),
        token_counts=token_counts,
        whiten=whiten,
        epsilon=epsilon,
        scale=scale,
    )
