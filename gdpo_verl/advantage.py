"""GDPO's advantages as pure functions of rewards, groups and masks.

GDPO (https://arxiv.org/abs/2601.05242) normalises each reward component within its
group (Eq. 4), adds the results with their weights (Eq. 5 and 7) and whitens the sum over
the batch (Eq. 6). GRPO, its control, adds first and normalises the sum.

Dimensions: B responses, K reward components, T tokens. Per-response arithmetic is done in
float64 on any device; NaN in a reward means *not scored*.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import count
from numbers import Real
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

Whiten = Literal["token", "sequence", "none"]

# verl's `masked_whiten` (verl/utils/torch_functional.py) adds it to the variance.
WHITEN_EPSILON = 1e-8
# Below this deviation, in units of the largest weight, components that cancel leave only
# rounding and the groups' epsilon behind, which whitening would blow up to size one.
NOISE_FLOOR = 1e-4
# Elements of B×T handled at a time, on a CPU and elsewhere. What is intermediate then stays in the
# cache, or is small beside the result. Smaller blocks would keep a machine's cores waiting for
# each other more often, which is dear where other processes use them too.
BLOCK = {"cpu": 2**21, "other": 2**24}
# torch can convert these and do little else with them.
NO_ARITHMETIC = (torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2)


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
    if not isinstance(rewards, Tensor) or rewards.ndim != 2 or rewards.shape[1] != len(keys):
        raise ValueError(
            f"rewards: expected a tensor of shape (B, {len(keys)}), one column for each of "
            f"{list(keys)}, found {tuple(getattr(rewards, 'shape', ())) or _kind(rewards)}"
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
    if not isinstance(conditions, Mapping):
        raise ValueError(f"algorithm.gdpo.conditions: expected a mapping, found {conditions!r}")
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
    spread = _Spread(raw, *factorize_groups(group_ids, raw))
    return spread.normalized(epsilon, scale).to(_result_dtype(rewards))


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
      shape (B, T), unitless, on the mask's device, without a gradient, in the rewards' float
      dtype (float32 for others); masked tokens, rows without any scored component and
      batches that cancel are exactly 0. What the dtype cannot hold becomes its largest
      number. An empty batch gives an empty result.

    Raises:
      ValueError: an argument is no tensor where one is expected, shapes disagree, a reward
        is infinite or complex, group ids are not hashable, the mask is not 0/1, the weights
        are not K finite numbers of which one is not zero, epsilon is not a finite number
        >= 0, or `whiten` is none of the three.
    """
    raw = _check_rewards(rewards)
    counts = count_tokens(response_mask, raw)
    advantage = gdpo_scalars(
        raw,
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
    raw = _check_rewards(rewards)
    count_tokens(response_mask, raw)
    advantage = grpo_scalars(raw, group_ids, weights=weights, epsilon=epsilon, scale=scale)
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
    combined, mean, factor = batch_step(
        rewards,
        group_ids,
        token_counts,
        weights=weights,
        whiten=whiten,
        epsilon=epsilon,
        scale=scale,
    )
    return ((combined - mean) * factor).nan_to_num(0.0)


def batch_step(
    rewards: Tensor,
    group_ids: Sequence[Hashable] | Tensor,
    token_counts: Tensor,
    *,
    weights: Sequence[float] | None = None,
    whiten: Whiten = "token",
    epsilon: float = 1e-6,
    scale: bool = True,
) -> tuple[Tensor, float, float]:
    """`gdpo_scalars` before its last line: a, mean and factor of (a - mean) * factor.

    Returns:
      The decoupled sum (float64, shape (B,); NaN where nothing is scored), with the largest
      weight as the unit when it is whitened, and the two numbers that whiten it.
    """
    if whiten not in get_args(Whiten):
        raise ValueError(f"whiten: expected one of {list(get_args(Whiten))}, found {whiten!r}")
    raw = _check_rewards(rewards)
    if token_counts.shape != raw.shape[:1]:
        raise ValueError(
            f"token_counts: expected shape ({len(raw)},), found {tuple(token_counts.shape)}"
        )
    units = _check_weights(weights, raw)
    if whiten != "none":
        units = units / units.abs().max()
    spread = _Spread(raw, *factorize_groups(group_ids, raw))
    combined = _weighted_sum(spread.normalized(epsilon, scale), units)
    floor = NOISE_FLOOR if scale else 0.0
    mean, factor = whitening(combined, token_counts, over=whiten, floor=floor)
    if scale and epsilon and factor:
        # What the epsilons leave of components that cancel grows as they near the deviations.
        exact = _weighted_sum(spread.normalized(0.0, scale), units)
        if whitening(exact, token_counts, over=whiten, floor=floor)[1] == 0.0:
            factor = 0.0
    return combined, mean, factor


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
    total = _weighted_sum(raw, _check_weights(weights, raw))[:, None]
    spread = _Spread(total, *factorize_groups(group_ids, raw))
    return spread.normalized(epsilon, scale)[:, 0].nan_to_num(0.0)


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
    spread = _Spread(raw, *factorize_groups(group_ids, raw))
    return _weighted_sum(spread.normalized(epsilon, scale), _check_weights(weights, raw))


def count_tokens(response_mask: Tensor, rewards: Tensor) -> Tensor:
    """Response tokens a row: float64, shape (B,). Raises ValueError on a mask that is not 0/1."""
    if not isinstance(response_mask, Tensor) or response_mask.is_complex():
        raise ValueError(
            f"response_mask: expected a tensor of real numbers, found {_kind(response_mask)}"
        )
    if response_mask.ndim != 2 or len(response_mask) != len(rewards):
        raise ValueError(
            f"response_mask: expected shape ({len(rewards)}, T), found {tuple(response_mask.shape)}"
        )
    mask = response_mask.detach()
    counts = torch.zeros(len(mask), dtype=torch.float64, device=mask.device)
    # Looked at once, at the end: each look waits for an accelerator.
    valid = torch.ones((), dtype=torch.bool, device=mask.device)
    for rows in _row_blocks(mask):
        kept = mask[rows]
        if kept.dtype in NO_ARITHMETIC:
            kept = kept.float()
        if kept.is_floating_point():
            # Of all numbers only 0 and 1 are their own squares; infinity and NaN leave NaN.
            low, high = kept.square().sub_(kept).aminmax()
            valid &= (low == 0) & (high == 0)
        elif kept.dtype != torch.bool:
            low, high = kept.aminmax()
            valid &= (low >= 0) & (high <= 1)
        whole = torch.float64 if kept.is_floating_point() else torch.int64
        counts[rows] = kept.sum(dim=1, dtype=whole)
    if not valid:
        raise ValueError("response_mask: expected only 0 and 1")
    return counts


def broadcast(advantage: Tensor, response_mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A response's advantage on each of its response tokens, exactly 0 elsewhere: (B, T).

    Args:
      advantage: shape (B,).
      response_mask: shape (B, T), as `count_tokens` accepted it.
      dtype: a float dtype, of the result.
    """
    mask = response_mask.detach()
    # Finite, so that nothing times 0 is NaN.
    column = advantage.detach().to(mask.device, dtype).nan_to_num()[:, None]
    result = torch.empty(mask.shape, dtype=dtype, device=mask.device)
    for rows in _row_blocks(mask):
        # Adding 0 makes 0 of -0.
        result[rows].copy_(mask[rows]).mul_(column[rows]).add_(0.0)
    return result


def _row_blocks(mask: Tensor) -> Iterator[slice]:
    """Blocks of rows of about `BLOCK` elements; none of an empty mask."""
    if not mask.numel():
        return
    elements = BLOCK["cpu" if mask.device.type == "cpu" else "other"]
    step = max(1, elements // mask.shape[1])
    for start in range(0, len(mask), step):
        yield slice(start, start + step)


def factorize_groups(group_ids: Sequence[Hashable] | Tensor, rewards: Tensor) -> tuple[Tensor, int]:
    """Group ids as codes 0…G-1: int64, shape (B,), and G.

    Raises:
      ValueError: not one id a row, or ids that cannot be hashed.
    """
    size = len(rewards)
    if isinstance(group_ids, Tensor):
        if group_ids.shape != (size,):
            raise ValueError(f"group_ids: expected shape ({size},), found {tuple(group_ids.shape)}")
        values, codes = torch.unique(group_ids.detach().to(rewards.device), return_inverse=True)
        return codes, len(values)
    try:
        found: Any = len(group_ids)
    except TypeError:
        found = _kind(group_ids)
    if found != size:
        raise ValueError(f"group_ids: expected {size}, one a row of rewards, found {found}")
    seen: defaultdict[Hashable, int] = defaultdict(count().__next__)
    try:
        codes = torch.from_numpy(np.fromiter(map(seen.__getitem__, group_ids), np.int64, size))
    except TypeError as error:
        raise ValueError(f"group_ids: expected hashable ids: {error}") from error
    if any(isinstance(group, Tensor) for group in seen):
        raise ValueError(
            "group_ids: expected one tensor or hashable ids, found several tensors, which are "
            "equal to themselves only. Stack them."
        )
    return codes.to(rewards.device), len(seen)


class _Spread:
    """Each component's deviation from its group's mean, and each group's standard deviation."""

    def __init__(self, rewards: Tensor, groups: Tensor, group_count: int) -> None:
        shape = (group_count, rewards.shape[1])
        rows = groups[:, None].expand_as(rewards)

        def group_sum(x: Tensor) -> Tensor:
            return x.new_zeros(shape).index_add_(0, groups, x)

        def extreme(fill: float, which: str) -> Tensor:
            values = torch.where(self.scored, rewards, fill)
            return rewards.new_full(shape, fill).scatter_reduce_(0, rows, values, which)

        self.scored = ~rewards.isnan()
        n = group_sum(self.scored.to(rewards))
        mean = group_sum(rewards.nan_to_num(0.0)) / n.clamp(min=1)
        self.deviation = torch.where(self.scored, rewards - mean[groups], 0.0)
        # A constant group is recognised by its values: its deviations are rounding, not zero.
        width = extreme(-torch.inf, "amax") - extreme(torch.inf, "amin")
        self.varies = (width > 0)[groups] & self.scored
        # In units of the width no square over- or underflows.
        width = torch.where(width > 0, width, 1.0)
        squares = group_sum((self.deviation / width[groups]).square())
        self.std = (width * (squares / (n - 1).clamp(min=1)).sqrt())[groups]

    def normalized(self, epsilon: float, scale: bool) -> Tensor:
        """(r - mean) / (std + epsilon), or r - mean; NaN where not scored."""
        if not isinstance(epsilon, Real) or not 0 <= epsilon < math.inf:
            raise ValueError(f"epsilon: expected a finite number >= 0, found {epsilon!r}")
        values = self.deviation / (self.std + epsilon) if scale else self.deviation
        return torch.where(self.varies, values, torch.where(self.scored, 0.0, torch.nan))


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
    if not isinstance(rewards, Tensor) or rewards.is_complex():
        raise ValueError(f"rewards: expected a tensor of real numbers, found {_kind(rewards)}")
    if rewards.ndim != 2 or rewards.shape[1] == 0:
        raise ValueError(
            f"rewards: expected shape (B, K) with K >= 1, found {tuple(rewards.shape)}"
        )
    values = rewards.detach().to(torch.float64)
    if bool(values.isinf().any()):
        row, column = values.isinf().nonzero()[0].tolist()
        raise ValueError(
            f"rewards: expected finite numbers or NaN, found {values[row, column]} at row {row}, "
            f"component {column}"
        )
    return values


def _check_weights(weights: Sequence[float] | Tensor | None, rewards: Tensor) -> Tensor:
    size = rewards.shape[1]
    expected = f"weights: expected {size} finite numbers, not all zero"
    try:
        given = [1.0] * size if weights is None else list(weights)
        values = torch.tensor(given, dtype=torch.float64, device=rewards.device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{expected}, found {weights!r}") from error
    if values.shape != (size,) or not bool(values.isfinite().all()) or not bool(values.any()):
        raise ValueError(f"{expected}, found {values.tolist()}")
    return values


def _result_dtype(rewards: Tensor) -> torch.dtype:
    plain = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
    return rewards.dtype if rewards.dtype in plain else torch.float32


def _kind(value: Any) -> str:
    return str(value.dtype) if isinstance(value, Tensor) else type(value).__name__
