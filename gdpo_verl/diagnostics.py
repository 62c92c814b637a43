"""Metrics of the reward components of a batch: pure functions of rewards and groups.

Each mean is a `Weighted` number, which knows the number of values in the mean. verl averages
metrics over the mini-batches of a step, and a mean over one scored row must not count as much as a
mean over a hundred rows.

In all functions a `decomposition` has B rows and K components, and `keys` are the names of the
components. docs/metrics.md explains each metric.
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
    """A mean, and the number of rows, groups or other items in the mean.

    The weighted mean of several such numbers is the mean of all items together. For standard
    deviations it is the mean of the deviations within the mini-batches.
    """

    weight: float

    def __new__(cls, value: float, weight: float) -> Weighted:
        statistic = super().__new__(cls, value)
        statistic.weight = float(weight)
        return statistic

    @classmethod
    def of(cls, total: float, weight: float) -> Weighted:
        """Return the mean of `weight` items whose sum is `total`; 0 if there are no items."""
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
      trains: whether the advantage of the decomposition trains the model. If not, the advantage of
        GRPO on the same score does.
      by_turn: the decomposition of the turns, if the advantages of the turns train the model.
    """
    keys = objective.keys
    # The metrics of rewards describe the values before the conditions. The other metrics describe
    # the values after the conditions, because those values train the model.
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
        # Whitening subtracts the batch's mean, also from the advantage 0 of a dead group. This
        # metric is the advantage that such a group gets.
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
    """Compute the statistics of each component: `names.MEAN` to `names.UNSCORED`.

    The metrics under ``rewards/`` have the same keys as in TRL. If a component is scored in no
    row, only its `names.UNSCORED` is returned. `names.SATURATION` needs the range of the component.
    It is below 0 or above 1 if the mean lies outside of the range.

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
            # These need no weight: over several mini-batches, verl takes the minimum of keys with
            # "min" and the maximum of keys with "max".
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
    """Compute how much a component varies over the turns of a response: `names.TURN_SPREAD`.

    The result is empty if no response has two scored turns.

    Args:
      lists: the numbers of the turns of each response. A turn that is not scored is NaN, and a
        response that is not scored is None.

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
    """Compute how many criteria of a component vary in their groups, before conditions.

    A criterion teaches something in a group only if it varies there. Three metrics are shares of
    the criteria of all groups. They leave out a criterion that no response of a group is scored on.

    - `names.CRITERIA_MET_BY_ALL`: the criterion is constant in its group, and above 0.
    - `names.CRITERIA_MET_BY_NONE`: the criterion is constant in its group, and 0 or below.
    - `names.CRITERIA_VARYING`: the criterion varies in its group.

    `names.ALL_CRITERIA_MET` is the share of responses that meet each scored criterion of positive
    weight.
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

    GDPO adds the terms c[i, k] = w_k z[i, k], in units of the largest weight. A term is 0 where the
    component is not scored.

    - `names.ADVANTAGE_SHARE` = sum_i |c[i, k]| / sum_l sum_i |c[i, l]|. If nothing varies, it is 0
      for all components.
    - `names.SIGN_CONFLICTS` is the share of rows in which one term is above `DISTINCT_TOLERANCE`
      and another term is below its negative.
    """
    terms = decomposition.terms
    sizes = terms.abs().sum(dim=0)
    total = float(sizes.sum())
    # The total is the weight, because the shares in a mini-batch in which little varies are mostly
    # chance.
    metrics: dict[str, float] = {
        names.ADVANTAGE_SHARE.of(key): Weighted.of(size, total)
        for key, size in zip(keys, sizes.tolist(), strict=True)
    }
    up = terms > DISTINCT_TOLERANCE
    down = terms < -DISTINCT_TOLERANCE
    metrics[names.SIGN_CONFLICTS.key] = _share(up.any(dim=1) & down.any(dim=1))
    return metrics


def coverage_metrics(decomposition: Decomposition, failed_sessions: int = 0) -> dict[str, float]:
    """Compute the shares of groups, rows and rollouts from which GDPO learns nothing.

    - `names.SINGLETON_GROUPS`: groups with a single row, scored or not.
    - `names.UNSCORED_ROWS`: rows without a scored component.
    - `names.FAILED_SESSIONS`: failed rollouts, as a share of rows and failed rollouts together.

    Args:
      failed_sessions: the number of rollouts that failed, and therefore have no row. verl calls a
        rollout a session.
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
    """Compute the shares of rows whose response could not be parsed, for each reason.

    The result has `names.PARSE_ERROR_SHARE`, and `names.PARSE_ERROR_CODE` for each code that
    occurs. A code that is missing has the share 0. The result is empty if no row has a code.

    Args:
      codes: the `parse_error` that the reward function returned for each row. It is 0 if there was
        no error, and None if the function did not return this key.

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
    """Return the number of distinct advantages in a group, averaged over the groups.

    Two neighbours in the sorted advantages of a group are distinct if they differ by more than
    `DISTINCT_TOLERANCE`. If GRPO has fewer distinct advantages than GDPO for the same rewards,
    GRPO gives the same advantage to responses with different rewards (the collapse that the paper
    describes).

    Args:
      advantage: shape (B,), unitless, before whitening; rows with NaN are ignored.
      group_ids: B hashables, or a tensor of shape (B,).
    """
    groups, count = factorize_groups(group_ids, advantage)
    live = ~advantage.isnan()
    if not bool(live.any()):
        return Weighted(0.0, 0)
    # The rows are sorted by group, and within a group by size. Then a new distinct advantage begins
    # wherever two neighbouring rows differ.
    values, by_value = advantage[live].sort()
    codes, by_group = groups[live][by_value].sort(stable=True)
    values = values[by_group]
    new = (codes.diff() != 0) | (values.diff() > DISTINCT_TOLERANCE)
    filled = int((codes.bincount(minlength=count) > 0).sum())
    return Weighted.of(1 + int(new.sum()), filled)


def collapse_metrics(decomposition: Decomposition) -> dict[str, float]:
    """Compute `distinct_advantages` for the advantages of GRPO and of GDPO."""
    # `combined` is in units of the largest weight. If the deviations are not divided out, GRPO's
    # advantage is in units of the weights, too, and must be brought to the same unit.
    unit = 1.0 if decomposition.scale else decomposition.largest_weight
    summed = torch.where(decomposition.has_advantage, decomposition.grpo / unit, torch.nan)
    groups = decomposition.groups
    return {
        names.DISTINCT_GDPO.key: distinct_advantages(decomposition.combined, groups),
        names.DISTINCT_GRPO.key: distinct_advantages(summed, groups),
    }


def outcome_metrics(decomposition: Decomposition, outcome: int | None) -> dict[str, float]:
    """Compute the shares of groups in which the outcome is constant.

    The outcome is the component that says whether the task is solved.

    - `names.PHANTOM_GROUPS`: the outcome is constant, another component with a weight varies, and
      no gate excludes the group. The update then follows only the other component.
    - `names.GATED_GROUPS`: the gate gives the group no advantage. It is returned only if there is
      a gate.

    The result is empty if `outcome`, the column of the outcome, is None.
    """
    if outcome is None:
        return {}
    spread = decomposition.spread
    groups = decomposition.groups
    same = Gate(outcome).closed(spread)
    # A component with weight 0 has no effect on training, even if it varies.
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
    """Compute how an advantage moves each reward, and the variance of GDPO's sum.

    Both metrics use only the rows that have an advantage.

    - `names.INFLUENCE` = Cov(A, z_k), with z = 0 where not scored. A small step along A changes the
      mean of reward k in proportion to its influence, in units of the deviation of reward k within
      groups (https://arxiv.org/abs/2602.06869). A reward with a negative influence falls.
    - `names.NOISE_FLOOR` is the variance of sum_k w_k z_k within a group, averaged over the groups
      of two rows or more. It equals w' C w with the correlations C of the rewards in the group:
      sum_k w_k^2 for independent rewards, (sum_k |w_k|)^2 for equal rewards, and 0 where the
      rewards cancel or nothing varies.

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
    # Each row counts 1 / (rows of its group), so that a sum over rows is a sum over groups.
    share = torch.where(spread.scored & (spread.count > 1), 1 / spread.count, 0.0)
    groups = float(share.sum())
    total = float((share * spread.std.square()).sum())
    metrics[names.NOISE_FLOOR.key] = Weighted.of(total, groups)
    return metrics


def influence_terms(decomposition: Decomposition, advantage: Tensor) -> Tensor:
    """Return A z_k for each row that has an advantage, and 0 for other rows: shape (B, K).

    The mean of A z_k over the rows with an advantage is Cov(A, z_k), because z_k has the mean 0
    over these rows.
    """
    kept = torch.where(decomposition.has_advantage, advantage, 0.0)
    return kept[:, None] * decomposition.normalized.nan_to_num(0.0)


def variant_metrics(decomposition: Decomposition) -> dict[str, float]:
    """Compare the configured variant with GDPO and GRPO; the result is empty for GDPO itself.

    - `names.ZERO_ROWS`: the share of responses to which the variant gives the advantage 0.
    - `names.AGREES_WITH_GDPO` and `names.AGREES_WITH_GRPO`: the correlation, over the responses, of
      the variant's advantages with the advantages of GDPO and GRPO. A correlation is missing if one
      of the two is constant.
    """
    variant = decomposition.settings.variant
    if variant is GDPO:
        return {}
    advantage = decomposition.advantage
    name = variant.name
    metrics: dict[str, float] = {names.ZERO_ROWS.of(name): _share(advantage == 0)}
    others = (
        (names.AGREES_WITH_GDPO, decomposition.gdpo),
        (names.AGREES_WITH_GRPO, decomposition.grpo),
    )
    for metric, other in others:
        pair = torch.stack([advantage, other])
        pair = pair - pair.mean(dim=1, keepdim=True)
        # torch.corrcoef would return NaN for a constant, which occurs if nothing varies in a batch.
        lengths = pair.square().sum(dim=1).sqrt()
        if bool((lengths > 0).all()):
            correlation = float((pair[0] / lengths[0]) @ (pair[1] / lengths[1]))
            metrics[metric.of(name)] = Weighted(correlation, len(advantage))
    return metrics


def _share(rows: Tensor) -> Weighted:
    return Weighted.of(int(rows.sum()), len(rows))
