"""The figures of each component under some settings, kept by group, so that groups are resampled.

Rows of a step come and go; of a group K numbers of each kind stay, and K x K products.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from gdpo_verl.advantage import Decomposition
from gdpo_verl.config import Objective
from gdpo_verl.diagnostics import influence_terms
from gdpo_verl.lab.replay.settings import Setting

# Intervals hold 95 % of this many draws of the groups, the same ones each time.
DRAWS = 400
# More groups than these are drawn in as many lots.
_LOTS = 4096
Array: TypeAlias = Any  # numpy's, of float64


def known_passing(objective: Objective) -> dict[str, float]:
    """The values from which on components are passed, as if each were the outcome, where known.

    A condition's threshold, else the largest value that is declared.
    """
    values = {key: high for key, (_, high) in objective.ranges.items()}
    conditions = objective.config.conditions.values()
    return values | {each["on"]: float(each["at_least"]) for each in conditions}


@dataclass
class Figures:
    """Sums over the rows of each group.

    Attributes:
      known_passing: the values from which on components are passed, where they are known.
      named_outcome: the component that the user names as the outcome; "" where none is named.
      known: the weights that made the advantages are known, and so the shares.
      settings: those that they are of; several where several runs had their own.
      low, high: the least and the largest value of each component, shape (K,).
      verdicts: whether each component was always 0 or 1, shape (K,).
    """

    known_passing: Mapping[str, float] = field(default_factory=dict)
    named_outcome: str = ""
    known: bool = True
    settings: list[Setting] = field(default_factory=list)
    low: Tensor | float = torch.inf
    high: Tensor | float = -torch.inf
    verdicts: Tensor | bool = True
    _parts: dict[str, list[Tensor]] = field(default_factory=lambda: defaultdict(list))

    @property
    def setting(self) -> Setting:
        """The settings, where they are those of all rows."""
        return self.settings[-1]

    @property
    def name(self) -> str:
        """The settings for people."""
        return " and ".join(dict.fromkeys(each.name for each in self.settings))

    @property
    def keys(self) -> tuple[str, ...]:
        """The components."""
        return self.setting.objective.keys

    @property
    def outcome(self) -> str | None:
        """The component that says whether an answer solved its task; None where none does.

        The one that the user names, else the one that the settings or the usual names tell, else
        the only one that is always 0 or 1 and varies.
        """
        if self.named_outcome:
            return self.named_outcome
        column = self.setting.objective.outcome_column
        if column is not None:
            return self.keys[column]
        pairs = zip(self.keys, np.asarray(self.verdicts), self.varying, strict=True)
        binary = [key for key, is_verdict, count in pairs if is_verdict and count > 0]
        return binary[0] if len(binary) == 1 else None

    @property
    def passing(self) -> dict[str, float]:
        """The value from which on each component is passed.

        Where it is not known, the largest of all answers; where these are all alike, none.
        """
        ends = zip(self.keys, np.asarray(self.low), np.asarray(self.high), strict=True)
        largest = {key: float(high) for key, low, high in ends if low < high}
        return largest | dict(self.known_passing)

    @property
    def weights(self) -> dict[str, float]:
        """The weight of each component."""
        return dict(zip(self.keys, self.setting.objective.weights, strict=True))

    def add(self, setting: Setting, decomposition: Decomposition, advantage: Tensor) -> None:
        """Add the groups of a batch with its settings and the advantage that trains, shape (B,)."""
        if setting not in self.settings:
            self.settings.append(setting)
        groups = decomposition.groups
        live = decomposition.has_advantage
        spread = decomposition.spread
        raw = decomposition.raw
        z = torch.where(live[:, None], decomposition.normalized.nan_to_num(0.0), 0.0)
        terms = torch.where(live[:, None], setting.terms(decomposition), 0.0)
        paid = terms.clamp(min=0)
        self._add_range(raw)
        largest = dict(zip(self.keys, torch.as_tensor(self.high).tolist(), strict=True))
        passing = [self.known_passing.get(key, largest[key]) for key in self.keys]
        # One that is not scored fails.
        fails = ~(raw >= torch.tensor(passing, dtype=torch.float64))
        combined = decomposition.combined.nan_to_num(0.0)
        rows = {
            "size": torch.ones_like(live),
            "live": live,
            "scored": decomposition.scored,
            "varies": spread.group_varies,
            "std": torch.where(spread.group_varies, spread.std, 0.0),
            "share": terms.abs(),
            "paid": paid,
            "failed": fails,
            # (K, K): what component k pays to answers that fail component l.
            "missed": paid[:, :, None] * fails[:, None, :],
            "influence": influence_terms(decomposition, advantage),
            "products": z[:, :, None] * z[:, None, :],
            "combined": combined,
            "squares": combined.square(),
        }
        for name, values in rows.items():
            sums = torch.zeros((groups.number, *values.shape[1:]), dtype=torch.float64)
            self._parts[name].append(sums.index_add_(0, groups.codes, values.to(torch.float64)))

    def _add_range(self, raw: Tensor) -> None:
        """Add a batch to the range of each component, and to what is known of its values.

        Where the largest value rises and is what passes, all answers before have failed.
        """
        before = torch.as_tensor(self.high).expand(len(self.keys))
        self.low = torch.minimum(raw.nan_to_num(torch.inf).amin(0), torch.as_tensor(self.low))
        self.high = torch.maximum(raw.nan_to_num(-torch.inf).amax(0), before)
        verdict = raw.isnan() | (raw == 0) | (raw == 1)
        self.verdicts = verdict.all(0) & torch.as_tensor(self.verdicts)
        for column in (self.high > before).nonzero().flatten().tolist():
            if self.keys[column] in self.known_passing:
                continue
            for size, failed in zip(self._parts["size"], self._parts["failed"], strict=True):
                failed[:, column] = size
            for paid, missed in zip(self._parts["paid"], self._parts["missed"], strict=True):
                missed[:, :, column] = paid

    @cached_property
    def by_group(self) -> dict[str, Array]:
        """Each kind of sum by group: to be read when all are added."""
        return {name: torch.cat(each).numpy() for name, each in self._parts.items()}

    @property
    def groups(self) -> int:
        """Groups of all batches."""
        return len(self.by_group["size"])

    @property
    def several(self) -> int:
        """Groups of several answers."""
        return int((self.by_group["size"] > 1).sum())

    @property
    def dead(self) -> int:
        """Groups of several answers in which no component varies."""
        still = self.by_group["varies"].max(axis=1) == 0
        return int((still & (self.by_group["size"] > 1) & (self.by_group["scored"] > 0)).sum())

    @cached_property
    def varying(self) -> list[int]:
        """The groups in which each component varies."""
        counts: list[int] = (self.by_group["varies"] > 0).sum(axis=0).tolist()
        return counts

    @cached_property
    def passed(self) -> dict[str, int]:
        """The groups in which some answer passes each component."""
        passes = self.by_group["failed"] < self.by_group["size"][:, None]
        return dict(zip(self.keys, passes.sum(axis=0).tolist(), strict=True))

    @cached_property
    def sums(self) -> dict[str, Array]:
        """Each kind of sum over all groups, then over each draw of as many: (1 + DRAWS, …)."""
        lots = min(self.groups, _LOTS)
        counts = np.random.default_rng(0).multinomial(lots, np.full(lots, 1 / lots), DRAWS)
        counts = np.concatenate([np.ones((1, lots)), counts])
        found = {}
        for name, values in self.by_group.items():
            in_lots = np.zeros((lots, *values.shape[1:]))
            np.add.at(in_lots, np.arange(self.groups) % lots, values)
            found[name] = np.tensordot(counts, in_lots, axes=1)
        return found

    @cached_property
    def misses(self) -> Array:
        """The part of what component k pays that goes to answers that fail l: (…, K, K)."""
        return divided(self.sums["missed"], self.sums["paid"][:, :, None])

    @cached_property
    def correlation(self) -> Array:
        """The correlations of the components within groups: (1 + DRAWS, K, K)."""
        squares = np.sqrt(np.einsum("dkk->dk", self.sums["products"]))
        return divided(self.sums["products"], squares[:, :, None] * squares[:, None, :])

    def of(self, key: str, outcome: str | None) -> dict[str, float | int | None]:
        """The figures of a component, `misses` as for this outcome; None is not known."""
        if key not in self.keys:
            return {}
        k = self.keys.index(key)
        sums = {name: each[0] for name, each in self.sums.items()}
        share = divided(sums["share"][k], sums["share"].sum())
        influence = divided(sums["influence"][k], sums["live"])
        misses = np.nan
        if outcome in self.keys and outcome in self.passing:
            misses = self.misses[0, k, self.keys.index(outcome)]
        if not self.known:
            share = misses = np.nan
        found = {"share": share, "influence": influence, "misses": misses}
        known = {name: None if np.isnan(value) else float(value) for name, value in found.items()}
        return {"varies": self.varying[k], **known}


def divided(numerator: Array, denominator: Array) -> Array:
    """NaN where there is nothing to divide by."""
    shape = np.broadcast_shapes(numerator.shape, denominator.shape)
    out = np.full(shape, np.nan)
    return np.divide(numerator, denominator, out=out, where=np.abs(denominator) > 1e-12)


def interval(values: Array) -> tuple[float, float, float]:
    """A statistic of all groups, and the ends of the 95 % of its draws."""
    with warnings.catch_warnings():
        # A component that no draw has is NaN, and is compared as such.
        warnings.simplefilter("ignore", RuntimeWarning)
        low, high = np.nanquantile(values[1:], [0.025, 0.975])
    return float(values[0]), float(low), float(high)
