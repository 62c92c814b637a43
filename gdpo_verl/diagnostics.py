"""What happened to each reward component in a batch: pure functions of rewards and groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence

import torch
from torch import Tensor

from gdpo_verl.advantage import (
    NOISE_FLOOR,
    decoupled_sum,
    factorize_groups,
    group_normalize,
    grpo_scalars,
)

# Advantages closer than this, in units of the largest weight, count as one, and closer to 0 as
# 0. It is what the estimator takes for noise: of components that cancel, the groups' epsilon
# leaves a rest.
DISTINCT_TOLERANCE = NOISE_FLOOR


def component_metrics(
    rewards: Tensor,
    group_ids: Sequence[Hashable] | Tensor,
    keys: Sequence[str],
    *,
    ranges: Mapping[str, tuple[float, float]] | None = None,
) -> dict[str, float]:
    """Statistics of each component, under ``gdpo/<component>/…``.

    ``mean``, ``std`` (unbiased), ``min`` and ``max`` over the scored rows, in reward units;
    ``constant_groups``, the share of the groups with a scored row in which the component
    does not vary; ``unscored``, the share of rows without it, alone where no row has it;
    ``saturation``, (mean - low) / (high - low), where the component has a range. It is left
    outside 0 to 1 when rewards lie outside their range.

    Args:
      rewards: shape (B, K), in reward units; NaN where not scored.
      group_ids: B hashables, or a tensor of shape (B,).
      keys: the names of the K components.
      ranges: low and high > low by component, in reward units, where both are declared.
    """
    ranges = ranges or {}
    values = rewards.to(torch.float64)
    groups, count = factorize_groups(group_ids, values)
    metrics: dict[str, float] = {}
    for key, column in zip(keys, values.unbind(dim=1), strict=True):
        scored = ~column.isnan()
        present = column[scored]
        metrics[f"gdpo/{key}/unscored"] = 1.0 - len(present) / max(len(column), 1)
        if len(present):
            metrics[f"gdpo/{key}/mean"] = float(present.mean())
            metrics[f"gdpo/{key}/std"] = float(present.std()) if len(present) > 1 else 0.0
            metrics[f"gdpo/{key}/min"] = float(present.min())
            metrics[f"gdpo/{key}/max"] = float(present.max())
            metrics[f"gdpo/{key}/constant_groups"] = _constant_share(present, groups[scored], count)
            if key in ranges:
                low, high = ranges[key]
                metrics[f"gdpo/{key}/saturation"] = float((present.mean() - low) / (high - low))
    return metrics


def contribution_metrics(
    rewards: Tensor,
    group_ids: Sequence[Hashable] | Tensor,
    keys: Sequence[str],
    *,
    weights: Sequence[float] | None = None,
    epsilon: float = 1e-6,
    scale: bool = True,
) -> dict[str, float]:
    """Who moves the decoupled advantage, and who pulls against whom.

    With the terms c[i, k] = w_k z[i, k] that GDPO adds, 0 where not scored:

    ``gdpo/<component>/advantage_share`` = sum_i |c[i, k]| / sum_l sum_i |c[i, l]|, 0 for all
    components when nothing varies;
    ``gdpo/sign_conflicts``, the share of rows in which one term lies above
    `DISTINCT_TOLERANCE` and another below its negative.

    Args:
      rewards: shape (B, K), in reward units, after conditions; NaN where not scored.
      group_ids: B hashables, or a tensor of shape (B,).
      keys: the names of the K components.
      weights, epsilon, scale: as in `gdpo_verl.gdpo_advantages`.
    """
    weights = [1.0] * len(keys) if weights is None else _unit_weights(weights)
    if len(weights) != len(keys):
        raise ValueError(f"weights: expected {len(keys)}, one for each of {list(keys)}")
    normalized = group_normalize(rewards.to(torch.float64), group_ids, epsilon=epsilon, scale=scale)
    columns = normalized.nan_to_num(0.0).unbind(dim=1)
    terms = torch.stack(
        [weight * column for weight, column in zip(weights, columns, strict=True)], dim=1
    )
    sizes = terms.abs().sum(dim=0)
    shares = (sizes / (float(sizes.sum()) or 1.0)).tolist()
    up, down = terms > DISTINCT_TOLERANCE, terms < -DISTINCT_TOLERANCE
    conflicts = up.any(dim=1) & down.any(dim=1)
    metrics = {
        f"gdpo/{key}/advantage_share": share for key, share in zip(keys, shares, strict=True)
    }
    return metrics | {"gdpo/sign_conflicts": float(conflicts.sum()) / max(len(conflicts), 1)}


def coverage_metrics(
    rewards: Tensor, group_ids: Sequence[Hashable] | Tensor, *, failed_sessions: int = 0
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
    unscored = rewards.isnan().all(dim=1)
    return {
        "gdpo/singleton_groups": float(single.sum()) / max(count, 1),
        "gdpo/unscored_rows": float(unscored.sum()) / max(len(unscored), 1),
        "gdpo/failed_sessions": failed_sessions / max(failed_sessions + len(rewards), 1),
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
    """How many answers could not be read, and why, as shares of the rows.

    ``gdpo/parse_error/share``, the rows with a code other than 0;
    ``gdpo/parse_error/code_<code>``, the rows with that code, for each that occurs. Empty
    when no row has a code.

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
    return {"gdpo/parse_error/share": errors.total() / len(known)} | {
        f"gdpo/parse_error/code_{code}": count / len(known) for code, count in errors.items()
    }


def distinct_advantages(advantage: Tensor, group_ids: Sequence[Hashable] | Tensor) -> float:
    """Mean number of distinct advantages within a group, NaN rows left out.

    In order of size, two neighbours are distinct when they differ by more than
    `DISTINCT_TOLERANCE`; what lies closer, one to the next, counts as one. GRPO's
    number below GDPO's on the same rewards is advantage collapse.

    Args:
      advantage: shape (B,), unitless, before whitening.
      group_ids: B hashables, or a tensor of shape (B,).
    """
    groups, _ = factorize_groups(group_ids, advantage)
    live = ~advantage.isnan()
    if not bool(live.any()):
        return 0.0
    values, by_value = advantage[live].sort()
    codes, by_group = groups[live][by_value].sort(stable=True)
    values = values[by_group]
    new = (codes.diff() != 0) | (values.diff() > DISTINCT_TOLERANCE)
    return float((1 + new.sum()) / codes.unique().numel())


def collapse_metrics(
    rewards: Tensor,
    group_ids: Sequence[Hashable] | Tensor,
    *,
    weights: Sequence[float] | None = None,
    epsilon: float = 1e-6,
    scale: bool = True,
) -> dict[str, float]:
    """What GRPO would tell apart in these groups, and what GDPO does.

    ``gdpo/distinct_advantages/{gdpo,grpo}``: see `distinct_advantages`.
    """
    weights = None if weights is None else _unit_weights(weights)
    options = {"weights": weights, "epsilon": epsilon, "scale": scale}
    decoupled = decoupled_sum(rewards, group_ids, **options)  # type: ignore[arg-type]
    summed = grpo_scalars(rewards, group_ids, **options)  # type: ignore[arg-type]
    summed = torch.where(decoupled.isnan(), torch.nan, summed)
    return {
        "gdpo/distinct_advantages/gdpo": distinct_advantages(decoupled, group_ids),
        "gdpo/distinct_advantages/grpo": distinct_advantages(summed, group_ids),
    }


def _unit_weights(weights: Sequence[float]) -> list[float]:
    largest = max(map(abs, weights), default=1.0) or 1.0
    return [weight / largest for weight in weights]


def _constant_share(values: Tensor, groups: Tensor, count: int) -> float:
    low = values.new_full((count,), torch.inf).scatter_reduce_(0, groups, values, "amin")
    high = values.new_full((count,), -torch.inf).scatter_reduce_(0, groups, values, "amax")
    present = low.isfinite()
    return float((low == high)[present].to(torch.float64).mean())
