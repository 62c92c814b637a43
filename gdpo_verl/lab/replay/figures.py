"""The figures of each component under some settings, kept by group, so that groups are resampled.

Of each response 2 x K numbers are kept, of each group K numbers of each kind and K x K products.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from gdpo_verl.advantage import Decomposition
from gdpo_verl.advantage.conditions import each_condition
from gdpo_verl.advantage.groups import Groups
from gdpo_verl.config import Objective
from gdpo_verl.diagnostics import influence_terms
from gdpo_verl.lab.rundir.responses import GroupTable
from gdpo_verl.lab.rundir.settings import Setting
from gdpo_verl.lab.statistics import draws_of_groups

Array: TypeAlias = Any  # numpy's, of float64


def known_passing(objective: Objective) -> dict[str, float]:
    """Return the smallest passing value of each component for which the settings say it.

    It is the threshold of a condition, else the largest declared value.
    """
    values = {key: high for key, (_, high) in objective.ranges.items()}
    for _, condition in each_condition(objective.config.conditions):
        if "at_least" in condition:
            values[condition["on"]] = float(condition["at_least"])
    return values


@dataclass
class Figures:
    """Sums over the responses of each group.

    Attributes:
      known_passing: as the function of this name returns it; to be set before figures are read.
      named_outcome: the component that the user names as the outcome; "" where none is named.
      known: the weights that made the advantages are known, and so the shares.
      settings: those that the figures belong to; several where several runs had their own.
    """

    known_passing: Mapping[str, float] = field(default_factory=dict)
    named_outcome: str = ""
    known: bool = True
    settings: list[Setting] = field(default_factory=list)
    _parts: dict[str, list[Tensor]] = field(default_factory=lambda: defaultdict(list))
    # Of each batch its groups, rewards and positive terms.
    _batches: list[tuple[Groups, Tensor, Tensor]] = field(default_factory=list)

    @property
    def setting(self) -> Setting:
        """The settings of all responses."""
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
        """The component that says whether a response solves its task; None where none is known.

        It is the component that the user names, else the one of the gate, of all conditions or of a
        usual name, else the only component that is always 0 or 1 and varies.
        """
        if self.named_outcome:
            return self.named_outcome
        column = self.setting.objective.outcome_column
        if column is not None:
            return self.keys[column]
        pairs = zip(self.keys, self.varying, strict=True)
        verdicts = [key for key, count in pairs if key in self.verdicts and count > 0]
        return verdicts[0] if len(verdicts) == 1 else None

    @cached_property
    def rewards(self) -> Array:
        """The rewards of all responses, NaN where not scored: shape (B, K)."""
        return torch.cat([raw for _, raw, _ in self._batches]).numpy()

    @cached_property
    def verdicts(self) -> list[str]:
        """The components that are always 0 or 1."""
        columns = zip(self.keys, self.rewards.T, strict=True)
        return [key for key, column in columns if np.isin(column[~np.isnan(column)], (0, 1)).all()]

    @cached_property
    def passing(self) -> dict[str, float]:
        """The smallest passing value of each component; none where nothing tells it.

        Where `known_passing` does not have it, it is the largest value of all responses.
        """
        found = {}
        for key, column in zip(self.keys, self.rewards.T, strict=True):
            values = column[~np.isnan(column)]
            if len(np.unique(values)) > 1:
                found[key] = float(values.max())
        return found | dict(self.known_passing)

    @property
    def weights(self) -> dict[str, float]:
        """The weight of each component."""
        return dict(zip(self.keys, self.setting.objective.weights, strict=True))

    def add(self, setting: Setting, decomposition: Decomposition, advantage: Tensor) -> None:
        """Add the groups of a batch with its settings and its final advantage, shape (B,)."""
        if setting not in self.settings:
            self.settings.append(setting)
        groups = decomposition.groups
        live = decomposition.has_advantage
        raw = decomposition.raw
        z = torch.where(live[:, None], decomposition.normalized.nan_to_num(0.0), 0.0)
        terms = torch.where(live[:, None], setting.terms(decomposition), 0.0)
        paid = terms.clamp(min=0)
        self._batches.append((groups, raw, paid))
        rows = {
            "live": live,
            "share": terms.abs(),
            "paid": paid,
            "influence": influence_terms(decomposition, advantage),
            "products": z[:, :, None] * z[:, None, :],
        }
        for name, values in rows.items():
            self._add_sums(name, groups, values)

    def _add_sums(self, name: str, groups: Groups, values: Tensor) -> None:
        sums = torch.zeros((groups.number, *values.shape[1:]), dtype=torch.float64)
        self._parts[name].append(sums.index_add_(0, groups.codes, values.to(torch.float64)))

    @cached_property
    def by_group(self) -> dict[str, Array]:
        """Each kind of sum by group: to be read when all batches are added."""
        passing = [self.passing.get(key, math.inf) for key in self.keys]
        for groups, raw, paid in self._batches:
            # A response that is not scored fails.
            fails = ~(raw >= torch.tensor(passing, dtype=torch.float64))
            self._add_sums("failed", groups, fails)
            # (K, K): the positive terms of component k in responses that fail component l.
            self._add_sums("missed", groups, paid[:, :, None] * fails[:, None, :])
        return {name: torch.cat(each).numpy() for name, each in self._parts.items()}

    @cached_property
    def table(self) -> GroupTable:
        """The table of the groups of all batches, before conditions, as in the metrics."""
        codes = []
        number = 0
        for groups, _, _ in self._batches:
            codes.append(groups.codes + number)
            number += groups.number
        return GroupTable.of(torch.from_numpy(self.rewards), Groups(torch.cat(codes), number))

    @property
    def groups(self) -> int:
        """Groups of all batches."""
        return len(self.table.size)

    @property
    def several(self) -> int:
        """Groups of several responses."""
        return int((self.table.size > 1).sum())

    @property
    def dead(self) -> int:
        """Groups of several responses in which all components are constant."""
        return int(self.table.dead.sum())

    @cached_property
    def varying(self) -> list[int]:
        """The number of groups in which each component varies."""
        counts: list[int] = self.table.varies.sum(dim=0).tolist()
        return counts

    @cached_property
    def passed(self) -> dict[str, int]:
        """The number of groups in which a response passes each component."""
        passes = self.by_group["failed"] < self.table.size.numpy()[:, None]
        return dict(zip(self.keys, passes.sum(axis=0).tolist(), strict=True))

    @cached_property
    def sums(self) -> dict[str, Array]:
        """Each kind of sum over all groups, then over each draw of as many: (1 + DRAWS, …)."""
        return draws_of_groups(self.by_group)

    @cached_property
    def misses(self) -> Array:
        """The part of component k's positive terms in responses that fail l: (…, K, K)."""
        return divided(self.sums["missed"], self.sums["paid"][:, :, None])

    @cached_property
    def correlation(self) -> Array:
        """The correlations of the components within groups: (1 + DRAWS, K, K)."""
        squares = np.sqrt(np.einsum("dkk->dk", self.sums["products"]))
        return divided(self.sums["products"], squares[:, :, None] * squares[:, None, :])

    def of(self, key: str, outcome: str | None) -> dict[str, float | int | None]:
        """Return the figures of a component, `misses` for this outcome; None where unknown."""
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
    """Divide; the result is NaN where the denominator is 0."""
    shape = np.broadcast_shapes(numerator.shape, denominator.shape)
    out = np.full(shape, np.nan)
    return np.divide(numerator, denominator, out=out, where=np.abs(denominator) > 1e-12)
