"""The figures of each component under some settings, kept by group, so that groups are resampled.

Rows of a step come and go; of a group K numbers of each kind stay, and K x K products.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from gdpo_verl.advantage import Decomposition
from gdpo_verl.config import Objective
from gdpo_verl.diagnostics import influence_terms

# Intervals hold 95 % of this many draws of the groups, the same ones each time.
DRAWS = 400
_AT_ONCE = 50
# More groups than these are drawn in as many lots.
_LOTS = 4096
Array: TypeAlias = Any  # numpy's, of float64


@dataclass(frozen=True)
class Setting:
    """An estimator with what it is computed of.

    Attributes:
      objective: components, weights, conditions, variant.
      estimator: `gdpo` or `grpo`, as `algorithm.adv_estimator`.
    """

    objective: Objective
    estimator: str

    def advantage(self, decomposition: Decomposition) -> Tensor:
        """The advantage that trains: shape (B,)."""
        return decomposition.advantage if self.estimator == "gdpo" else decomposition.grpo

    def terms(self, decomposition: Decomposition) -> Tensor:
        """The terms that are added for it, before the batch step: shape (B, K)."""
        return decomposition.terms if self.estimator == "gdpo" else decomposition.grpo_terms

    @property
    def name(self) -> str:
        """For people."""
        variant = self.objective.config.variant
        return variant if self.estimator == "gdpo" else self.estimator


@dataclass(frozen=True)
class Outcome:
    """The component that says whether an answer solved its task, and from which value on."""

    column: int
    at_least: float


def outcome_of(objective: Objective, raw: Tensor) -> Outcome | None:
    """The outcome of an objective.

    It is solved from a condition's threshold on, else at the largest value that is declared, else
    at the largest of the answers `raw`, but not below 1.
    """
    column = objective.outcome_column
    if column is None:
        return None
    key = objective.keys[column]
    for condition in objective.config.conditions.values():
        if condition["on"] == key:
            return Outcome(column, float(condition["at_least"]))
    if key in objective.ranges:
        return Outcome(column, objective.ranges[key][1])
    return Outcome(column, max(1.0, float(raw[:, column].nan_to_num(0.0).max())))


@dataclass
class Figures:
    """Sums over the rows of each group, (G, …); see `add` for each."""

    setting: Setting
    parts: dict[str, list[Tensor]] = field(default_factory=dict)
    low: Tensor | None = None
    high: Tensor | None = None

    @property
    def keys(self) -> tuple[str, ...]:
        """The components."""
        return self.setting.objective.keys

    def add(self, decomposition: Decomposition, advantage: Tensor, fails: Tensor) -> None:
        """Add the groups of a batch.

        Args:
          advantage: that trains, shape (B,).
          fails: bool, shape (B, K), the rows that fail each component as if it were the outcome.
        """
        groups, live = decomposition.groups, decomposition.has_advantage

        def total(rows: Tensor) -> Tensor:
            sums = torch.zeros((groups.number, *rows.shape[1:]), dtype=torch.float64)
            return sums.index_add_(0, groups.codes, rows.to(torch.float64))

        z = torch.where(live[:, None], decomposition.normalized, torch.nan).nan_to_num(0.0)
        terms = torch.where(live[:, None], self.setting.terms(decomposition), 0.0)
        paid = terms.clamp(min=0)
        spread = decomposition.spread
        combined = decomposition.combined.nan_to_num(0.0)
        size = total(torch.ones(len(live)))
        sums = {
            "size": size,
            "live": total(live),
            "scored": total(spread.scored),
            "varies": (total(spread.varies) > 0).to(torch.float64),
            "share": total(terms.abs()),
            "paid": total(paid),
            # (G, K, K): what component k pays to answers that fail component l.
            "missed": total(paid[:, :, None] * fails[:, None, :]),
            "fails": total(fails & live[:, None]),
            "influence": total(influence_terms(decomposition, advantage)),
            "products": total(z[:, :, None] * z[:, None, :]),
            "std": total(spread.std) / size[:, None],
            "combined": total(combined),
            "squares": total(combined.square()),
        }
        for name, values in sums.items():
            self.parts.setdefault(name, []).append(values)
        raw = decomposition.raw
        low = raw.nan_to_num(torch.inf).amin(0)
        high = raw.nan_to_num(-torch.inf).amax(0)
        self.low = low if self.low is None else torch.minimum(self.low, low)
        self.high = high if self.high is None else torch.maximum(self.high, high)

    @cached_property
    def sums(self) -> dict[str, Array]:
        """Each kind of sum by group: call it when all are added."""
        return {name: torch.cat(each).numpy() for name, each in self.parts.items()}

    @property
    def groups(self) -> int:
        """Groups of all batches."""
        return len(self.sums["size"])

    @cached_property
    def _draws(self) -> list[Array]:
        """Draw lots of groups: the times that each is drawn, `_AT_ONCE` draws a table."""
        rng = np.random.default_rng(0)
        lots = min(self.groups, _LOTS)
        even = np.full(lots, 1 / lots)
        tables = [rng.multinomial(lots, even, _AT_ONCE) for _ in range(DRAWS // _AT_ONCE)]
        return [table.astype(np.float64) for table in tables]

    def _in_lots(self, name: str) -> Array:
        sums = self.sums[name]
        lots = np.zeros((min(len(sums), _LOTS), *sums.shape[1:]))
        np.add.at(lots, np.arange(len(sums)) % len(lots), sums)
        return lots

    def interval(self, statistic: Callable[[dict[str, Array]], Array], names: Sequence[str]) -> Any:
        """The 95 % interval of a statistic of sums over groups.

        Args:
          statistic: of the sums over some groups, (D, …) each for D draws; NaN is left out.
          names: of the sums that it takes.

        Returns:
          low and high, each of the statistic's shape.
        """
        lots = {name: self._in_lots(name) for name in names}
        values = []
        for counts in self._draws:
            drawn = {name: np.tensordot(counts, lots[name], axes=1) for name in names}
            values.append(statistic(drawn))
        with np.errstate(invalid="ignore"):
            return np.nanquantile(np.concatenate(values), [0.025, 0.975], axis=0)

    def of_all(self, statistic: Callable[[dict[str, Array]], Array], names: Sequence[str]) -> Array:
        """The statistic of all groups."""
        return statistic({name: self.sums[name].sum(axis=0)[None] for name in names})[0]


def divided(numerator: Array, denominator: Array) -> Array:
    """NaN where there is nothing to divide by."""
    shape = np.broadcast_shapes(numerator.shape, denominator.shape)
    out = np.full(shape, np.nan)
    return np.divide(numerator, denominator, out=out, where=np.abs(denominator) > 1e-12)


def shares(sums: dict[str, Array]) -> Array:
    """Each component's part of the terms: (D, K)."""
    return divided(sums["share"], sums["share"].sum(axis=1, keepdims=True))


def influences(sums: dict[str, Array]) -> Array:
    """Cov(A, z) of each component over the live rows: (D, K)."""
    return divided(sums["influence"], sums["live"][:, None])


def misses(sums: dict[str, Array]) -> Array:
    """The part of what component k pays that goes to answers that fail l: (D, K, K)."""
    return divided(sums["missed"], sums["paid"][:, :, None])


def correlations(sums: dict[str, Array]) -> Array:
    """The correlations of the components within groups: (D, K, K)."""
    squares = np.sqrt(np.einsum("dkk->dk", sums["products"]))
    return divided(sums["products"], squares[:, :, None] * squares[:, None, :])


def gain(sums: dict[str, Array]) -> Array:
    """One over the deviation that whitening over sequences divides by: (D,)."""
    mean = divided(sums["combined"], sums["live"])
    variance = divided(sums["squares"] - mean * sums["combined"], sums["live"] - 1)
    return divided(np.ones_like(variance), np.sqrt(np.maximum(variance, 0)))


def least_passing(objective: Objective, outcome: Outcome | None) -> list[float]:
    """The value from which on each component is passed, as if it were the outcome.

    Its highest where it is declared, else 1.
    """
    least = [objective.ranges.get(key, (0.0, 1.0))[1] for key in objective.keys]
    if outcome is not None:
        least[outcome.column] = outcome.at_least
    return least
