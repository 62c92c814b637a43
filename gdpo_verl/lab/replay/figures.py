"""Figures of each component under some settings, such as its share and its influence.

The sums are kept separately for each group, because intervals come from resampled groups. With K
components, 2 x K numbers are kept for each response. For each group there are K numbers of most
kinds and K x K numbers for products of components.
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

Array: TypeAlias = Any  # a NumPy array of float64


def known_passing(objective: Objective) -> dict[str, float]:
    """Return the smallest value with which a component passes, as far as the settings define it.

    This value is the threshold of a condition on the component, else its largest declared value.
    """
    values = {key: high for key, (_, high) in objective.ranges.items()}
    for _, condition in each_condition(objective.config.conditions):
        if "at_least" in condition:
            values[condition["on"]] = float(condition["at_least"])
    return values


@dataclass
class Figures:
    """Sums over the responses of each group, and the figures that follow from them.

    First every batch is added, then the figures are read.

    Attributes:
      known_passing: the result of the function of this name. Set it before figures are read.
      named_outcome: the component that the user names as the outcome; "" if none is named.
      known: True if the weights behind the advantages are known, and with them the shares.
      settings: the settings of the responses; several if the runs had different settings.
    """

    known_passing: Mapping[str, float] = field(default_factory=dict)
    named_outcome: str = ""
    known: bool = True
    settings: list[Setting] = field(default_factory=list)
    _parts: dict[str, list[Tensor]] = field(default_factory=lambda: defaultdict(list))
    # For each batch: its groups, its rewards and its positive terms.
    _batches: list[tuple[Groups, Tensor, Tensor]] = field(default_factory=list)

    @property
    def setting(self) -> Setting:
        """The settings of all responses."""
        return self.settings[-1]

    @property
    def name(self) -> str:
        """The name of the settings, for messages."""
        return " and ".join(dict.fromkeys(setting.name for setting in self.settings))

    @property
    def keys(self) -> tuple[str, ...]:
        """The names of the components."""
        return self.setting.objective.keys

    @property
    def outcome(self) -> str | None:
        """The component that says whether a response solves its task; None if it is unknown.

        The first of these rules that applies chooses it: the component that the user names; the
        component of the gate, of all conditions, or with a usual name; the only component that
        varies and is always 0 or 1.
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
        """The rewards of all responses, NaN if not scored: shape (B, K)."""
        return torch.cat([raw for _, raw, _ in self._batches]).numpy()

    @cached_property
    def verdicts(self) -> list[str]:
        """The components that are always 0 or 1."""
        columns = zip(self.keys, self.rewards.T, strict=True)
        return [key for key, column in columns if np.isin(column[~np.isnan(column)], (0, 1)).all()]

    @cached_property
    def passing(self) -> dict[str, float]:
        """The smallest value with which each component passes.

        Where `known_passing` does not define it, it is the largest value of all responses. A
        component that is not defined there and has only one value is left out.
        """
        largest = {}
        for key, column in zip(self.keys, self.rewards.T, strict=True):
            values = column[~np.isnan(column)]
            if len(np.unique(values)) > 1:
                largest[key] = float(values.max())
        return largest | dict(self.known_passing)

    @property
    def weights(self) -> dict[str, float]:
        """The weight of each component."""
        return dict(zip(self.keys, self.setting.objective.weights, strict=True))

    def add(self, setting: Setting, decomposition: Decomposition, advantage: Tensor) -> None:
        """Add a batch with its settings and its final advantage, shape (B,)."""
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
        """Each kind of sum, with one entry for each group. Read it after all batches are added."""
        passing = [self.passing.get(key, math.inf) for key in self.keys]
        for groups, raw, paid in self._batches:
            # A response that is not scored fails: a comparison with NaN is false.
            fails = ~(raw >= torch.tensor(passing, dtype=torch.float64))
            self._add_sums("failed", groups, fails)
            # (K, K): the positive terms of component k in responses that fail component l.
            self._add_sums("missed", groups, paid[:, :, None] * fails[:, None, :])
        return {name: torch.cat(parts).numpy() for name, parts in self._parts.items()}

    @cached_property
    def table(self) -> GroupTable:
        """The table of the groups of all batches, from rewards before conditions, as in metrics."""
        codes = []
        number = 0
        for groups, _, _ in self._batches:
            codes.append(groups.codes + number)
            number += groups.number
        return GroupTable.of(torch.from_numpy(self.rewards), Groups(torch.cat(codes), number))

    @property
    def groups(self) -> int:
        """The number of groups in all batches."""
        return len(self.table.size)

    @property
    def several(self) -> int:
        """The number of groups with several responses."""
        return int((self.table.size > 1).sum())

    @property
    def dead(self) -> int:
        """The number of dead groups: groups of several responses with only constant components."""
        return int(self.table.dead.sum())

    @cached_property
    def varying(self) -> list[int]:
        """The number of groups in which each component varies."""
        counts: list[int] = self.table.varies.sum(dim=0).tolist()
        return counts

    @cached_property
    def passed(self) -> dict[str, int]:
        """For each component, the number of groups in which at least one response passes it."""
        passes = self.by_group["failed"] < self.table.size.numpy()[:, None]
        return dict(zip(self.keys, passes.sum(axis=0).tolist(), strict=True))

    @cached_property
    def sums(self) -> dict[str, Array]:
        """Each kind of sum, over all groups and over each resampling: shape (1 + DRAWS, …)."""
        return draws_of_groups(self.by_group)

    @cached_property
    def misses(self) -> Array:
        """The part of component k's positive terms in responses that fail l: (1 + DRAWS, K, K)."""
        return divided(self.sums["missed"], self.sums["paid"][:, :, None])

    @cached_property
    def correlation(self) -> Array:
        """The correlations of the components within groups: (1 + DRAWS, K, K)."""
        squares = np.sqrt(np.einsum("dkk->dk", self.sums["products"]))
        return divided(self.sums["products"], squares[:, :, None] * squares[:, None, :])

    def of(self, key: str, outcome: str | None) -> dict[str, float | int | None]:
        """Return the figures of a component; None for a figure that is unknown.

        Args:
          key: the component.
          outcome: the component whose failures the figure `misses` refers to.
        """
        if key not in self.keys:
            return {}
        k = self.keys.index(key)
        sums = {name: sums_of_kind[0] for name, sums_of_kind in self.sums.items()}
        share = divided(sums["share"][k], sums["share"].sum())
        influence = divided(sums["influence"][k], sums["live"])
        misses = np.nan
        if outcome in self.keys and outcome in self.passing:
            misses = self.misses[0, k, self.keys.index(outcome)]
        if not self.known:
            share = misses = np.nan
        figures: dict[str, float | int | None] = {"varies": self.varying[k]}
        for name, value in (("share", share), ("influence", influence), ("misses", misses)):
            figures[name] = None if np.isnan(value) else float(value)
        return figures


def divided(numerator: Array, denominator: Array) -> Array:
    """Divide two arrays; the result is NaN where the denominator is 0."""
    shape = np.broadcast_shapes(numerator.shape, denominator.shape)
    out = np.full(shape, np.nan)
    return np.divide(numerator, denominator, out=out, where=np.abs(denominator) > 1e-12)
