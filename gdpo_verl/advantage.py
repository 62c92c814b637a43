"""GDPO's advantages as pure functions of rewards, groups and masks.

GDPO (https://arxiv.org/abs/2601.05242) normalises each reward component within its
group (Eq. 4), adds the results with their weights (Eq. 5 and 7) and whitens the sum over
the batch (Eq. 6). GRPO, its control, adds first and normalises the sum.

Dimensions: B responses, K reward components, T tokens. Per-response arithmetic is done in
float64 on any device; NaN in a reward means *not scored*.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor

Whiten = Literal["token", "sequence", "none"]

# verl's `masked_whiten` (verl/utils/torch_functional.py) adds it to the variance.
WHITEN_EPSILON = 1e-8
# Below this deviation, in units of the largest weight, components that cancel leave only
# rounding and the groups' epsilon behind, which whitening would blow up to size one.
NOISE_FLOOR = 1e-4


def apply_conditions(
    rewards: Tensor, keys: Sequence[str], conditions: Mapping[str, Mapping[str, Any]]
) -> Tensor:
    """Let a component count only where another one reached its threshold.

    r_k <- r_k where r_l >= t, else 0 (Eq. 8 of https://arxiv.org/abs/2601.05242), on raw
    rewards. Where r_l is not scored, r_k becomes not scored.

    >>> rewards = torch.tensor([[1.0, 1.0], [0.0, 1.0]])
    >>> condition = {"length": {"on": "correctness", "at_least": 1.0}}
    >>> apply_conditions(rewards, ["correctness", "length"], condition).tolist()
    [[1.0, 1.0], [0.0, 0.0]]

    Args:
      rewards: float, shape (B, K), in reward units; NaN where not scored.
      keys: the names of the K components.
      conditions: ``{component: {"on": other component, "at_least": threshold}}``.

    Returns:
      float, shape (B, K), in reward units; the input is left as it was.

    Raises:
      ValueError: not one name a component, an unknown component, a missing or unknown field,
        a threshold that is not a finite number, or a condition on a component that is
        conditioned itself.
    """
    if rewards.ndim != 2 or rewards.shape[1] != len(keys):
        raise ValueError(
            f"rewards: expected shape (B, {len(keys)}), one column for each of {list(keys)}, "
            f"found {tuple(rewards.shape)}"
        )
    check_conditions(keys, conditions)
    result = rewards.clone()
    for name, condition in conditions.items():
        target, source = keys.index(name), rewards[:, keys.index(condition["on"])]
        kept = torch.where(source >= condition["at_least"], rewards[:, target], 0.0)
        result[:, target] = torch.where(source.isnan(), torch.nan, kept)
    return result


def check_conditions(keys: Sequence[str], conditions: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise the ValueError that `apply_conditions` documents."""
    for name, condition in conditions.items():
        where = f"algorithm.gdpo.conditions.{name}"
        if not isinstance(condition, Mapping) or set(condition) != {"on", "at_least"}:
            raise ValueError(
                f"{where}: expected {{on: component, at_least: number}}, found {condition}"
            )
        for component in (name, condition["on"]):
            if component not in keys:
                raise ValueError(
                    f"{where}: {component!r} is not among the reward components {list(keys)}"
                )
        threshold = condition["at_least"]
        if isinstance(threshold, bool) or not isinstance(threshold, (int, float)):
            raise ValueError(f"{where}.at_least: expected a number, found {threshold!r}")
        if not math.isfinite(threshold):
            raise ValueError(f"{where}.at_least: expected a finite number, found {threshold}")
        if condition["on"] in conditions:
            raise ValueError(
                f"{where}.on: {condition['on']!r} is conditioned itself; conditions are read on "
                "raw rewards and may not be chained. Name an unconditioned component."
            )


def group_normalize(
    rewards: Tensor,
    group_ids: Sequence[Hashable] | Tensor,
    *,
    epsilon: float = 1e-6,
    scale: bool = True,
) -> Tensor:
    """Normalise each reward component within its group.

    z[i, k] = (r[i, k] - mean_g r[:, k]) / (std_g r[:, k] + epsilon)

    Eq. 4 of GDPO (https://arxiv.org/abs/2601.05242), with the unbiased standard deviation
    over the group's scored rows. Differs from verl 0.9.1's `compute_grpo_outcome_advantage`
    where a group has one scored row (0 here, the raw reward there) or is constant (exactly
    0 here, rounding divided by epsilon there).

    >>> group_normalize(torch.tensor([[1.0], [0.0], [3.0]]), ["a", "a", "b"]).round(decimals=4)
    tensor([[ 0.7071],
            [-0.7071],
            [ 0.0000]])

    Args:
      rewards: shape (B, K), in reward units; NaN where not scored.
      group_ids: B hashables, or a tensor of shape (B,); equal ids share a prompt.
      epsilon: added to the standard deviation, in reward units.
      scale: False subtracts the mean only; the result is then in reward units.

    Returns:
      shape (B, K), unitless, in the rewards' float dtype (float32 for others). NaN where
      not scored.

    Raises:
      ValueError: shapes disagree, a reward is infinite, or epsilon is not a finite number >= 0.
    """
    raw = _check_rewards(rewards)
    groups, count = factorize_groups(group_ids, raw)
    return _group_normalize(raw, groups, count, epsilon, scale).to(_result_dtype(rewards))


def gdpo_advantages(
    rewards: Tensor,
    group_ids: Sequence[Hashable] | Tensor,
    response_mask: Tensor,
    *,
    weights: Sequence[float] | None = None,
    whiten: Whiten = "token",
    epsilon: float = 1e-6,
    scale: bool = True,
) -> Tensor:
    """GDPO: normalise each component within its group, add, whiten over the batch.

    a_i = sum_k w_k z[i, k];  A[i, t] = mask[i, t] (a_i - mean a) / sqrt(var a + 1e-8)

    where z is `group_normalize` (Eq. 4, 5 and 7 of https://arxiv.org/abs/2601.05242), and
    mean and unbiased variance run over all response tokens (``whiten="token"``, as the
    paper's verl code does) or over all responses (``"sequence"``, Eq. 6).

    >>> rewards = torch.tensor([[1.0, 0.0], [0.0, 0.0], [1.0, 1.0], [0.0, 0.0]])
    >>> mask = torch.ones(4, 2)
    >>> gdpo_advantages(rewards, [0, 0, 1, 1], mask)[:, 0].round(decimals=4)
    tensor([ 0.5916, -0.5916,  1.1832, -1.1832])

    Args:
      rewards: shape (B, K), in reward units; NaN where not scored.
      group_ids: B hashables, or a tensor of shape (B,); equal ids share a prompt.
      response_mask: shape (B, T), 0 or 1 of any dtype, holes allowed.
      weights: K finite numbers, not all zero; only their ratios matter unless
        ``whiten="none"``. Default: all 1.
      whiten: "token", "sequence" or "none".
      epsilon: added to each group's standard deviation, in reward units.
      scale: False leaves out the division by the groups' standard deviations.

    Returns:
      shape (B, T), unitless, in the rewards' float dtype (float32 for others); masked
      tokens, rows without any scored component and batches that cancel are exactly 0.

    Raises:
      ValueError: shapes disagree, a reward is infinite, the mask is not 0/1, the weights
        are not K finite numbers of which one is not zero, epsilon is not a finite number
        >= 0, or `whiten` is none of the three.
    """
    counts = count_tokens(response_mask, rewards)
    advantage = gdpo_scalars(
        rewards,
        group_ids,
        counts,
        weights=weights,
        whiten=whiten,
        epsilon=epsilon,
        scale=scale,
    )
    return broadcast(advantage, response_mask, _result_dtype(rewards))


def grpo_advantages(
    rewards: Tensor,
    group_ids: Sequence[Hashable] | Tensor,
    response_mask: Tensor,
    *,
    weights: Sequence[float] | None = None,
    epsilon: float = 1e-6,
    scale: bool = True,
) -> Tensor:
    """GRPO, the control: add the components, then normalise the sum within its group.

    A[i, t] = mask[i, t] (s_i - mean_g s) / (std_g s + epsilon),  s_i = sum_k w_k r[i, k]

    >>> rewards = torch.tensor([[1.0, 0.0], [0.0, 0.0], [1.0, 1.0], [0.0, 0.0]])
    >>> grpo_advantages(rewards, [0, 0, 1, 1], torch.ones(4, 1))[:, 0].round(decimals=4)
    tensor([ 0.7071, -0.7071,  0.7071, -0.7071])

    Args, returns and errors as in `gdpo_advantages`; nothing is whitened, and a component
    that is not scored adds 0 to the sum.
    """
    count_tokens(response_mask, rewards)
    advantage = grpo_scalars(rewards, group_ids, weights=weights, epsilon=epsilon, scale=scale)
    return broadcast(advantage, response_mask, _result_dtype(rewards))


def gdpo_scalars(
    rewards: Tensor,
    group_ids: Sequence[Hashable] | Tensor,
    token_counts: Tensor,
    *,
    weights: Sequence[float] | None = None,
    whiten: Whiten = "token",
    epsilon: float = 1e-6,
    scale: bool = True,
) -> Tensor:
    """`gdpo_advantages` before the broadcast: one float64 advantage a response.

    Args:
      token_counts: shape (B,), the response tokens that each row stands for. A row with
        none counts in its group's statistics and in no whitening statistic.

    Returns:
      float64, shape (B,), unitless.
    """
    if whiten not in get_args(Whiten):
        raise ValueError(f"whiten: expected one of {list(get_args(Whiten))}, found {whiten!r}")
    raw = _check_rewards(rewards)
    if token_counts.shape != raw.shape[:1]:
        raise ValueError(
            f"token_counts: expected shape ({len(raw)},), found {tuple(token_counts.shape)}"
        )
    combined = decoupled_sum(raw, group_ids, weights=weights, epsilon=epsilon, scale=scale)
    floor = NOISE_FLOOR * float(_check_weights(weights, raw).abs().max()) if scale else 0.0
    mean, factor = whitening(combined, token_counts, over=whiten, floor=floor)
    return ((combined - mean) * factor).nan_to_num(0.0)


def grpo_scalars(
    rewards: Tensor,
    group_ids: Sequence[Hashable] | Tensor,
    *,
    weights: Sequence[float] | None = None,
    epsilon: float = 1e-6,
    scale: bool = True,
) -> Tensor:
    """`grpo_advantages` before the broadcast: float64, shape (B,)."""
    raw = _check_rewards(rewards)
    groups, count = factorize_groups(group_ids, raw)
    total = _weighted_sum(raw, _check_weights(weights, raw))
    return _group_normalize(total[:, None], groups, count, epsilon, scale)[:, 0].nan_to_num(0.0)


def decoupled_sum(
    rewards: Tensor,
    group_ids: Sequence[Hashable] | Tensor,
    *,
    weights: Sequence[float] | None = None,
    epsilon: float = 1e-6,
    scale: bool = True,
) -> Tensor:
    """sum_k w_k z[i, k] (Eq. 7), GDPO before whitening.

    Returns:
      float64, shape (B,). A component that is not scored adds 0; NaN where none is.
    """
    raw = _check_rewards(rewards)
    groups, count = factorize_groups(group_ids, raw)
    normalized = _group_normalize(raw, groups, count, epsilon, scale)
    return _weighted_sum(normalized, _check_weights(weights, raw))


def count_tokens(response_mask: Tensor, rewards: Tensor) -> Tensor:
    """Response tokens a row: float64, shape (B,). Raises ValueError on a mask that is not 0/1."""
    if response_mask.ndim != 2 or len(response_mask) != len(rewards):
        raise ValueError(
            f"response_mask: expected shape ({len(rewards)}, T), found {tuple(response_mask.shape)}"
        )
    kept = response_mask != 0
    if response_mask.dtype != torch.bool and not bool((response_mask == kept).all()):
        raise ValueError("response_mask: expected only 0 and 1")
    return kept.sum(dim=1, dtype=torch.float64)


def broadcast(advantage: Tensor, response_mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A response's advantage on each of its response tokens, exactly 0 elsewhere: (B, T)."""
    column = advantage.to(response_mask.device, dtype)[:, None]
    return torch.where(
        response_mask != 0, column, torch.zeros((), dtype=dtype, device=column.device)
    )


def factorize_groups(group_ids: Sequence[Hashable] | Tensor, rewards: Tensor) -> tuple[Tensor, int]:
    """Group ids as codes 0…G-1: int64, shape (B,), and G.

    Raises:
      ValueError: not one id a row.
    """
    if len(group_ids) != len(rewards):
        raise ValueError(
            f"group_ids: expected {len(rewards)}, one a row of rewards, found {len(group_ids)}"
        )
    if isinstance(group_ids, Tensor):
        if group_ids.ndim != 1:
            raise ValueError(
                f"group_ids: expected shape ({len(rewards)},), found {tuple(group_ids.shape)}"
            )
        values, codes = torch.unique(group_ids.to(rewards.device), return_inverse=True)
        return codes, len(values)
    seen: dict[Hashable, int] = {}
    codes = [seen.setdefault(group, len(seen)) for group in group_ids]
    return torch.tensor(codes, dtype=torch.int64, device=rewards.device), len(seen)


def _group_normalize(
    rewards: Tensor, groups: Tensor, group_count: int, epsilon: float, scale: bool
) -> Tensor:
    if not 0 <= epsilon < math.inf:
        raise ValueError(f"epsilon: expected a finite number >= 0, found {epsilon}")
    scored = ~rewards.isnan()
    values = rewards.nan_to_num(0.0)
    shape = (group_count, rewards.shape[1])
    rows = groups[:, None].expand_as(rewards)

    def group_sum(x: Tensor) -> Tensor:
        return x.new_zeros(shape).index_add_(0, groups, x)

    n = group_sum(scored.to(rewards))
    deviation = torch.where(scored, values - (group_sum(values) / n.clamp(min=1))[groups], 0.0)
    # A constant group is recognised by its values: its deviations are rounding, not zero.
    low = values.new_full(shape, torch.inf).scatter_reduce_(
        0, rows, torch.where(scored, values, torch.inf), "amin"
    )
    high = values.new_full(shape, -torch.inf).scatter_reduce_(
        0, rows, torch.where(scored, values, -torch.inf), "amax"
    )
    varies = (high > low)[groups] & scored
    if scale:
        std = (group_sum(deviation.square()) / (n - 1).clamp(min=1)).sqrt()
        deviation = deviation / (std[groups] + epsilon)
    return torch.where(varies, deviation, torch.where(scored, 0.0, torch.nan))


def _weighted_sum(values: Tensor, weights: Tensor) -> Tensor:
    # Not a matrix product: BLAS rounds equal rows differently, and a constant group is exact.
    total = (values.nan_to_num(0.0) * weights).sum(dim=1)
    return torch.where(values.isnan().all(dim=1), torch.nan, total)


def whitening(
    values: Tensor, token_counts: Tensor, *, over: Whiten = "token", floor: float = 0.0
) -> tuple[float, float]:
    """Mean and factor of the batch step, (a - mean) * factor (Eq. 6).

    factor = 1 / sqrt(unbiased var + 1e-8), mean and variance over all response tokens
    (``over="token"``) or over the rows that have any (``"sequence"``); NaN rows take no
    part. Fewer than two of them, or a deviation below `floor`, give the factor 0.

    Args:
      values: float64, shape (B,); NaN in rows without a scored component.
      token_counts: shape (B,).
    """
    if over == "none":
        return 0.0, 1.0
    live = ~values.isnan()
    tokens = token_counts.to(values)[live]
    values, share = values[live], tokens if over == "token" else (tokens > 0).to(values)
    n = share.sum()
    if n < 2:
        return 0.0, 0.0
    mean = (share * values).sum() / n
    variance = (share * (values - mean).square()).sum() / (n - 1)
    if variance.sqrt() < floor:
        return float(mean), 0.0
    return float(mean), float(torch.rsqrt(variance + WHITEN_EPSILON))


def _check_rewards(rewards: Tensor) -> Tensor:
    if rewards.ndim != 2 or rewards.shape[1] == 0:
        raise ValueError(
            f"rewards: expected shape (B, K) with K >= 1, found {tuple(rewards.shape)}"
        )
    if bool(rewards.isinf().any()):
        row, column = rewards.isinf().nonzero()[0].tolist()
        raise ValueError(
            f"rewards: expected finite numbers or NaN, found {rewards[row, column]} at row {row}, "
            f"component {column}"
        )
    return rewards.to(torch.float64)


def _check_weights(weights: Sequence[float] | None, rewards: Tensor) -> Tensor:
    count = rewards.shape[1]
    values = torch.as_tensor(
        [1.0] * count if weights is None else list(weights),
        dtype=torch.float64,
        device=rewards.device,
    )
    if values.shape != (count,) or not bool(values.isfinite().all()) or not bool(values.any()):
        raise ValueError(
            f"weights: expected {count} finite numbers, not all zero, found {values.tolist()}"
        )
    return values


def _result_dtype(rewards: Tensor) -> torch.dtype:
    return rewards.dtype if rewards.is_floating_point() else torch.float32
