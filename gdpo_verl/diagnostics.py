"""Statistics of each reward component in a batch: pure functions of rewards and groups.

Each mean is `Weighted` by the number of values in it. verl averages metrics over the mini-batches
of a step, and a mean over one scored row must not count as much as a mean over a hundred rows. A
`decomposition` has B rows and K components; `keys` are the names of the components.
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
from gdpo_verl.advantage.criteria import Criteria
from gdpo_verl.advantage.groups import GroupIds, Groups, Spread, groups_with_any
from gdpo_verl.config import Objective
from gdpo_verl.distinct import DISTINCT_TOLERANCE


class Weighted(float):
    """A statistic, and the number of rows, groups or other items in the mean.

    The weighted mean of several statistics is the statistic of all items together. For standard
    deviations it is the mean deviation within the parts.
    """

    weight: float

    def __new__(cls, value: float, weight: float) -> Weighted:
        statistic = super().__new__(cls, value)
        statistic.weight = float(weight)
        return statistic

    @classmethod
    def of(cls, total: float, weight: float) -> Weighted:
        """Return the mean of values that add up to `total`; 0 where there are none."""
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
    """Compute the metrics of a batch, except those of `parse_error_metrics`.

    Args:
      objective: the components and settings of the decomposition.
      failed_sessions: as in `coverage_metrics`.
      trains: the decomposition's advantage trains the model; else GRPO's does, on the same sum.
      by_turn: the decomposition of the turns, where their advantages train the model.
    """
    keys = objective.keys
    # A reward is reported as it was returned; its effect is reported after the conditions.
    metrics = component_metrics(
        decomposition.raw, decomposition.groups, keys, ranges=objective.ranges
    )
    for criteria in decomposition.criteria:
        metrics |= criteria_metrics(keys[criteria.column], criteria, decomposition.groups)
    metrics |= contribution_metrics(decomposition, keys)
    metrics |= collapse_metrics(decomposition)
    metrics |= coverage_metrics(decomposition, failed_sessions)
    metrics |= outcome_metrics(decomposition, objective.outcome_column)
    trained = by_turn or decomposition
    advantage = trained.advantage if trains else decomposition.grpo
    metrics |= influence_metrics(decomposition, advantage, keys)
    if trains:
        step = trained.batch_step
        # The advantage of a dead group: its 0 is moved by the mean of the batch.
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

    The metrics under ``rewards/`` have the names of TRL's. Where no row has the component, only
    `names.UNSCORED` is returned. `names.SATURATION` needs the range of the component, and is not
    limited to 0 to 1 when rewards lie outside of the range.

    Args:
      rewards: shape (B, K), in reward units; NaN where not scored.
      group_ids: B hashables, or a tensor of shape (B,).
      ranges: (low, high) of each component that declares both, in reward units, low < high.
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
            # Not weighted: verl takes the minimum and the maximum over several mini-batches.
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
    """Compute the spread of a component from turn to turn: `names.TURN_SPREAD`.

    The result is empty where no response has two scored turns.

    Args:
      lists: the component of each response; None and NaN where not scored.

    >>> turn_metrics("ok", [[1.0, 0.0, 1.0, 0.0], [1.0], None])["gdpo/ok/turn_spread"] ** 2
    0.3333333333333333
    """
    spreads = []
    for values in lists:
        turns = torch.tensor(values or (), dtype=torch.float64)
        scored = turns[~turns.isnan()]
        if len(scored) > 1:
            spreads.append(float(scored.std()))
    if not spreads:
        return {}
    return {names.TURN_SPREAD.of(key): Weighted.of(sum(spreads), len(spreads))}


def criteria_metrics(key: str, criteria: Criteria, groups: Groups) -> dict[str, float]:
    """Compute which criteria of a component teach something, before conditions.

    Over the criteria of all groups that are scored for a response of the group:
    `names.CRITERIA_MET_BY_ALL` and `names.CRITERIA_MET_BY_NONE`, the shares of those that do not
    vary in the group, above 0 and not; `names.CRITERIA_VARYING`, the share of the others.
    `names.ALL_CRITERIA_MET`, the share of responses that meet each criterion of positive weight.
    """
    spread = Spread(criteria.raw, groups)
    met = criteria.raw > 0
    scored = groups_with_any(spread.scored, groups)
    varying = groups_with_any(spread.varies, groups)
    by_all = groups_with_any(met, groups) & ~varying
    by_none = scored & ~by_all & ~varying
    wanted = spread.scored & (criteria.weights > 0)
    graded = wanted.any(dim=1)
    complete = graded & (met | ~wanted).all(dim=1)
    number = int(scored.sum())
    return {
        names.CRITERIA_MET_BY_ALL.of(key): Weighted.of(int(by_all.sum()), number),
        names.CRITERIA_MET_BY_NONE.of(key): Weighted.of(int(by_none.sum()), number),
        names.CRITERIA_VARYING.of(key): Weighted.of(int(varying.sum()), number),
        names.ALL_CRITERIA_MET.of(key): Weighted.of(int(complete.sum()), int(graded.sum())),
    }


def contribution_metrics(decomposition: Decomposition, keys: Sequence[str]) -> dict[str, float]:
    """Compute each component's share of the advantage, and conflicts between components.

    With the terms c[i, k] = w_k z[i, k] that GDPO adds, 0 where not scored:

    `names.ADVANTAGE_SHARE` = sum_i |c[i, k]| / sum_l sum_i |c[i, l]|, 0 for all components when
    nothing varies;
    `names.SIGN_CONFLICTS`, the share of rows in which one term is above `DISTINCT_TOLERANCE` and
    another below its negative, in units of the largest weight.
    """
    terms = decomposition.terms
    sizes = terms.abs().sum(dim=0)
    total = float(sizes.sum())
    # The total is the weight, because a mini-batch in which little varies says little about shares.
    metrics: dict[str, float] = {
        names.ADVANTAGE_SHARE.of(key): Weighted.of(size, total)
        for key, size in zip(keys, sizes.tolist(), strict=True)
    }
    up = terms > DISTINCT_TOLERANCE
    down = terms < -DISTINCT_TOLERANCE
    metrics[names.SIGN_CONFLICTS.key] = _share(up.any(dim=1) & down.any(dim=1))
    return metrics


def coverage_metrics(decomposition: Decomposition, failed_sessions: int = 0) -> dict[str, float]:
    """Compute the shares of groups, rows and sessions that teach GDPO nothing.

    `names.SINGLETON_GROUPS`, groups of one row, scored or not; `names.UNSCORED_ROWS`;
    `names.FAILED_SESSIONS`, the share among failed sessions and rows together.

    Args:
      failed_sessions: the number of sessions that left no row.
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
    """Compute the shares of rows whose response could not be parsed, per reason.

    `names.PARSE_ERROR_SHARE`, and `names.PARSE_ERROR_CODE` for each code that occurs. A code that
    is missing has the share 0. The result is empty when no row has a code.

    Args:
      codes: what the reward function returned as `parse_error` for each row, 0 for no error;
        None where it returned no such key.

    >>> parse_error_metrics([0, 4, 4, 1])[names.PARSE_ERROR_CODE.of(4)]
    0.5
    """
    returned = [code for code in codes if code is not None]
    if not returned:
        return {}
    errors = Counter(int(code) for code in returned if code)
    n = len(returned)
    metrics: dict[str, float] = {names.PARSE_ERROR_SHARE.key: Weighted.of(errors.total(), n)}
    for code, count in errors.items():
        metrics[names.PARSE_ERROR_CODE.of(code)] = Weighted.of(count, n)
    return metrics


def distinct_advantages(advantage: Tensor, group_ids: GroupIds) -> float:
    """Return the mean number of distinct advantages within a group, without NaN rows.

    Two neighbours in order of size are distinct when they differ by more than
    `DISTINCT_TOLERANCE`; closer ones count as one. When GRPO has fewer distinct advantages than
    GDPO on the same rewards, its advantages have collapsed.

    Args:
      advantage: shape (B,), unitless, before whitening.
      group_ids: B hashables, or a tensor of shape (B,).
    """
    groups, count = factorize_groups(group_ids, advantage)
    live = ~advantage.isnan()
    if not bool(live.any()):
        return Weighted(0.0, 0)
    # Sorted by group, and within a group by size, each new advantage is a step between two rows.
    values, by_value = advantage[live].sort()
    codes, by_group = groups[live][by_value].sort(stable=True)
    values = values[by_group]
    new = (codes.diff() != 0) | (values.diff() > DISTINCT_TOLERANCE)
    filled = int((codes.bincount(minlength=count) > 0).sum())
    return Weighted.of(1 + int(new.sum()), filled)


def collapse_metrics(decomposition: Decomposition) -> dict[str, float]:
    """Compute `distinct_advantages` in these groups for GRPO and for GDPO."""
    # Without division by the deviations, GRPO's advantage grows with the weights. GDPO's is in
    # units of the largest weight.
    unit = 1.0 if decomposition.scale else decomposition.largest_weight
    summed = torch.where(decomposition.has_advantage, decomposition.grpo / unit, torch.nan)
    groups = decomposition.groups
    return {
        names.DISTINCT_GDPO.key: distinct_advantages(decomposition.combined, groups),
        names.DISTINCT_GRPO.key: distinct_advantages(summed, groups),
    }


def outcome_metrics(decomposition: Decomposition, outcome: int | None) -> dict[str, float]:
    """Compute the shares of groups in which the outcome is constant and other rewards train.

    `names.PHANTOM_GROUPS`, the groups in which the outcome is constant, another reward with a
    weight varies, and no gate excludes it from training;
    `names.GATED_GROUPS`, the groups that a gate leaves without advantage, where there is a gate.
    The result is empty where `outcome`, the column of the outcome, is None.
    """
    if outcome is None:
        return {}
    spread = decomposition.spread
    groups = decomposition.groups
    same = Gate(outcome).closed(spread)
    # A component with weight 0 trains nothing, even if it varies.
    others = spread.group_varies & (decomposition.weights != 0)
    closed = decomposition.gated
    rows = torch.stack([same & others.any(dim=1) & ~closed, closed], dim=1)
    phantom, gated = groups_with_any(rows, groups).unbind(dim=1)
    metrics: dict[str, float] = {names.PHANTOM_GROUPS.key: _share(phantom)}
    if decomposition.settings.gate is not None:
        metrics[names.GATED_GROUPS.key] = _share(gated)
    return metrics


def influence_metrics(
    decomposition: Decomposition, advantage: Tensor, keys: Sequence[str]
) -> dict[str, float]:
    """Measure how an advantage moves each reward, and how noisy GDPO's sum is.

    Over the rows that have an advantage:

    `names.INFLUENCE` = Cov(A, z_k), with z = 0 where not scored. A small step along A changes the
    mean of reward k, in units of its deviations within groups, in proportion to the influence
    (https://arxiv.org/abs/2602.06869). With a negative influence the reward falls;
    `names.NOISE_FLOOR`, the variance of sum_k w_k z_k within a group, w' C w with the group's
    correlations C, averaged over the groups of two rows or more: sum_k w_k^2 for independent
    rewards, (sum_k |w_k|)^2 for equal rewards, 0 where they cancel or nothing varies.

    Args:
      advantage: the advantage of the estimator that trains the model, shape (B,).
    """
    largest = decomposition.largest_weight
    n = int(decomposition.has_advantage.sum())
    influences = influence_terms(decomposition, advantage).sum(dim=0)
    metrics: dict[str, float] = {
        names.INFLUENCE.of(key): Weighted.of(value, n)
        for key, value in zip(keys, influences.tolist(), strict=True)
    }
    spread = Spread((decomposition.combined * largest)[:, None], decomposition.groups)
    # Each row has its share of its group, so that a sum over rows is a sum over groups.
    share = torch.where(spread.scored & (spread.count > 1), 1 / spread.count, 0.0)
    groups = float(share.sum())
    total = float((share * spread.std.square()).sum())
    metrics[names.NOISE_FLOOR.key] = Weighted.of(total, groups)
    return metrics


def influence_terms(decomposition: Decomposition, advantage: Tensor) -> Tensor:
    """Return A z_k for each row that has an advantage, and 0 for other rows: shape (B, K).

    The mean is Cov(A, z_k): each z has the mean 0 over these rows, so the mean of the advantage
    does not matter.
    """
    kept = torch.where(decomposition.has_advantage, advantage, 0.0)
    return kept[:, None] * decomposition.normalized.nan_to_num(0.0)


def variant_metrics(decomposition: Decomposition) -> dict[str, float]:
    """Compare the chosen variant with GDPO and GRPO; the result is empty for GDPO itself.

    `names.ZERO_ROWS`, the share of responses to which it gives 0; `names.AGREES_WITH_GDPO` and
    `names.AGREES_WITH_GRPO`, the correlation of its advantages with those of GDPO and GRPO over the
    responses. A correlation is missing where one of the two is constant.
    """
    variant = decomposition.settings.variant
    if variant is GDPO:
        return {}
    found = decomposition.advantage
    name = variant.name
    metrics: dict[str, float] = {names.ZERO_ROWS.of(name): _share(found == 0)}
    others = (
        (names.AGREES_WITH_GDPO, decomposition.gdpo),
        (names.AGREES_WITH_GRPO, decomposition.grpo),
    )
    for metric, other in others:
        pair = torch.stack([found, other])
        pair = pair - pair.mean(dim=1, keepdim=True)
        # torch.corrcoef returns NaN for a constant, as in a batch in which nothing varies.
        lengths = pair.square().sum(dim=1).sqrt()
        if bool((lengths > 0).all()):
            correlation = float((pair[0] / lengths[0]) @ (pair[1] / lengths[1]))
            metrics[metric.of(name)] = Weighted(correlation, len(found))
    return metrics


def _share(rows: Tensor) -> Weighted:
    return Weighted.of(int(rows.sum()), len(rows))
