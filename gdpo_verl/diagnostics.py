"""Statistics of each reward component in a batch: pure functions of rewards and groups.

Each mean is `Weighted` by how much it was taken over: verl averages metrics over the
mini-batches of a step, and a mean over one scored row is not to count like one over a hundred.
A `decomposition` is of B rows and K components; `keys` are the names of the components.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence

import torch
from torch import Tensor

from gdpo_verl.advantage import GDPO, Estimation, Gate, factorize_groups, group_normalize
from gdpo_verl.advantage.groups import GroupIds, Spread, groups_with_any
from gdpo_verl.distinct import DISTINCT_TOLERANCE

PARSE_ERROR_SHARE = "gdpo/parse_error/share"
# Absent where no row has the code, which is then 0.
PARSE_ERROR_CODE = "gdpo/parse_error/code_"


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

    def __getnewargs__(self) -> tuple[float, float]:  # type: ignore[override]
        return float(self), self.weight


def batch_metrics(
    decomposition: Estimation,
    keys: Sequence[str],
    *,
    ranges: Mapping[str, tuple[float, float]] | None = None,
    outcome: int | None = None,
    failed_sessions: int = 0,
    trains: bool = True,
    scheduled: bool = False,
) -> dict[str, float]:
    """Compute a batch's metrics but for those of its answers (`parse_error_metrics`).

    Args:
      ranges, failed_sessions: as in `component_metrics` and `coverage_metrics`.
      outcome: the column of the component that says whether the task was solved.
      trains: its advantage is the one that trains; else GRPO's is, on the same weighted sum.
      scheduled: the weights change from step to step, and are metrics themselves.
    """
    groups = decomposition.groups
    # A reward is reported as it was returned, its effect as the conditions leave it.
    metrics = component_metrics(decomposition.raw, groups, keys, ranges=ranges)
    metrics |= contribution_metrics(decomposition, keys)
    metrics |= collapse_metrics(decomposition)
    metrics |= coverage_metrics(decomposition.rewards, groups, failed_sessions=failed_sessions)
    metrics |= outcome_metrics(decomposition, outcome)
    advantage = decomposition.advantage if trains else decomposition.grpo
    metrics |= influence_metrics(decomposition, advantage, keys)
    if trains:
        chosen = decomposition.estimate
        # Where a group in which nothing varies ends: its 0 is moved by the batch's mean.
        metrics["gdpo/whiten_shift"] = -chosen.mean * chosen.factor
        metrics |= variant_metrics(decomposition)
    if scheduled:
        names = [f"gdpo/{key}/weight" for key in keys]
        metrics |= zip(names, decomposition.weights.tolist(), strict=True)
    return metrics


def component_metrics(
    rewards: Tensor,
    group_ids: GroupIds,
    keys: Sequence[str],
    *,
    ranges: Mapping[str, tuple[float, float]] | None = None,
) -> dict[str, float]:
    """Statistics of each component.

    Under ``rewards/<component>/…``, as TRL has them: ``mean``, ``std`` (unbiased), ``min`` and
    ``max`` over the scored rows, in reward units. Under ``gdpo/<component>/…``:
    ``constant_groups``, the share of the groups with a scored row in which the component
    does not vary; ``unscored``, the share of rows without it, alone where no row has it;
    ``saturation``, (mean - low) / (high - low), where the component has a range. It is left
    outside 0 to 1 when rewards lie outside their range.

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
        metrics[f"gdpo/{key}/unscored"] = Weighted(unscored, len(column))
        if not n:
            continue
        metrics |= {
            f"rewards/{key}/mean": Weighted(float(present.mean()), n),
            f"rewards/{key}/std": Weighted(float(present.std()) if n > 1 else 0.0, n),
            # Not weighed: the extremes of several mini-batches are verl's minimum and maximum.
            f"rewards/{key}/min": float(present.min()),
            f"rewards/{key}/max": float(present.max()),
            f"gdpo/{key}/constant_groups": Weighted((scored - moving) / scored, scored),
        }
        if key in ranges:
            low, high = ranges[key]
            share = float((present.mean() - low) / (high - low))
            metrics[f"gdpo/{key}/saturation"] = Weighted(share, n)
    return metrics


def contribution_metrics(decomposition: Estimation, keys: Sequence[str]) -> dict[str, float]:
    """Each component's share of the decoupled advantage, and conflicts between components.

    With the terms c[i, k] = w_k z[i, k] that GDPO adds, 0 where not scored:

    ``gdpo/<component>/advantage_share`` = sum_i |c[i, k]| / sum_l sum_i |c[i, l]|, 0 for all
    components when nothing varies;
    ``gdpo/sign_conflicts``, the share of rows in which one term lies above
    `DISTINCT_TOLERANCE` and another below its negative, in units of the largest weight.
    """
    terms = decomposition.terms
    sizes = terms.abs().sum(dim=0)
    total = float(sizes.sum())
    # The total is the weight: a mini-batch in which little varies says little about the shares.
    metrics: dict[str, float] = {
        f"gdpo/{key}/advantage_share": Weighted(size / (total or 1.0), total)
        for key, size in zip(keys, sizes.tolist(), strict=True)
    }
    up, down = terms > DISTINCT_TOLERANCE, terms < -DISTINCT_TOLERANCE
    metrics["gdpo/sign_conflicts"] = _share(up.any(dim=1) & down.any(dim=1))
    return metrics


def coverage_metrics(
    rewards: Tensor, group_ids: GroupIds, *, failed_sessions: int = 0
) -> dict[str, float]:
    """Groups, rows and sessions that teach GDPO nothing, as shares.

    ``gdpo/singleton_groups``, the share of groups with one row, scored or not;
    ``gdpo/unscored_rows``, the share of rows without any scored component;
    ``gdpo/failed_sessions``, the share of failed ones in them and the rows.

    Args:
      rewards: shape (B, K), in reward units, after conditions; NaN where not scored.
      group_ids: B hashables, or a tensor of shape (B,).
      failed_sessions: those that left no row.
    """
    groups, count = factorize_groups(group_ids, rewards)
    single = groups.bincount(minlength=count) == 1
    sessions = failed_sessions + len(rewards)
    return {
        "gdpo/singleton_groups": _share(single),
        "gdpo/unscored_rows": _share(rewards.isnan().all(dim=1)),
        "gdpo/failed_sessions": Weighted(failed_sessions / max(sessions, 1), sessions),
    }


def groups_that_vary(rewards: Tensor, group_ids: Sequence[Hashable]) -> set[Hashable]:
    """The groups in which at least one component differs between two scored rows.

    Args:
      rewards: shape (B, K), in reward units, after conditions; NaN where not scored.
      group_ids: B hashables.
    """
    moves = (group_normalize(rewards, group_ids).nan_to_num(0.0) != 0).any(dim=1)
    return {group for group, moved in zip(group_ids, moves.tolist(), strict=True) if moved}


def parse_error_metrics(codes: Sequence[float | None]) -> dict[str, float]:
    """The shares of rows whose answers could not be read, by reason.

    ``gdpo/parse_error/share``, the rows with a code other than 0;
    ``gdpo/parse_error/code_<code>``, the rows with that code, for each that occurs: one that
    is absent is 0. Empty when no row has a code.

    Args:
      codes: what the reward returned as `parse_error` for each row, 0 for none; None
        where it returned nothing of the name.

    >>> parse_error_metrics([0, 4, 4, 1])["gdpo/parse_error/code_4"]
    0.5
    """
    known = [code for code in codes if code is not None]
    if not known:
        return {}
    errors = Counter(int(code) for code in known if code)
    n = len(known)
    metrics: dict[str, float] = {PARSE_ERROR_SHARE: Weighted(errors.total() / n, n)}
    for code, count in errors.items():
        metrics[f"{PARSE_ERROR_CODE}{code}"] = Weighted(count / n, n)
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
    return Weighted((1 + int(new.sum())) / filled, filled)


def collapse_metrics(decomposition: Estimation) -> dict[str, float]:
    """The numbers of distinct advantages in these groups, by GRPO and by GDPO.

    ``gdpo/distinct_advantages/{gdpo,grpo}``: see `distinct_advantages`.
    """
    # Without the deviations GRPO's advantage grows with the weights; GDPO's is in their unit.
    unit = 1.0 if decomposition.scale else decomposition.largest_weight
    summed = torch.where(decomposition.has_advantage, decomposition.grpo / unit, torch.nan)
    return {
        f"gdpo/distinct_advantages/{name}": distinct_advantages(advantage, decomposition.groups)
        for name, advantage in (("gdpo", decomposition.combined), ("grpo", summed))
    }


def outcome_metrics(decomposition: Estimation, outcome: int | None) -> dict[str, float]:
    """Shares of the groups in which other rewards are trained and the outcome says nothing.

    ``gdpo/phantom_groups``, the groups in which the outcome is the same for all, another reward
    with a weight varies, and no gate keeps it from being trained;
    ``gdpo/gated_groups``, those that the gate leaves without advantage, where there is one.
    Empty where `outcome`, its column, is None.
    """
    if outcome is None:
        return {}
    spread, groups = decomposition.spread, decomposition.groups
    same = Gate(outcome).closed(spread)
    # A component of weight 0 trains nothing, however much it varies.
    others = spread.group_varies & (decomposition.weights != 0)
    closed = decomposition.gated
    rows = torch.stack([same & others.any(dim=1) & ~closed, closed], dim=1)
    phantom, gated = groups_with_any(rows, groups).unbind(dim=1)
    metrics: dict[str, float] = {"gdpo/phantom_groups": _share(phantom)}
    if decomposition.gate is not None:
        metrics["gdpo/gated_groups"] = _share(gated)
    return metrics


def influence_metrics(
    decomposition: Estimation, advantage: Tensor, keys: Sequence[str]
) -> dict[str, float]:
    """Measure how an advantage moves each reward, and how noisy the decoupled sum is.

    Over the rows that carry an advantage:

    ``gdpo/<component>/influence`` = Cov(A, z_k), z 0 where not scored: a small step along A
    changes the mean of reward k, in units of its deviations within groups, in proportion to it
    (https://arxiv.org/abs/2602.06869). Below 0 it is unlearned;
    ``gdpo/noise_floor``, the variance of sum_k w_k z_k within a group, w' C w with the group's
    correlations C, averaged over the groups of two rows or more: sum_k w_k^2 for independent
    rewards, (sum_k |w_k|)^2 for one and the same, 0 where they cancel or nothing varies.

    Args:
      advantage: of the estimator that trains, shape (B,).
    """
    live, largest = decomposition.has_advantage, decomposition.largest_weight
    n = int(live.sum())
    # Each z has the mean 0 over these rows, so that the advantage's own mean does not matter.
    kept = torch.where(live, advantage, 0.0)
    influences = kept @ decomposition.normalized.nan_to_num(0.0) / max(n, 1)
    metrics: dict[str, float] = {
        f"gdpo/{key}/influence": Weighted(value, n)
        for key, value in zip(keys, influences.tolist(), strict=True)
    }
    spread = Spread((decomposition.combined * largest)[:, None], decomposition.groups)
    # Each row's share of its group: the sum over the rows is one over the groups.
    share = torch.where(spread.scored & (spread.count > 1), 1 / spread.count, 0.0)
    groups = float(share.sum())
    total = float((share * spread.std.square()).sum())
    metrics["gdpo/noise_floor"] = Weighted(total / (groups or 1.0), groups)
    return metrics


def variant_metrics(decomposition: Estimation) -> dict[str, float]:
    """The chosen variant beside GDPO and GRPO; empty for GDPO itself.

    ``gdpo/variant/<name>/zero_rows``, the share of responses to which it gives 0;
    ``gdpo/variant/<name>/agrees_with_{gdpo,grpo}``, the correlation of its advantages with
    theirs over the responses, absent where one of the two is constant.
    """
    if decomposition.variant is GDPO:
        return {}
    found = decomposition.advantage
    where = f"gdpo/variant/{decomposition.variant.name}"
    metrics: dict[str, float] = {f"{where}/zero_rows": _share(found == 0)}
    others = {"gdpo": decomposition.gdpo, "grpo": decomposition.grpo}
    for name, other in others.items():
        pair = torch.stack([found, other])
        pair = pair - pair.mean(dim=1, keepdim=True)
        # torch.corrcoef has NaN for a constant, as all advantages of a silent batch are.
        lengths = pair.square().sum(dim=1).sqrt()
        if bool((lengths > 0).all()):
            correlation = float((pair[0] / lengths[0]) @ (pair[1] / lengths[1]))
            metrics[f"{where}/agrees_with_{name}"] = Weighted(correlation, len(found))
    return metrics


def _share(rows: Tensor) -> Weighted:
    return Weighted(int(rows.sum()) / max(len(rows), 1), len(rows))
