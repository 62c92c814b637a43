"""Every quantity that GDPO and GRPO derive from a matrix of rewards, each computed once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from gdpo_verl.advantage.gate import Gate
from gdpo_verl.advantage.groups import Groups, Spread


@dataclass(frozen=True)
class Decomposition:
    """Rewards of B responses, their groups and settings, and what is computed from them.

    A variant computes its advantages from it. Values are float64, computed when they are first
    asked for.

    Attributes:
      raw: shape (B, K), in reward units, as the reward returned them; NaN where not scored.
      rewards: the same after the conditions.
      groups: which responses share a prompt.
      weights: shape (K,).
      epsilon, scale: as in `gdpo_verl.gdpo_advantages`.
      ranges: float64, shape (K, 2), in reward units; NaN where a component declares none. None
        where none does.
      gate: the groups without advantage.
    """

    raw: Tensor
    rewards: Tensor
    groups: Groups
    weights: Tensor
    epsilon: float
    scale: bool
    ranges: Tensor | None
    gate: Gate | None

    @cached_property
    def largest_weight(self) -> Tensor:
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
        # Whitening adds 1e-8 to the variance: in this unit only the weights' ratios matter there.
        return self.normalized.nan_to_num(0.0) * (self.weights / self.largest_weight)

    @cached_property
    def scored(self) -> Tensor:
        """Rows of which a component is scored: bool, shape (B,)."""
        return self.spread.scored.any(dim=1)

    @cached_property
    def gated(self) -> Tensor:
        """Rows of the groups that the gate leaves without advantage: bool, shape (B,)."""
        if self.gate is None:
            return torch.zeros_like(self.scored)
        return self.gate.closed(self.spread)

    @cached_property
    def has_advantage(self) -> Tensor:
        """Rows that carry an advantage: bool, shape (B,)."""
        return self.scored if self.gate is None else self.scored & ~self.gated

    @cached_property
    def combined(self) -> Tensor:
        """GDPO before whitening (Eq. 7), in units of the largest weight: shape (B,).

        NaN where no component is scored or the gate is closed.
        """
        # Not a matrix product: BLAS rounds equal rows differently, and a constant group is exact.
        return torch.where(self.has_advantage, self.terms.sum(dim=1), torch.nan)

    @cached_property
    def score(self) -> Tensor:
        """sum_k w_k r[i, k], an unscored component adding 0: shape (B,), in reward units."""
        score = (self.rewards.nan_to_num(0.0) * self.weights).sum(dim=1)
        # Less its group's mean an infinity is NaN, and so would be taken for not scored.
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

        w_k (r[i, k] - mean_g r[:, k]) over the deviation of the group's sums; 0 where not scored,
        or where the sums of the group are all the same.
        """
        divisor = self._summed.std + self.epsilon if self.scale else torch.ones_like(self.score)
        parts = self.spread.deviation * self.weights / divisor.reshape(-1, 1)
        return torch.where(self._summed.varies, parts, 0.0)

    @cached_property
    def _summed(self) -> Spread:
        """The weighted sum's mean and deviation within the groups."""
        sizes = (self.rewards.nan_to_num(0.0) * self.weights).abs().sum(dim=1)
        # Sums that are equal but for the rounding of their addition are equal.
        noise = sizes * (self.weights.numel() - 1) * 2 * torch.finfo(torch.float64).eps
        total = torch.where(self.scored, self.score, torch.nan)
        return Spread(total[:, None], self.groups, noise[:, None])
