"""Statistics of each reward component in a batch: pure functions of rewards and groups.

Each mean is `Weighted` by how much it was taken over: verl averages metrics over the
mini-batches of a step, and a mean over one scored row is not to count like one over a hundred.
A `decomposition` is of B rows and K components; `keys` are the names of the components.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gdpo_verl import names
from gdpo_verl.advantage import (
    GDPO,
    Decomposition,
    Gate,
    TurnDecomposition,
    factorize_groups,
)
from gdpo_verl.advantage.groups import GroupIds, Spread, groups_with_any
from gdpo_verl.config import Objective
from gdpo_verl.distinct import DISTINCT_TOLERANCE


class Weighted(float):
    """A statistic, and the number of rows, groups or whatever else it is a mean over.

    The mean of several, each with its weight, is the statistic of all of them together; of a
    standard deviation it is the mean deviation within them.
    """

    weight: float

    def __new__(cls, value: float, weight: float) -> Weighted:
        statistic = super().__new__(cls, value)
        statistic.weight = float(weight)
        return statistic

    @classmethod
    def of(cls, total: float, weight: float) -> Weighted:
        """The mean of what adds up to `total`; 0 of nothing."""
        return cls(total / (weight or 1.0), weight)

    def __getnewargs__(self) -> tuple[float, float]:  # type: ignore[override]
        return float(self), self.weight


def batch_metrics(
    decomposition: Decomposition,
    objective: Objective,
    *,
    failed_sessions: int = 0,
    trains: bool = True,
    by_turn: TurnDecomposition | None = None,
) -> dict[str, float]:
    """Compute a batch's metrics but for those of its answers (`parse_error_metrics`).

    Args:
      objective: whose components and settings the decomposition has.
      failed_sessions: as in `coverage_metrics`.
      trains: its advantage is the one that trains; else GRPO's is, on the same weighted sum.
      by_turn: the decomposition of the turns, where their advantages train.
    """
    keys = objective.keys
    # A reward is reported as it was returned, its effect as the conditions leave it.
    metrics = component_metrics(
        decomposition.raw, decomposition.groups, keys, ranges=objective.ranges
    )
    metrics |= contribution_metrics(decomposition, keys)
    metrics |= collapse_metrics(decomposition)
    metrics |= coverage_metrics(decomposition, failed_sessions)
    metrics |= outcome_metrics(decomposition, objective.outcome_column)
    trained = by_turn or decomposition
    advantage = trained.advantage if trains else decomposition.grpo
    metrics |= influence_metrics(decomposition, advantage, keys)
    if trains:
        step = trained.batch_step
        # Where a group in which nothing varies ends: its 0 is moved by the batch's mean.
        metrics[names.WHITEN_SHIFT.key] = -step.mean * step.factor
        if step.whitened:
            metrics[names.WHITEN_GAIN.key] = step.factor
        metrics |= variant_metrics(decomposition)
    if objective.config.schedule:
        for key, weight in zip(keys, decomposition.weights.tolist(), strict=True):
            metrics[names.WEIGHT.of(key)] = weight
    return metrics


def component_metrics(
    rewards: Tensor,
    group_ids: GroupIds,
    keys: Sequence[str],
    *,
    ranges: Mapping[str, tuple[float, float]] | None = None,
) -> dict[str, float]:
    """Statistics of each component: `names.MEAN` to `names.UNSCORED`.

    Those under ``rewards/`` are named as TRL's. `names.UNSCORED` is alone where no row has the
    component; `names.SATURATION` needs its range, and is left outside 0 to 1 when rewards lie
    outside of it.

    Args:
      rewards: shape (B, K), in reward units; NaN where not scored.
      group_ids: B hashables, or a tensor of shape (B,).
      ranges: low and high > low by component, in reward units, where both are declared.
    """
    ranges = ranges or {}
    values = rewards.to(torch.float64)
    groups = factorize_groups(group_ids, values)
    spread = Spread(values, groups)
    filled = groups_with_any(spread.scored, groups).sum(dim=0).tolist()
    varying = groups_with_any(spread.varies, groups).sum(dim=0).tolist()
    metrics: dict[str, float] = {}
    columns = zip(keys, values.unbind(dim=1), filled, varying, strict=True)
    for key, column, scored, moving in columns:
        present = column[~column.isnan()]
        n = len(present)
        unscored = 1.0 - n / max(len(column), 1)
        metrics[names.UNSCORED.of(key)] = Weighted(unscored, len(column))
        if not n:
            continue
        metrics |= {
            names.MEAN.of(key): Weighted(float(present.mean()), n),
            names.STD.of(key): Weighted(float(present.std()) if n > 1 else 0.0, n),
            # Not weighed: the extremes of several mini-batches are verl's minimum and maximum.
            names.MIN.of(key): float(present.min()),
            names.MAX.of(key): float(present.max()),
            names.CONSTANT_GROUPS.of(key): Weighted.of(scored - moving, scored),
        }
        if key in ranges:
            low, high = ranges[key]
            share = float((present.mean() - low) / (high - low))
            metrics[names.SATURATION.of(key)] = Weighted(share, n)
    return metrics


def turn_metrics(key: str, lists: Sequence[Sequence[float] | None]) -> dict[str, float]:
    """The spread of a component from turn to turn: `names.TURN_SPREAD`.

    Absent where no response has two turns that are scored.

    Args:
      lists: the component of each response; None and NaN where not scored.

    >>> turn_metrics("ok", [[1.0, 0.0, 1.0, 0.0], [1.0], None])["gdpo/ok/turn_spread"] ** 2
    0.3333333333333333
    """
    scored = [torch.tensor(each or (), dtype=torch.float64) for each in lists]
    scored = [each[~each.isnan()] for each in scored]
    spreads = [float(each.std()) for each in scored if len(each) > 1]
    if not spreads:
        return {}
    return {names.TURN_SPREAD.of(key): Weighted.of(sum(spreads), len(spreads))}


def contribution_metrics(decomposition: Decomposition, keys: Sequence[str]) -> dict[str, float]:
    """Each component's share of the decoupled advantage, and conflicts between components.

    With the terms c[i, k] = w_k z[i, k] that GDPO adds, 0 where not scored:

    `names.ADVANTAGE_SHARE` = sum_i |c[i, k]| / sum_l sum_i |c[i, l]|, 0 for all components when
    nothing varies;
    `names.SIGN_CONFLICTS`, the share of rows in which one term lies above `DISTINCT_TOLERANCE` and
    another below its negative, in units of the largest weight.
    """
    terms = decomposition.terms
    sizes = terms.abs().sum(dim=0)
    total = float(sizes.sum())
    # The total is the weight: a mini-batch in which little varies says little about the shares.
    metrics: dict[str, float] = {
        names.ADVANTAGE_SHARE.of(key): Weighted.of(size, total)
        for key, size in zip(keys, sizes.tolist(), strict=True)
    }
    up = terms > DISTINCT_TOLERANCE
    down = terms < -DISTINCT_TOLERANCE
    metrics[names.SIGN_CONFLICTS.key] = _share(up.any(dim=1) & down.any(dim=1))
    return metrics


def coverage_metrics(decomposition: Decomposition, failed_sessions: int = 0) -> dict[str, float]:
    """Groups, rows and sessions that teach GDPO nothing, as shares.

    `names.SINGLETON_GROUPS`, of one row, scored or not; `names.UNSCORED_ROWS`;
    `names.FAILED_SESSIONS`, in failed sessions and rows together.

    Args:
      failed_sessions: those that left no row.
    """
    codes, number = decomposition.groups
    single = codes.bincount(minlength=number) == 1
    sessions = failed_sessions + len(codes)
    return {
        names.SINGLETON_GROUPS.key: _share(single),
        names.UNSCORED_ROWS.key: _share(~decomposition.scored),
        names.FAILED_SESSIONS.key: Weighted.of(failed_sessions, sessions),
    }


def parse_error_metrics(codes: Sequence[float | None]) -> dict[str, float]:
    """The shares of rows whose answers could not be read, by reason.

    `names.PARSE_ERROR_SHARE`, and `names.PARSE_ERROR_CODE` of each code that occurs: one that is
    absent is 0. Empty when no row has a code.

    Args:
      codes: what the reward returned as `parse_error` for each row, 0 for none; None
        where it returned nothing of the name.

    >>> parse_error_metrics([0, 4, 4, 1])[names.PARSE_ERROR_CODE.of(4)]
    0.5
    """
    known = [code for code in codes if code is not None]
    if not known:
        return {}
    errors = Counter(int(code) for code in known if code)
    n = len(known)
    metrics: dict[str, float] = {names.PARSE_ERROR_SHARE.key: Weighted.of(errors.total(), n)}
    for code, count in errors.items():
        metrics[names.PARSE_ERROR_CODE.of(code)] = Weighted.of(count, n)
    return metrics


def distinct_advantages(advantage: Tensor, group_ids: GroupIds) -> float:
    """Mean number of distinct advantages within a group, NaN rows left out.

    In order of size, two neighbours are distinct when they differ by more than
    `DISTINCT_TOLERANCE`; what lies closer, one to the next, counts as one. GRPO's
    number below GDPO's on the same rewards is advantage collapse.

    Args:
      advantage: shape (B,), unitless, before whitening.
      group_ids: B hashables, or a tensor of shape (B,).
    """
    groups, count = factorize_groups(group_ids, advantage)
    live = ~advantage.isnan()
    if not bool(live.any()):
        return Weighted(0.0, 0)
    # By group, and within a group by size: then the distinct ones are the steps between rows.
    values, by_value = advantage[live].sort()
    codes, by_group = groups[live][by_value].sort(stable=True)
    values = values[by_group]
    new = (codes.diff() != 0) | (values.diff() > DISTINCT_TOLERANCE)
    filled = int((codes.bincount(minlength=count) > 0).sum())
    return Weighted.of(1 + int(new.sum()), filled)


def collapse_metrics(decomposition: Decomposition) -> dict[str, float]:
    """The numbers of `distinct_advantages` in these groups, by GRPO and by GDPO."""
    # Without the deviations GRPO's advantage grows with the weights; GDPO's is in their unit.
    unit = 1.0 if decomposition.scale else decomposition.largest_weight
    summed = torch.where(decomposition.has_advantage, decomposition.grpo / unit, torch.nan)
    groups = decomposition.groups
    return {
        names.DISTINCT_GDPO.key: distinct_advantages(decomposition.combined, groups),
        names.DISTINCT_GRPO.key: distinct_advantages(summed, groups),
    }


def outcome_metrics(decomposition: Decomposition, outcome: int | None) -> dict[str, float]:
    """Shares of the groups in which other rewards are trained and the outcome says nothing.

    `names.PHANTOM_GROUPS`, the groups in which the outcome is the same for all, another reward with
    a weight varies, and no gate keeps it from being trained;
    `names.GATED_GROUPS`, those that the gate leaves without advantage, where there is one.
    Empty where `outcome`, its column, is None.
    """
    if outcome is None:
        return {}
    spread = decomposition.spread
    groups = decomposition.groups
    same = Gate(outcome).closed(spread)
    # A component of weight 0 trains nothing, however much it varies.
    others = spread.group_varies & (decomposition.weights != 0)
    closed = decomposition.gated
    rows = torch.stack([same & others.any(dim=1) & ~closed, closed], dim=1)
    phantom, gated = groups_with_any(rows, groups).unbind(dim=1)
    metrics: dict[str, float] = {names.PHANTOM_GROUPS.key: _share(phantom)}
    if decomposition.gate is not None:
        metrics[names.GATED_GROUPS.key] = _share(gated)
    return metrics


def influence_metrics(
    decomposition: Decomposition, advantage: Tensor, keys: Sequence[str]
) -> dict[str, float]:
    """Measure how an advantage moves each reward, and how noisy the decoupled sum is.

    Over the rows that carry an advantage:

    `names.INFLUENCE` = Cov(A, z_k), z 0 where not scored: a small step along A
    changes the mean of reward k, in units of its deviations within groups, in proportion to it
    (https://arxiv.org/abs/2602.06869). Below 0 it is unlearned;
    `names.NOISE_FLOOR`, the variance of sum_k w_k z_k within a group, w' C w with the group's
    correlations C, averaged over the groups of two rows or more: sum_k w_k^2 for independent
    rewards, (sum_k |w_k|)^2 for one and the same, 0 where they cancel or nothing varies.

    Args:
      advantage: of the estimator that trains, shape (B,).
    """
    largest = decomposition.largest_weight
    n = int(decomposition.has_advantage.sum())
    influences = influence_terms(decomposition, advantage).sum(dim=0)
    metrics: dict[str, float] = {
        names.INFLUENCE.of(key): Weighted.of(value, n)
        for key, value in zip(keys, influences.tolist(), strict=True)
    }
    spread = Spread((decomposition.combined * largest)[:, None], decomposition.groups)
    # Each row's share of its group: the sum over the rows is one over the groups.
    share = torch.where(spread.scored & (spread.count > 1), 1 / spread.count, 0.0)
    groups = float(share.sum())
    total = float((share * spread.std.square()).sum())
    metrics[names.NOISE_FLOOR.key] = Weighted.of(total, groups)
    return metrics


def influence_terms(decomposition: Decomposition, advantage: Tensor) -> Tensor:
    """A z_k of each row that carries an advantage, 0 of the others: shape (B, K).

    Their mean is Cov(A, z_k): each z has the mean 0 over these rows, so that the advantage's own
    mean does not matter.
    """
    kept = torch.where(decomposition.has_advantage, advantage, 0.0)
    return kept[:, None] * decomposition.normalized.nan_to_num(0.0)


def variant_metrics(decomposition: Decomposition) -> dict[str, float]:
    """The chosen variant beside GDPO and GRPO; empty for GDPO itself.

    `names.ZERO_ROWS`, the share of responses to which it gives 0; `names.AGREES_WITH_GDPO` and
    `names.AGREES_WITH_GRPO`, the correlation of its advantages with theirs over the responses,
    absent where one of the two is constant.
    """
    if decomposition.variant is GDPO:
        return {}
    found = decomposition.advantage
    name = decomposition.variant.name
    metrics: dict[str, float] = {names.ZERO_ROWS.of(name): _share(found == 0)}
    others = (
        (names.AGREES_WITH_GDPO, decomposition.gdpo),
        (names.AGREES_WITH_GRPO, decomposition.grpo),
    )
    for metric, other in others:
        pair = torch.stack([found, other])
        pair = pair - pair.mean(dim=1, keepdim=True)
        # torch.corrcoef has NaN for a constant, as all advantages of a silent batch are.
        lengths = pair.square().sum(dim=1).sqrt()
        if bool((lengths > 0).all()):
            correlation = float((pair[0] / lengths[0]) @ (pair[1] / lengths[1]))
            metrics[metric.of(name)] = Weighted(correlation, len(found))
    return metrics


def _share(rows: Tensor) -> Weighted:
    return Weighted.of(int(rows.sum()), len(rows))
