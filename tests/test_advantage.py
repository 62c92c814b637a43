"""The estimator: by hand, by property, against verl's own functions, against bad input.

In the derivations s = 1/sqrt(2): two different rewards in a group of two normalise to ±s,
whatever they are, because their mean is halfway and their unbiased deviation is |r1 - r2| s.
Numbers are worked without the epsilon that is added to each deviation; at deviations of
about 1 it moves them by 1e-6, hence the tolerance of the literals.
"""

from __future__ import annotations

import inspect
import math
import statistics
from collections.abc import Sequence
from fractions import Fraction
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gdpo_verl import (
    advantage,
    apply_conditions,
    gdpo_advantages,
    group_normalize,
    grpo_advantages,
)
from gdpo_verl.advantage import Whiten, tokens
from gdpo_verl.config import GdpoConfig

NAN = math.nan
S = 1 / math.sqrt(2)
WHITEN: tuple[Whiten, ...] = ("token", "sequence", "none")


def close(found: Tensor, expected: Any, tolerance: float = 1e-5) -> None:
    expected = torch.as_tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(found.double(), expected, atol=tolerance, rtol=0.0)


def exactly_zero(found: Tensor) -> bool:
    return found.numel() > 0 and bool((found == 0).all())


def lengths(*tokens: int) -> Tensor:
    """A mask with so many response tokens in each row."""
    return (torch.arange(max(tokens)) < torch.tensor(tokens)[:, None]).long()


def by_row(advantage: Tensor, mask: Tensor) -> Tensor:
    """The one advantage of each row; its masked tokens must be exactly 0."""
    assert advantage.shape == mask.shape
    assert not bool(advantage[mask == 0].any())
    scalar = torch.stack(
        [row[kept != 0][0] for row, kept in zip(advantage, mask, strict=True) if kept.any()]
    )
    assert torch.equal(advantage[mask != 0], scalar.repeat_interleave(mask.sum(1)[mask.any(1)]))
    return scalar


# ---------------------------------------------------------------- worked by hand

TWO_GROUPS = torch.tensor([[1.0, 0.0], [0.0, 0.0], [1.0, 1.0], [0.0, 0.0]])
PAIRS = [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("whiten", "mask", "expected"),
    [
        # First group: only the first reward varies, ±s. Second: both do, ±2s.
        pytest.param("none", lengths(1, 1, 1, 1), [S, -S, 2 * S, -2 * S], id="not whitened"),
        # Mean 0, var = (s² + s² + 4s² + 4s²)/3 = 10s²/3; s/sqrt(10s²/3) = sqrt(3/10).
        pytest.param(
            "sequence", lengths(3, 1, 1, 1), [0.54772, -0.54772, 1.09545, -1.09545], id="sequences"
        ),
        # Eight tokens: mean 0, var = 2·10s²/7; sqrt(7/20).
        pytest.param(
            "token", lengths(2, 2, 2, 2), [0.59161, -0.59161, 1.18322, -1.18322], id="two tokens"
        ),
        # In units of s the six tokens are 1, 1, 1, -1, 2, -2: mean 1/3, and
        # var = (12 - 6/9)/5 = 34/15. So (1 - 1/3) sqrt(15/34), and so on.
        pytest.param(
            "token", lengths(3, 1, 1, 1), [0.44281, -0.88561, 1.10702, -1.54983], id="3, 1, 1, 1"
        ),
    ],
)
def test_two_groups_of_two_by_hand(whiten: Whiten, mask: Tensor, expected: list[float]) -> None:
    found = gdpo_advantages(TWO_GROUPS, PAIRS, mask, whiten=whiten)
    close(by_row(found, mask), expected)


def test_grpo_adds_first_and_cannot_tell_one_reward_from_two() -> None:
    mask = lengths(3, 1, 1, 1)
    # The sums are 1, 0 and 2, 0: each group of two normalises to ±s.
    close(by_row(grpo_advantages(TWO_GROUPS, PAIRS, mask), mask), [S, -S, S, -S])


def test_grpo_weights_act_on_the_raw_rewards() -> None:
    # Sums 3·1 = 3, 2·1 = 2, 0: mean 5/3, var = (16 + 1 + 25)/9/2 = 7/3.
    rewards, mask = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]), lengths(1, 1, 1)
    found = grpo_advantages(rewards, [0, 0, 0], mask, weights=[3.0, 2.0])
    close(found[:, 0], [4 / 3 / (7 / 3) ** 0.5, 1 / 3 / (7 / 3) ** 0.5, -5 / 3 / (7 / 3) ** 0.5])


def test_the_deviation_is_unbiased_and_each_component_has_its_own() -> None:
    # 1, 2, 3 deviates by 1 with n-1 (0.816 with n); 10, 10, 40 has mean 20 and deviates by
    # sqrt((100 + 100 + 400)/2) = sqrt(300).
    rewards = torch.tensor([[1.0, 10.0], [2.0, 10.0], [3.0, 40.0]])
    expected = [[-1.0, -0.57735], [0.0, -0.57735], [1.0, 1.15470]]
    close(group_normalize(rewards, ["a"] * 3), expected)


def test_epsilon_is_added_to_the_deviation() -> None:
    # Deviation 1, epsilon 1: half of the advantage remains.
    found = group_normalize(torch.tensor([[1.0], [2.0], [3.0]]), [0, 0, 0], epsilon=1.0)
    close(found, [[-0.5], [0.0], [0.5]])


@pytest.mark.parametrize(
    ("whiten", "dead", "live"),
    [
        # u = sqrt(3)/2: 0, 1, 0, 1 has mean 1/2 and deviation sqrt(1/3). Tokens: 0 four
        # times, -u twice, u eight times: mean 6u/14, var = (10 - 18/7)u²/13 = 4u²/7.
        # Dead: (-3/7)/sqrt(4/7); live: (±1 - 3/7)/sqrt(4/7).
        pytest.param("token", -0.56695, (-1.88982, 0.75593), id="over tokens it is shifted"),
        # Mean 0, var = 4u²/7.
        pytest.param("sequence", 0.0, (-1.32288, 1.32288), id="over sequences it stays 0"),
    ],
)
def test_a_dead_group_among_live_ones(
    whiten: Whiten, dead: float, live: tuple[float, float]
) -> None:
    rewards = torch.tensor([0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 1.0])[:, None]
    mask = lengths(1, 1, 1, 1, 1, 4, 1, 4)
    found = gdpo_advantages(rewards, [0] * 4 + [1] * 4, mask, whiten=whiten)
    close(by_row(found, mask), [dead] * 4 + [*live, *live])


@pytest.mark.parametrize("whiten", ["token", "sequence"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_rewards_of_constant_sum_cancel_to_exactly_zero(whiten: Whiten, dtype: torch.dtype) -> None:
    # z2 = -z1 but for the epsilons: 3/(3.46 + 1e-6) against 0.5/(0.577 + 1e-6). Whitening
    # would blow the 1e-6 that is left up to 1.
    correct = torch.tensor([1, 0, 1, 0, 1, 1, 0, 0], dtype=dtype)
    rewards = torch.stack([6 * correct - 3, 1 - correct], dim=1)
    mask = lengths(1, 2, 3, 4, 4, 3, 2, 1)
    assert exactly_zero(gdpo_advantages(rewards, [0] * 4 + [1] * 4, mask, whiten=whiten))


@pytest.mark.parametrize("size", [1.0, 1000.0], ids=["weights of 1", "weights of 1000"])
@pytest.mark.parametrize(
    ("excess", "first"),
    [
        # a = ±s·excess. Below 1e-4 of the largest weight it counts as rounding.
        pytest.param(1e-6, 0.0, id="below the noise floor"),
        # Whitened over two rows: ±excess·s / sqrt(2·(excess·s)²/1) = ±s.
        pytest.param(1e-2, S, id="above it"),
    ],
)
def test_what_nearly_cancels_is_noise_or_is_kept(size: float, excess: float, first: float) -> None:
    rewards, mask = torch.tensor([[3.0, 0.0], [-3.0, 6.0]]).double(), lengths(1, 1)
    weights = [size * (1 + excess), size]
    found = gdpo_advantages(rewards, [0, 0], mask, weights=weights, whiten="sequence")
    close(found[:, 0], [first, -first], 1e-3 if first else 0.0)


def test_without_the_std_small_advantages_are_kept() -> None:
    # Centred in reward units, ±5e-7; whitened with 1e-8 added to the variance 5e-13.
    rewards, mask = torch.tensor([[1e-6], [0.0]]).double(), lengths(1, 1)
    found = gdpo_advantages(rewards, [0, 0], mask, whiten="sequence", scale=False)
    close(found[:, 0], [0.0049999, -0.0049999], 1e-7)


@pytest.mark.parametrize("value", [0.1, 3.3, 100.1])
@pytest.mark.parametrize("size", [2, 7, 17])
def test_constant_group_gives_exactly_zero(value: float, size: int) -> None:
    # Seven times 0.1 in float32 does not have the mean 0.1.
    rewards, mask = torch.full((size, 1), value), torch.ones(size, 2)
    assert exactly_zero(group_normalize(rewards, [0] * size))
    assert exactly_zero(grpo_advantages(rewards, [0] * size, mask))
    for whiten in WHITEN:
        assert exactly_zero(gdpo_advantages(rewards, [0] * size, mask, whiten=whiten))


@pytest.mark.parametrize("count", [2, 3, 5, 8])
def test_equal_rows_give_exactly_zero_under_grpo(count: int) -> None:
    # Equal rows must have equal sums to the last bit; those of a matrix product may not.
    generator = torch.Generator().manual_seed(0)
    for size in (2, 5, 7, 17, 1001):
        row, weights = torch.rand(2, count, generator=generator, dtype=torch.float64)
        rewards, mask = row.expand(size, count).clone(), torch.ones(size, 1)
        found = grpo_advantages(rewards, [0] * size, mask, weights=weights.tolist(), epsilon=0.0)
        assert exactly_zero(found)


@pytest.mark.parametrize("whiten", WHITEN)
def test_group_of_one_gives_exactly_zero(whiten: Whiten) -> None:
    rewards, mask = torch.tensor([[5.0], [-7.0], [0.1]]), lengths(1, 2, 3)
    assert exactly_zero(gdpo_advantages(rewards, ["a", "b", "c"], mask, whiten=whiten))
    assert exactly_zero(grpo_advantages(rewards, ["a", "b", "c"], mask))


def test_tiny_differences_far_from_zero_survive() -> None:
    # E[x²] - E[x]² in float32 would be 0 here. Mean 5000.5, deviation sqrt(1/3).
    rewards = torch.tensor([5000.0, 5001.0, 5000.0, 5001.0])[:, None]
    close(group_normalize(rewards, [0] * 4), [[-0.86603], [0.86603], [-0.86603], [0.86603]])


def test_statistics_are_over_the_scored_rows_and_an_unscored_component_adds_zero() -> None:
    # First: 1 and 0 are scored, ±s. Second: 0, 1, 2 deviates by 1.
    rewards = torch.tensor([[1.0, 0.0], [0.0, 1.0], [NAN, 2.0]])
    normalized = group_normalize(rewards, [0, 0, 0])
    assert bool(normalized[2, 0].isnan())
    close(normalized.nan_to_num(9.0), [[S, -1.0], [-S, 0.0], [9.0, 1.0]])
    found = gdpo_advantages(rewards, [0, 0, 0], lengths(1, 1, 1), whiten="none")
    close(found[:, 0], [S - 1, -S, 1.0])


@pytest.mark.parametrize(
    ("whiten", "expected"),
    [
        # a = s, -s, 0 (its group of scored rows is a group of one) and unscored.
        pytest.param("none", [S, -S, 0.0], id="not whitened"),
        # Three live rows: var = 2s²/2; with the fourth it would be 2s²/3.
        pytest.param("sequence", [1.0, -1.0, 0.0], id="sequences"),
        # In units of s: 1, 1, 1, -1, 0: mean 2/5, var = (4 - 4/5)/4 = 4/5.
        pytest.param("token", [0.67082, -1.56525, -0.44721], id="tokens"),
    ],
)
def test_a_row_without_any_score_is_zero_and_out_of_the_whitening(
    whiten: Whiten, expected: list[float]
) -> None:
    rewards = torch.tensor([[1.0, NAN], [0.0, NAN], [NAN, 5.0], [NAN, NAN]])
    mask = lengths(3, 1, 1, 4)
    found = gdpo_advantages(rewards, [0] * 4, mask, whiten=whiten)
    close(by_row(found, mask), [*expected, 0.0])
    assert exactly_zero(found[3])


def test_under_grpo_an_unscored_component_adds_zero_and_an_unscored_row_stays_out() -> None:
    # Sums 1 + 0, 0 + 3 and 2 + 0 have mean 2 and deviation 1; the fourth is left out.
    rewards = torch.tensor([[1.0, NAN], [NAN, 3.0], [2.0, 0.0], [NAN, NAN]])
    found = grpo_advantages(rewards, [0] * 4, lengths(1, 1, 1, 1))
    close(found[:, 0], [-1.0, 1.0, 0.0, 0.0])


@pytest.mark.parametrize(
    ("whiten", "expected"),
    [
        # First group 1, 2, 3: -1, 0, (1). Second: -s, s.
        pytest.param("none", [-1.0, 0.0, -S, S], id="not whitened"),
        # Live: -1, 0, -s, s: mean -1/4, var = (1 + 2s² - 4/16)/3 = 7/12.
        pytest.param("sequence", [-0.98198, 0.32733, -0.59850, 1.25315], id="sequences"),
        # Tokens -1, -1, 0, -s, s: mean -2/5, var = (2 + 1 - 4/5)/4 = 11/20.
        pytest.param("token", [-0.80904, 0.53936, -0.41410, 1.49283], id="tokens"),
    ],
)
def test_a_row_without_tokens_counts_in_its_group_and_in_no_whitening(
    whiten: Whiten, expected: list[float]
) -> None:
    rewards = torch.tensor([[1.0], [2.0], [3.0], [0.0], [1.0]])
    mask = lengths(2, 1, 0, 1, 1)
    found = gdpo_advantages(rewards, ["a", "a", "a", "b", "b"], mask, whiten=whiten)
    close(by_row(found, mask), expected)


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        # z1 = s, -s although it is ten times as large; z2 = -s, s.
        pytest.param(None, 0.0, id="all 1"),
        pytest.param([2.0, 1.0], S, id="2 and 1"),
        pytest.param([1.0, 0.5], S / 2, id="1 and a half"),
        pytest.param([0.0, 1.0], -S, id="only the second"),
        pytest.param([1.0, -1.0], 2 * S, id="a negative one"),
    ],
)
def test_weights_act_after_the_normalisation(weights: list[float] | None, expected: float) -> None:
    rewards = torch.tensor([[10.0, 0.0], [0.0, 1.0]])
    found = gdpo_advantages(rewards, [0, 0], lengths(1, 1), weights=weights, whiten="none")
    close(found[:, 0], [expected, -expected])


def test_without_the_std_rewards_are_only_centred() -> None:
    # Centred: 5, -5 and -1/2, 1/2.
    rewards, mask = torch.tensor([[10.0, 0.0], [0.0, 1.0]]), lengths(1, 1)
    close(group_normalize(rewards, [0, 0], scale=False), [[5.0, -0.5], [-5.0, 0.5]])
    decoupled = gdpo_advantages(rewards, [0, 0], mask, whiten="none", scale=False)
    close(decoupled[:, 0], [4.5, -4.5])
    # So the decoupling makes no difference.
    close(grpo_advantages(rewards, [0, 0], mask, scale=False), decoupled.double(), 0.0)


@pytest.mark.parametrize("scale", [True, False])
@pytest.mark.parametrize(
    ("whiten", "rewards", "mask"),
    [
        pytest.param("token", [[1.0], [0.0]], [[1], [0]], id="one token"),
        pytest.param("token", [[1.0], [0.0]], [[0], [0]], id="no token"),
        pytest.param("token", [[NAN], [NAN]], [[1], [1]], id="no scored token"),
        pytest.param("sequence", [[1.0], [0.0]], [[1, 1], [0, 0]], id="one row with tokens"),
        pytest.param("sequence", [[NAN], [0.0]], [[1, 1], [1, 1]], id="one scored row"),
    ],
)
def test_fewer_than_two_live_give_zero(
    whiten: Whiten, rewards: list[list[float]], mask: list[list[int]], scale: bool
) -> None:
    found = gdpo_advantages(
        torch.tensor(rewards), [0, 0], torch.tensor(mask), whiten=whiten, scale=scale
    )
    assert exactly_zero(found)


def test_masks_may_have_holes() -> None:
    # The tokens of the second group are those of lengths 3, 1, 1, 1 in another place.
    mask = torch.tensor([[1, 0, 1, 1], [0, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 1]])
    found = gdpo_advantages(TWO_GROUPS, PAIRS, mask)
    expected = torch.tensor([0.44281, -0.88561, 1.10702, -1.54983])
    close(found, expected[:, None].double() * mask)


def test_an_empty_batch_gives_an_empty_result() -> None:
    rewards, mask = torch.zeros(0, 2), torch.zeros(0, 3)
    assert gdpo_advantages(rewards, [], mask).shape == (0, 3)
    assert grpo_advantages(rewards, [], mask).shape == (0, 3)
    assert group_normalize(rewards, []).shape == (0, 2)


# ---------------------------------------------------------------- conditions

LENGTH_IF_CORRECT = {"length": {"on": "correctness", "at_least": 1.0}}


def test_a_conditioned_reward_counts_only_where_the_other_reached_its_threshold() -> None:
    rewards = torch.tensor([[1.0, 0.5], [0.9, 0.5], [2.0, -0.5], [0.0, -0.5]])
    found = apply_conditions(rewards, ["correctness", "length"], LENGTH_IF_CORRECT)
    close(found, [[1.0, 0.5], [0.9, 0.0], [2.0, -0.5], [0.0, 0.0]], 1e-6)


def test_a_condition_on_an_unscored_component_leaves_the_conditioned_one_unscored() -> None:
    rewards = torch.tensor([[NAN, 0.5], [1.0, NAN], [1.0, 0.5]])
    found = apply_conditions(rewards, ["correctness", "length"], LENGTH_IF_CORRECT)
    assert found.isnan().tolist() == [[True, True], [False, True], [False, False]]
    assert found[2].tolist() == [1.0, 0.5]


def test_a_failed_condition_scores_what_was_not_scored_with_zero() -> None:
    # Whatever the length is, it would not count; with a correct answer it is not known.
    rewards = torch.tensor([[0.0, NAN], [1.0, NAN], [0.0, 2.0]])
    found = apply_conditions(rewards, ["correctness", "length"], LENGTH_IF_CORRECT)
    assert found.isnan().tolist() == [[False, False], [False, True], [False, False]]
    assert found.nan_to_num(9.0).tolist() == [[0.0, 0.0], [1.0, 9.0], [0.0, 0.0]]


def test_several_components_may_hang_on_one() -> None:
    conditions = {
        "length": {"on": "correctness", "at_least": 1},
        "style": {"on": "correctness", "at_least": 0},
    }
    rewards = torch.tensor([[7.0, 0.0, 8.0], [7.0, -1.0, 8.0], [7.0, 1.0, 8.0]])
    found = apply_conditions(rewards, ("length", "correctness", "style"), conditions)
    assert found.tolist() == [[0.0, 0.0, 8.0], [0.0, -1.0, 0.0], [7.0, 1.0, 8.0]]


def test_no_conditions_change_nothing() -> None:
    assert torch.equal(apply_conditions(TWO_GROUPS, ["a", "b"], {}), TWO_GROUPS)


@pytest.mark.parametrize(
    ("conditions", "message"),
    [
        pytest.param(
            {"a": {"on": "b", "at_least": 1}, "b": {"on": "c", "at_least": 1}},
            r"conditions\.a\.on: 'b' is conditioned itself",
            id="chain",
        ),
        pytest.param(
            {"a": {"on": "b", "at_least": 1}, "b": {"on": "a", "at_least": 1}},
            r"conditions\.a\.on: 'b' is conditioned itself",
            id="cycle",
        ),
        pytest.param(
            {"a": {"on": "a", "at_least": 1}},
            r"conditions\.a\.on: 'a' is conditioned itself",
            id="on itself",
        ),
        pytest.param({"d": {"on": "a", "at_least": 1}}, r"conditions\.d: 'd' is not", id="unknown"),
        pytest.param({"a": {"on": "d", "at_least": 1}}, r"conditions\.a: 'd' is not", id="on none"),
        pytest.param({"a": {"on": "b"}}, r"conditions\.a: expected \{on", id="no threshold"),
        pytest.param(
            {"a": {"on": "b", "at_least": 1, "at_most": 2}}, r"conditions\.a: ex", id="more"
        ),
        pytest.param({"a": "b"}, r"conditions\.a: expected \{on", id="not a mapping"),
        pytest.param(["a"], r"conditions: expected a mapping", id="a list"),  # type: ignore
        pytest.param({"a": {"on": "b", "at_least": "1"}}, r"conditions\.a\.at_least", id="text"),
        pytest.param({"a": {"on": "b", "at_least": True}}, r"conditions\.a\.at_least", id="bool"),
        pytest.param({"a": {"on": "b", "at_least": NAN}}, r"conditions\.a\.at_least", id="nan"),
    ],
)
def test_bad_conditions_are_refused(conditions: dict[str, Any], message: str) -> None:
    rewards, keys = torch.zeros(2, 3), ["a", "b", "c"]
    apply_conditions(rewards, keys, {"a": {"on": "b", "at_least": 1}})
    with pytest.raises(ValueError, match=rf"^algorithm\.gdpo\.{message}"):
        apply_conditions(rewards, keys, conditions)


@pytest.mark.parametrize("rewards", [[[1.0, 0.0]], torch.zeros(2), torch.zeros(2, 3)], ids=str)
def test_conditions_need_one_column_a_component(rewards: Any) -> None:
    with pytest.raises(ValueError, match=r"^rewards: expected a tensor of shape \(B, 2\)"):
        apply_conditions(rewards, ["correctness", "length"], LENGTH_IF_CORRECT)


# ---------------------------------------------------------------- kinds of input


@pytest.mark.parametrize(
    ("given_dtype", "result_dtype"),
    [
        (torch.float64, torch.float64),
        (torch.float32, torch.float32),
        (torch.float16, torch.float16),
        (torch.bfloat16, torch.bfloat16),
        (torch.int64, torch.float32),
        (torch.bool, torch.float32),
    ],
    ids=str,
)
def test_the_result_has_the_dtype_of_float_rewards(
    given_dtype: torch.dtype, result_dtype: torch.dtype
) -> None:
    rewards, mask = TWO_GROUPS.to(given_dtype), lengths(3, 1, 1, 1)
    # bfloat16 keeps eight bits: 1.55 is off by at most 0.004.
    tolerance = {torch.float16: 1e-3, torch.bfloat16: 4e-3}.get(given_dtype, 1e-5)
    found = gdpo_advantages(rewards, PAIRS, mask)
    assert found.dtype == result_dtype
    close(by_row(found, mask), [0.44281, -0.88561, 1.10702, -1.54983], tolerance)
    control = grpo_advantages(rewards, PAIRS, mask)
    assert control.dtype == result_dtype
    close(by_row(control, mask), [S, -S, S, -S], tolerance)
    normalized = group_normalize(rewards, PAIRS)
    assert normalized.dtype == result_dtype
    close(normalized, [[S, 0.0], [-S, 0.0], [S, S], [-S, -S]], tolerance)


@pytest.mark.parametrize(
    "dtype",
    [torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float64],
    ids=str,
)
def test_the_mask_may_have_any_dtype(dtype: torch.dtype) -> None:
    # 303 tokens: uint8 ends at 255, and bfloat16 has no odd number above 256.
    mask = lengths(303, 101, 101, 101)
    found = gdpo_advantages(TWO_GROUPS, PAIRS, mask.to(dtype))
    assert found.dtype == torch.float32
    # In units of s as with lengths 3, 1, 1, 1: mean 1/3, but var = 101·(34/3)/605.
    expected = torch.tensor([2, -4, 5, -7]) / 3 / math.sqrt(101 * 34 / 3 / 605)
    close(by_row(found, mask), expected)


@pytest.mark.parametrize(
    "group_ids",
    [
        ["b", "a", "b", "a"],
        ("uid-1", "uid-0", "uid-1", "uid-0"),
        [7, -3, 7, -3],
        [(1, "x"), None, (1, "x"), None],
        np.array(["b", "a", "b", "a"], dtype=object),
        np.array([2, 1, 2, 1]),
        torch.tensor([9, 4, 9, 4]),
        torch.tensor([0.5, 0.25, 0.5, 0.25]),
    ],
    ids=["list", "tuple", "int", "objects", "object array", "int array", "tensor", "floats"],
)
def test_group_ids_may_be_anything_hashable_in_any_order(group_ids: Any) -> None:
    rewards = torch.tensor([[1.0], [5.0], [2.0], [3.0]])
    # Groups 1, 2 and 5, 3.
    close(group_normalize(rewards, group_ids), [[-S], [S], [S], [-S]])


@pytest.mark.parametrize(
    "function",
    [
        *(group_normalize, gdpo_advantages, grpo_advantages, advantage.decoupled_sum),
        *(advantage.gdpo_scalars, advantage.grpo_scalars, advantage.decompose),
    ],
    ids=lambda function: function.__name__,
)
def test_what_is_not_given_is_what_the_configuration_has_by_default(function: Any) -> None:
    defaults = {name: p.default for name, p in inspect.signature(function).parameters.items()}
    settings = GdpoConfig()
    # whiten=None is the variant's own: GDPO's is over tokens.
    assert (settings.variant, settings.estimator.whiten, settings.whiten) == ("gdpo", "token", None)
    assert (settings.epsilon, settings.scale) == (1e-6, True)
    assert defaults["epsilon"] == settings.epsilon
    assert defaults["scale"] is settings.scale
    assert defaults.get("whiten") is None


def test_inputs_are_never_modified() -> None:
    rewards = torch.tensor([[1.0, NAN], [0.0, 2.0], [NAN, NAN], [3.0, 1.0]], dtype=torch.float64)
    groups, mask, weights = torch.tensor([1, 1, 0, 1]), torch.ones(4, 3).double(), [0.5, 2.0]
    conditions = {"a": {"on": "b", "at_least": 1.0}}
    before = [x.clone() for x in (rewards, groups, mask)]
    for whiten in WHITEN:
        gdpo_advantages(rewards, groups, mask, weights=weights, whiten=whiten).fill_(8)
    grpo_advantages(rewards, groups, mask, weights=weights).fill_(8)
    group_normalize(rewards, groups).fill_(8)
    apply_conditions(rewards, ["a", "b"], conditions).fill_(8)
    apply_conditions(rewards, ["a", "b"], {}).fill_(8)
    for found, expected in zip((rewards, groups, mask), before, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    assert weights == [0.5, 2.0]
    assert conditions == {"a": {"on": "b", "at_least": 1.0}}


# ---------------------------------------------------------------- properties


class Batch(NamedTuple):
    rewards: list[list[float]]
    groups: list[int]
    mask: list[list[int]]
    weights: list[float]

    def advantages(self, whiten: Whiten, epsilon: float = 1e-6) -> Tensor:
        return gdpo_advantages(
            torch.tensor(self.rewards, dtype=torch.float64),
            self.groups,
            torch.tensor(self.mask),
            weights=self.weights,
            whiten=whiten,
            epsilon=epsilon,
        )


@st.composite
def batches(draw: st.DrawFn, min_components: int = 1, amplitudes: bool = False) -> Batch:
    """Groups of 1 to 5 in any order, some rewards unscored, masks with holes or empty."""
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    groups = draw(st.permutations([group for group, size in enumerate(sizes) for _ in range(size)]))
    count = draw(st.integers(min_components, 3))
    scales = [10 ** draw(st.floats(-3, 6)) if amplitudes else 1.0 for _ in range(count)]
    offsets = [draw(st.integers(-5, 5)) for _ in range(count)]
    reward = st.one_of(st.integers(-4, 4), st.integers(0, 1), st.just(NAN))
    rewards = [
        [scale * (offset + draw(reward)) for scale, offset in zip(scales, offsets, strict=True)]
        for _ in groups
    ]
    tokens = st.lists(st.integers(0, 1), min_size=4, max_size=4)
    mask = [draw(tokens) for _ in groups]
    weight = st.sampled_from([1.0, 0.1, 0.3, -0.7, 2.0])
    return Batch(rewards, list(groups), mask, [draw(weight) for _ in range(count)])


def column_by_the_equation(
    column: Sequence[float], groups: Sequence[int], epsilon: float = 1e-6
) -> list[float]:
    """Eq. 4 in exact fractions; NaN where not scored."""
    result = []
    for reward, group in zip(column, groups, strict=True):
        peers = [Fraction(r) for r, g in zip(column, groups, strict=True) if g == group and r == r]
        if reward != reward or len(set(peers)) < 2:
            result.append(reward * 0.0)
            continue
        mean = sum(peers) / len(peers)
        variance = sum((r - mean) ** 2 for r in peers) / (len(peers) - 1)
        result.append(float(Fraction(reward) - mean) / (math.sqrt(variance) + epsilon))
    return result


def sums_by_the_equation(batch: Batch, unit: float, epsilon: float) -> list[float]:
    """Eq. 7 with weights in this unit; NaN where nothing is scored."""
    columns = [
        column_by_the_equation(column, batch.groups, epsilon)
        for column in zip(*batch.rewards, strict=True)
    ]
    sums = []
    for row in zip(*columns, strict=True):
        terms = [w / unit * z for w, z in zip(batch.weights, row, strict=True) if z == z]
        sums.append(math.fsum(terms) if terms else NAN)
    return sums


def advantages_by_the_equations(batch: Batch, whiten: Whiten) -> list[list[float]]:
    unit = 1.0 if whiten == "none" else max(map(abs, batch.weights))
    sums = sums_by_the_equation(batch, unit, 1e-6)

    def entries(sums: Sequence[float]) -> list[float]:
        return [
            a
            for a, kept in zip(sums, batch.mask, strict=True)
            for _ in range(sum(kept) if whiten == "token" else int(any(kept)))
            if a == a
        ]

    exact = sums_by_the_equation(batch, unit, 0.0)
    if whiten == "none":
        final = sums
    elif len(entries(sums)) < 2 or any(statistics.stdev(entries(x)) < 1e-4 for x in (sums, exact)):
        final = [0.0] * len(sums)
    else:
        mean, variance = statistics.fmean(entries(sums)), statistics.variance(entries(sums))
        final = [(a - mean) / math.sqrt(variance + 1e-8) for a in sums]
    return [
        [kept * (a if a == a else 0.0) for kept in row]
        for a, row in zip(final, batch.mask, strict=True)
    ]


@settings(max_examples=300, deadline=None)
@given(batches(amplitudes=True), st.sampled_from(WHITEN))
def test_it_agrees_with_the_equations_at_any_amplitude(batch: Batch, whiten: Whiten) -> None:
    expected = advantages_by_the_equations(batch, whiten)
    close(batch.advantages(whiten), expected, 1e-8)


@pytest.mark.parametrize("size", [1e-250, 1e-6, 1e-4, 0.5, 1e6, 1e250])
@pytest.mark.parametrize("whiten", ["token", "sequence"])
def test_only_the_ratios_of_the_weights_matter(size: float, whiten: Whiten) -> None:
    rewards = torch.tensor([[1.0, 0.0], [0.0, 0.0], [1.0, 1.0], [0.0, 0.0]], dtype=torch.float64)
    mask = torch.tensor([[1, 1], [1, 0], [1, 1], [1, 1]])
    found = gdpo_advantages(rewards, [0, 0, 1, 1], mask, weights=[size, -3 * size], whiten=whiten)
    expected = gdpo_advantages(rewards, [0, 0, 1, 1], mask, weights=[1.0, -3.0], whiten=whiten)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
    assert expected.abs().max() > 0.5


@pytest.mark.parametrize("size", [1e-250, 1e-3, 1e3, 1e250])
def test_deviations_neither_overflow_nor_underflow(size: float) -> None:
    rewards = size * torch.tensor([[1.0], [0.0], [3.0]], dtype=torch.float64)
    # 1, 0 and 3 deviate from 4/3 by sqrt(7/3) on average.
    expected = torch.tensor([[-1 / 3], [-4 / 3], [5 / 3]], dtype=torch.float64) / math.sqrt(7 / 3)
    found = group_normalize(rewards, ["a"] * 3, epsilon=0.0)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("epsilon", [0.0, 1e-8, 1e-6, 1e-4, 1e-2])
@pytest.mark.parametrize("size", [10.0, 1.0, 0.1, 0.01, 1e-3])
@pytest.mark.parametrize("whiten", ["token", "sequence"])
def test_components_that_cancel_give_zero_at_any_size_and_epsilon(
    size: float, epsilon: float, whiten: Whiten
) -> None:
    correct = torch.tensor([1.0, 0.0, 1.0, 0.0], dtype=torch.float64)
    rewards = torch.stack([size * correct, 1 - correct], dim=1)
    mask = torch.ones(4, 3)
    found = gdpo_advantages(rewards, [0] * 4, mask, epsilon=epsilon, whiten=whiten)
    assert torch.equal(found, torch.zeros(4, 3, dtype=torch.float64))
    # Unequal weights leave the first component: ±0.866 before whitening, over sequences and after.
    found = gdpo_advantages(
        rewards, [0] * 4, mask, weights=[2.0, 1.0], epsilon=epsilon, whiten=whiten
    )
    assert found.abs().min() > 0.8


@settings(max_examples=50, deadline=None)
@given(batches(), st.sampled_from(WHITEN), st.randoms(use_true_random=False))
def test_permuting_rows_groups_or_components_permutes_the_result(
    batch: Batch, whiten: Whiten, random: Any
) -> None:
    found = batch.advantages(whiten)
    rows = random.sample(range(len(batch.rewards)), len(batch.rewards))
    columns = random.sample(range(len(batch.weights)), len(batch.weights))
    names = random.sample(range(100, 200), len(batch.rewards))
    permuted = Batch(
        [[batch.rewards[row][column] for column in columns] for row in rows],
        [names[batch.groups[row]] for row in rows],
        [batch.mask[row] for row in rows],
        [batch.weights[column] for column in columns],
    )
    close(permuted.advantages(whiten), found[rows], 1e-9)


@settings(max_examples=50, deadline=None)
@given(
    batches(min_components=2),
    st.sampled_from(WHITEN),
    st.floats(0.01, 1e4),
    st.floats(-10.0, 10.0),
)
def test_scale_and_shift_of_one_reward_leave_the_result_unchanged(
    batch: Batch, whiten: Whiten, scale: float, shift: float
) -> None:
    moved = [[scale * (row[0] + shift), *row[1:]] for row in batch.rewards]
    # Rewards that vary at all deviate by 1e-3 or more; epsilon stays far below.
    found = batch._replace(rewards=moved).advantages(whiten, epsilon=1e-13)
    close(found, batch.advantages(whiten, epsilon=1e-13), 1e-6)


def test_scale_of_one_reward_changes_grpo() -> None:
    # Sums 1, 1, 0 and 10, 1, 0: GRPO lets the larger reward drown the other.
    rewards, mask = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]), lengths(1, 1, 1)
    louder = rewards * torch.tensor([10.0, 1.0])
    # Deviation sqrt(1/3) about the mean 2/3; then 19/3, -8/3, -11/3 about 11/3, deviation
    # sqrt(546/9/2) = sqrt(273)/3.
    close(grpo_advantages(rewards, [0] * 3, mask)[:, 0], [0.57735, 0.57735, -1.15470])
    close(grpo_advantages(louder, [0] * 3, mask)[:, 0], [1.14993, -0.48418, -0.66575])
    same = gdpo_advantages(louder, [0] * 3, mask) - gdpo_advantages(rewards, [0] * 3, mask)
    close(same[:, 0], [0.0, 0.0, 0.0])


@settings(max_examples=50, deadline=None)
@given(batches(), st.booleans())
def test_one_component_not_whitened_is_grpo(batch: Batch, scale: bool) -> None:
    rewards = torch.tensor(batch.rewards, dtype=torch.float64)[:, :1]
    mask = torch.tensor(batch.mask)
    found = gdpo_advantages(rewards, batch.groups, mask, whiten="none", scale=scale)
    assert torch.equal(found, grpo_advantages(rewards, batch.groups, mask, scale=scale))


@settings(max_examples=50, deadline=None)
@given(batches(), st.sampled_from(WHITEN))
def test_masked_tokens_are_exactly_zero_and_a_row_has_one_advantage(
    batch: Batch, whiten: Whiten
) -> None:
    found, mask = batch.advantages(whiten), torch.tensor(batch.mask)
    assert not bool(found[mask == 0].any())
    for row, kept in zip(found, mask, strict=True):
        assert len(row[kept != 0].unique()) <= 1


@settings(max_examples=50, deadline=None)
@given(batches())
def test_whitened_over_tokens_they_have_mean_zero_and_deviation_one(batch: Batch) -> None:
    scored = ~torch.tensor(batch.rewards).isnan().all(dim=1)
    kept = torch.tensor(batch.mask).bool() & scored[:, None]
    tokens = batch.advantages("token")[kept]
    if bool(tokens.any()):
        close(tokens.mean(), 0.0, 1e-9)
        # A little less than 1: whitening adds 1e-8 to the variance.
        close(tokens.std(), 1.0, 1e-3)


# ---------------------------------------------------------------- against verl's functions


@pytest.fixture(scope="module")
def core_algos() -> ModuleType:
    import verl.trainer.ppo.core_algos as module

    return module


class VerlBatch(NamedTuple):
    rewards: Tensor
    groups: Any  # an object array, as verl has it
    mask: Tensor
    whole: dict[str, Tensor]


def verl_batch(rewards: Tensor, groups: Sequence[str], mask: Tensor) -> VerlBatch:
    """The columns that verl reads: prompts, and an attention mask of prompt and response."""
    prompts = torch.ones(len(rewards), 2, dtype=torch.int64)
    # verl puts each reward on the last attended token, so tool output is attended too.
    last = (mask * torch.arange(1, mask.shape[1] + 1)).amax(1, keepdim=True)
    attended = (torch.arange(mask.shape[1]) < last).long()
    whole = {"prompts": prompts, "attention_mask": torch.cat([prompts, attended], dim=1)}
    return VerlBatch(rewards, np.array(groups, dtype=object), mask, whole)


def random_batch(seed: int, amplitudes: Sequence[float]) -> VerlBatch:
    """Interleaved groups of 2 to 6, normal rewards, masks with holes."""
    generator = torch.Generator().manual_seed(seed)
    groups = [f"uid-{size}" for size in range(2, 7) for _ in range(size)]
    order = torch.randperm(len(groups), generator=generator).tolist()
    rewards = torch.randn(len(groups), len(amplitudes), generator=generator)
    mask = (torch.rand(len(groups), 12, generator=generator) < 0.6).long()
    mask[:, 0] = 1
    return verl_batch(rewards * torch.tensor(amplitudes), [groups[i] for i in order], mask)


def verls_gdpo(
    core_algos: ModuleType, batch: VerlBatch, weights: Sequence[float] | None = None, **kwargs: Any
) -> Tensor:
    columns = {f"r{k}": column.numpy() for k, column in enumerate(batch.rewards.unbind(dim=1))}
    found: Tensor = core_algos.compute_gdpo_outcome_advantage(
        token_level_rewards=torch.zeros(batch.mask.shape),
        response_mask=batch.mask,
        index=batch.groups,
        config={"gdpo_reward_keys": list(columns), "gdpo_reward_weights": weights},
        non_tensor_batch=columns,
        batch=batch.whole,
        **kwargs,
    )[0]
    return found


def verls_grpo(core_algos: ModuleType, batch: VerlBatch, **kwargs: Any) -> Tensor:
    scores = torch.zeros(batch.mask.shape)
    scores[:, 0] = batch.rewards.sum(dim=1)
    found: Tensor = core_algos.compute_grpo_outcome_advantage(
        scores, batch.mask, batch.groups, **kwargs
    )[0]
    return found


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("weights", [None, [1.0, 0.25, -2.0]], ids=["weights 1", "weights"])
@pytest.mark.parametrize("scale", [True, False], ids=["std", "no std"])
def test_over_tokens_it_equals_verls_gdpo(
    core_algos: ModuleType, seed: int, weights: list[float] | None, scale: bool
) -> None:
    batch = random_batch(seed, [1.0, 30.0, 0.1])
    expected = verls_gdpo(core_algos, batch, weights, norm_adv_by_std_in_grpo=scale)
    found = gdpo_advantages(batch.rewards, batch.groups, batch.mask, weights=weights, scale=scale)
    # verl computes in float32; over 200 seeds the largest difference was 1.2e-5.
    torch.testing.assert_close(found, expected, atol=3e-5, rtol=0.0)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("scale", [True, False], ids=["std", "no std"])
def test_grpo_equals_verls_grpo(core_algos: ModuleType, seed: int, scale: bool) -> None:
    batch = random_batch(seed, [1.0, 0.5, 2.0])
    expected = verls_grpo(core_algos, batch, norm_adv_by_std_in_grpo=scale)
    found = grpo_advantages(batch.rewards, batch.groups, batch.mask, scale=scale)
    # Over 200 seeds the largest difference was 1.7e-6.
    torch.testing.assert_close(found, expected, atol=5e-6, rtol=0.0)


def test_verl_gives_the_worked_example_too(core_algos: ModuleType) -> None:
    mask = lengths(3, 1, 1, 1)
    found = verls_gdpo(core_algos, verl_batch(TWO_GROUPS, ["a", "a", "b", "b"], mask))
    close(by_row(found, mask), [0.44281, -0.88561, 1.10702, -1.54983])


def test_unlike_verl_a_group_of_one_is_zero_not_its_raw_reward(core_algos: ModuleType) -> None:
    rewards, groups, mask = torch.tensor([[50.0], [1.0], [0.0]]), ["a", "b", "b"], lengths(1, 1, 1)
    batch = verl_batch(rewards, groups, mask)
    close(verls_grpo(core_algos, batch)[:, 0], [50.0, S, -S], 1e-4)
    close(grpo_advantages(rewards, groups, mask)[:, 0], [0.0, S, -S])
    # There 50 rules the whitening: mean 50/3, var = (33.3333² + 15.9596² + 17.3738²)/2.
    close(verls_gdpo(core_algos, batch)[:, 0], [1.15435, -0.55269, -0.60166])
    close(gdpo_advantages(rewards, groups, mask)[:, 0], [0.0, 1.0, -1.0])


@pytest.mark.parametrize("value", [3.3, 100.1])
def test_unlike_verl_a_constant_group_is_zero_not_rounding_over_epsilon(
    core_algos: ModuleType, value: float
) -> None:
    rewards, groups, mask = torch.full((7, 1), value), ["a"] * 7, torch.ones(7, 1).long()
    noise = verls_grpo(core_algos, verl_batch(rewards, groups, mask)).abs().max()
    assert float(noise) > 1e-2
    assert exactly_zero(grpo_advantages(rewards, groups, mask))
    assert exactly_zero(gdpo_advantages(rewards, groups, mask))


def test_unlike_verl_one_unscored_reward_does_not_poison_the_batch(core_algos: ModuleType) -> None:
    rewards = torch.tensor([[1.0], [0.0], [NAN], [2.0], [4.0]])
    groups, mask = ["a", "a", "a", "b", "b"], lengths(1, 1, 1, 1, 1)
    assert bool(verls_gdpo(core_algos, verl_batch(rewards, groups, mask)).isnan().all())
    # s, -s, unscored, -s, s over four tokens: var = 4s²/3.
    expected = [0.86603, -0.86603, 0.0, -0.86603, 0.86603]
    close(gdpo_advantages(rewards, groups, mask)[:, 0], expected)


def test_unlike_verl_cancelling_rewards_leave_nothing(core_algos: ModuleType) -> None:
    correct = torch.tensor([1.0, 0.0, 1.0, 0.0])
    rewards = torch.stack([6 * correct - 3, 1 - correct], dim=1)
    groups, mask = ["a"] * 4, lengths(1, 1, 1, 1)
    # What the epsilons leave, about 1e-6, over sqrt(1e-8).
    assert float(verls_gdpo(core_algos, verl_batch(rewards, groups, mask)).abs().max()) > 1e-3
    assert exactly_zero(gdpo_advantages(rewards, groups, mask))


def test_unlike_verl_superfluous_weights_are_refused(core_algos: ModuleType) -> None:
    mask = lengths(1, 1, 1, 1)
    verls_gdpo(core_algos, verl_batch(TWO_GROUPS, ["a", "a", "b", "b"], mask), [1.0, 1.0, 5.0])
    with pytest.raises(ValueError, match="weights: expected 2"):
        gdpo_advantages(TWO_GROUPS, PAIRS, mask, weights=[1.0, 1.0, 5.0])


# ---------------------------------------------------------------- bad input

GOOD: dict[str, Any] = {
    "rewards": TWO_GROUPS,
    "group_ids": PAIRS,
    "response_mask": torch.ones(4, 3),
}
FRACTIONS = torch.tensor([[1.0, 0.5, 0.0]] * 4)


@pytest.mark.parametrize(
    ("name", "valid", "invalid"),
    [
        pytest.param("rewards", torch.zeros(4, 1), torch.zeros(4), id="rewards in one dimension"),
        pytest.param("rewards", torch.zeros(4, 1), torch.zeros(4, 0), id="no components"),
        pytest.param(
            "rewards", torch.full((4, 2), NAN), torch.full((4, 2), math.inf), id="infinite rewards"
        ),
        pytest.param("rewards", torch.zeros(4, 1), torch.tensor(0.0), id="one reward"),
        pytest.param("rewards", torch.zeros(4, 1), [[0.0]] * 4, id="rewards in a list"),
        pytest.param(
            "rewards", torch.ones(4, 1).bool(), torch.ones(4, 1) * 1j, id="complex rewards"
        ),
        pytest.param(
            "rewards",
            torch.full((4, 1), 65504.0).half(),
            torch.full((4, 1), math.inf).half(),
            id="infinite half rewards",
        ),
        pytest.param("group_ids", [(0,), (1,)] * 2, [[0], [1]] * 2, id="unhashable groups"),
        pytest.param("group_ids", torch.ones(4), torch.tensor(1), id="one group"),
        pytest.param("group_ids", torch.ones(4), list(torch.ones(4)), id="groups in many tensors"),
        pytest.param("group_ids", range(4), iter(range(4)), id="groups of unknown number"),
        pytest.param("group_ids", np.arange(4), np.array(0), id="groups in no dimension"),
        pytest.param("group_ids", "abab", "aba", id="too few groups"),
        pytest.param("group_ids", [0, 1, 0, 1], [0, 1, 0, 1, 0], id="too many groups"),
        pytest.param("group_ids", torch.ones(4), torch.ones(4, 2), id="groups in two dimensions"),
        pytest.param("response_mask", torch.ones(4, 1), torch.ones(4), id="mask in one dimension"),
        pytest.param("response_mask", torch.ones(4, 0), torch.ones(3, 2), id="too few masks"),
        pytest.param("response_mask", FRACTIONS.round(), FRACTIONS, id="a fraction in the mask"),
        pytest.param(
            "response_mask", torch.ones(4, 1).int(), -torch.ones(4, 1).int(), id="-1 in the mask"
        ),
        pytest.param(
            "response_mask", torch.ones(4, 1), torch.full((4, 1), NAN), id="NaN in the mask"
        ),
        pytest.param("response_mask", torch.ones(4, 1), torch.tensor(1), id="one mask"),
        pytest.param("response_mask", torch.ones(4, 1), [[1]] * 4, id="mask in a list"),
        pytest.param(
            "response_mask", torch.ones(4, 1), torch.ones(4, 1) * (1 + 0j), id="a complex mask"
        ),
        pytest.param(
            "response_mask", torch.ones(4, 1).half(), torch.full((4, 1), math.inf), id="inf"
        ),
        pytest.param("weights", [1.0, 0.0], [1.0], id="too few weights"),
        pytest.param("weights", [1, 2], [1, 2, 3], id="too many weights"),
        pytest.param("weights", (0.0, -1e-9), (0.0, 0.0), id="all weights zero"),
        pytest.param("weights", [1e300, 1.0], [math.inf, 1.0], id="an infinite weight"),
        pytest.param("weights", None, [NAN, 1.0], id="a weight that is NaN"),
        pytest.param("weights", np.array([1.0, 2.0]), np.ones((2, 2)), id="weights in two dims"),
        pytest.param("weights", torch.tensor([1.0, 2.0]), torch.tensor(1.0), id="one weight"),
        pytest.param("weights", [1, True], [1, "1"], id="a weight in words"),
        pytest.param("weights", (0.5, 2), ([0.5], [2, 1]), id="nested weights"),
        pytest.param("weights", [1.0, 2.0], [1.0, None], id="a weight that is None"),
        pytest.param("weights", [1.0, 2.0], [1.0, 2j], id="a complex weight"),
        pytest.param("weights", [2**70, 1], 1.0, id="a bare number"),
        pytest.param("epsilon", 0.0, -1e-6, id="a negative epsilon"),
        pytest.param("epsilon", np.float32(0.5), "1e-6", id="an epsilon in words"),
        pytest.param("epsilon", 1e300, math.inf, id="an infinite epsilon"),
        pytest.param("epsilon", 1e-6, None, id="no epsilon"),
        pytest.param("epsilon", 1, NAN, id="an epsilon that is NaN"),
    ],
)
@pytest.mark.parametrize("function", [gdpo_advantages, grpo_advantages], ids=["gdpo", "grpo"])
def test_bad_input_is_refused_by_its_name(
    function: Any, name: str, valid: Any, invalid: Any
) -> None:
    assert bool(function(**GOOD | {name: valid}).isfinite().all())
    with pytest.raises(ValueError, match=f"^{name}: expected"):
        function(**GOOD | {name: invalid})


MASK_DTYPES = [
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint16, torch.uint32, torch.uint64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
]


@pytest.fixture
def one_row_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tokens.BLOCK, "cpu", 1)


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5], ids=lambda rows: f"{rows} rows a block")
def test_no_row_of_any_block_is_lost(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    mask = lengths(3, 1, 1, 1)
    monkeypatch.setitem(tokens.BLOCK, "cpu", rows * mask.shape[1])
    found = gdpo_advantages(TWO_GROUPS, PAIRS, mask)
    close(by_row(found, mask), [0.44281, -0.88561, 1.10702, -1.54983])


@pytest.mark.usefixtures("one_row_a_block")
@pytest.mark.parametrize("dtype", MASK_DTYPES, ids=str)
@pytest.mark.parametrize("place", [(0, 0), (3, 4), (7, 63)], ids=["first", "middle", "last"])
def test_whatever_is_not_0_or_1_is_found_anywhere_in_the_mask(
    dtype: torch.dtype, place: tuple[int, int]
) -> None:
    rewards, groups, mask = TWO_GROUPS.repeat(2, 1), PAIRS * 2, torch.ones(8, 64).to(dtype)
    wrong: list[float] = [2]
    if dtype.is_floating_point:
        step = torch.finfo(dtype).eps
        wrong += [1 - step / 2, 1 + step, 0.5, -1.0, torch.finfo(dtype).tiny, math.inf, NAN]
    else:
        # Powers of two whose low bytes, or whose squares modulo 2^64, are zero.
        wrong += [2**bits for bits in (8, 16, 32) if 2**bits <= torch.iinfo(dtype).max]
        wrong += [-1] * (torch.iinfo(dtype).min < 0)
    assert bool(gdpo_advantages(rewards, groups, mask).isfinite().all())
    for value in wrong:
        mask[place] = value
        with pytest.raises(ValueError, match=r"^response_mask: expected only 0 and 1"):
            gdpo_advantages(rewards, groups, mask)


@pytest.mark.usefixtures("one_row_a_block")
@pytest.mark.parametrize("dtype", [torch.bool, *MASK_DTYPES], ids=str)
def test_rows_beyond_one_block_are_counted_and_written(dtype: torch.dtype) -> None:
    mask = lengths(3, 1, 1, 1)
    found = gdpo_advantages(TWO_GROUPS, PAIRS, mask.to(dtype))
    close(by_row(found, mask), [0.44281, -0.88561, 1.10702, -1.54983])


@pytest.mark.parametrize("mask_dtype", [torch.bool, torch.int64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_masked_tokens_have_no_sign_and_are_0_beside_overflow(
    mask_dtype: torch.dtype, dtype: torch.dtype
) -> None:
    # Weights of 1e39 and more overflow each of these: the largest number, and 0, not inf · 0.
    rewards = torch.tensor([[1.0], [0.0]]).to(dtype)
    mask = torch.tensor([[1, 0], [1, 0]]).to(mask_dtype)
    for weight, largest in ((1.0, S), (1e39, torch.finfo(dtype).max)):
        found = gdpo_advantages(rewards, [0, 0], mask, weights=[weight], whiten="none")
        close(found / largest, [[1.0, 0.0], [-1.0, 0.0]], 4e-3)
        assert found.signbit().tolist() == [[False, False], [True, False]]


def test_a_mask_of_negative_zeros_is_a_mask_of_zeros() -> None:
    mask = torch.tensor([[1.0, -0.0], [1.0, -0.0]])
    found = grpo_advantages(torch.tensor([[1.0], [0.0]]), [0, 0], mask)
    close(found, [[S, 0.0], [-S, 0.0]])
    assert not bool(found[:, 1].signbit().any())


def test_the_result_has_no_gradient() -> None:
    rewards, mask = TWO_GROUPS.clone().requires_grad_(), torch.ones(4, 1).requires_grad_()
    weights = torch.ones(2, requires_grad=True)
    for function in (gdpo_advantages, grpo_advantages):
        found = function(rewards, PAIRS, mask, weights=weights)
        assert not found.requires_grad
    assert not group_normalize(rewards, PAIRS).requires_grad


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs two devices")
def test_the_result_is_on_the_masks_device() -> None:
    mask = lengths(3, 1, 1, 1)
    expected = gdpo_advantages(TWO_GROUPS, PAIRS, mask)
    for rewards, device in ((TWO_GROUPS, "cuda"), (TWO_GROUPS.cuda(), "cpu")):
        found = gdpo_advantages(rewards, PAIRS, mask.to(device))
        assert found.device.type == device
        close(found.cpu(), expected.double(), 1e-6)


def test_an_infinite_reward_is_named_by_row_and_component() -> None:
    rewards = torch.tensor([[0.0, 1.0], [0.0, -math.inf]])
    with pytest.raises(ValueError, match=r"^rewards: .* found -inf at row 1, component 1"):
        group_normalize(rewards, [0, 0])


@pytest.mark.parametrize("whiten", ["batch", "Token", "", 1])
def test_an_unknown_whitening_is_refused(whiten: Any) -> None:
    with pytest.raises(ValueError, match=r"^whiten: expected one of \['token', 'sequence', 'none'"):
        gdpo_advantages(**GOOD, whiten=whiten)


PLAIN_DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", PLAIN_DTYPES, ids=str)
def test_what_was_written_as_the_threshold_meets_it_in_every_dtype(dtype: torch.dtype) -> None:
    condition = {"length": {"on": "quality", "at_least": 0.7}}
    rewards = torch.tensor([[0.7, 1.0], [0.69, 1.0]], dtype=dtype)
    found = apply_conditions(rewards, ["quality", "length"], condition)
    assert found[:, 1].tolist() == [1.0, 0.0]
    if dtype.itemsize > 2:  # halves are read as they were written (tests/test_batch.py)
        found = apply_conditions(rewards.double(), ["quality", "length"], condition)
        assert found[:, 1].tolist() == [1.0, 0.0]


def test_a_threshold_beyond_float32_is_compared_as_it_is() -> None:
    condition = {"b": {"on": "a", "at_least": 1e200}}
    rewards = torch.tensor([[1e199, 1.0], [1e200, 1.0]], dtype=torch.float64)
    assert apply_conditions(rewards, ["a", "b"], condition)[:, 1].tolist() == [0.0, 1.0]


@pytest.mark.parametrize("epsilon", [0.0, 1e-6])
def test_sums_that_differ_by_rounding_are_equal_under_grpo(epsilon: float) -> None:
    # 0.1 + 0.2 is 0.30000000000000004, and 0.3 + 0 is 0.3.
    rewards = torch.tensor([[0.1, 0.2], [0.3, 0.0]], dtype=torch.float64)
    found = grpo_advantages(rewards, [0, 0], torch.ones(2, 1), epsilon=epsilon)
    assert found.tolist() == [[0.0], [0.0]]
    apart = torch.tensor([[0.1, 0.2], [0.3, 1e-12]], dtype=torch.float64)
    found = grpo_advantages(apart, [0, 0], torch.ones(2, 1), epsilon=0.0)
    close(found[:, 0], [-S, S], 1e-3)


def test_a_single_component_is_not_added_and_its_least_difference_counts() -> None:
    # Two steps of float64 apart, so that their mean is a number, too.
    rewards = torch.tensor([[1.0], [1.0 + 2**-51]], dtype=torch.float64)
    found = grpo_advantages(rewards, [0, 0], torch.ones(2, 1), epsilon=0.0)
    close(found[:, 0], [-S, S])


@pytest.mark.parametrize("function", [gdpo_advantages, grpo_advantages], ids=["gdpo", "grpo"])
def test_rewards_whose_sums_overflow_are_refused_and_not_taken_for_unscored(function: Any) -> None:
    rewards = torch.tensor([[9e307], [0.0]], dtype=torch.float64)
    with pytest.raises(ValueError, match=r"^rewards: expected finite numbers of at most 1e\+300"):
        function(rewards, [0, 0], torch.ones(2, 1))
    close(function(rewards / 9e7, [0, 0], torch.ones(2, 1))[:, 0], [S, -S])


def test_the_largest_reward_and_threshold_are_taken() -> None:
    rewards = torch.tensor([[1e300, 1.0], [-1e300, 1.0]], dtype=torch.float64)
    close(gdpo_advantages(rewards, [0, 0], torch.ones(2, 1))[:, 0], [S, -S])
    for sign, counted in ((1.0, [1.0, 0.0]), (-1.0, [1.0, 1.0])):
        condition = {"b": {"on": "a", "at_least": sign * 1e300}}
        assert apply_conditions(rewards, ["a", "b"], condition)[:, 1].tolist() == counted


def test_a_weighted_sum_beyond_float64_is_refused() -> None:
    rewards = torch.tensor([[1e250], [0.0]], dtype=torch.float64)
    with pytest.raises(ValueError, match=r"^weights: with \[1e\+100\] the sum of row 0"):
        grpo_advantages(rewards, [0, 0], torch.ones(2, 1), weights=[1e100])
    close(gdpo_advantages(rewards, [0, 0], torch.ones(2, 1), weights=[1e100])[:, 0], [S, -S])


FLOAT8 = [dtype for dtype in vars(torch).values() if str(dtype).startswith("torch.float8_e")]


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
def test_masks_of_eight_bits_are_read_or_refused_by_name(dtype: torch.dtype) -> None:
    try:
        mask = torch.ones(2, 3).to(dtype)
    except (RuntimeError, NotImplementedError):
        pytest.skip("torch converts nothing to it")
    rewards = torch.tensor([[1.0], [0.0]])
    expected = gdpo_advantages(rewards, [0, 0], torch.ones(2, 3))
    assert torch.equal(gdpo_advantages(rewards, [0, 0], mask), expected)
    with pytest.raises(ValueError, match=r"^response_mask: expected only 0 and 1"):
        gdpo_advantages(rewards, [0, 0], torch.full((2, 3), 2.0).to(dtype))


@pytest.mark.parametrize("name", ["rewards", "response_mask"])
@pytest.mark.parametrize("layout", ["sparse", "nested"])
def test_tensors_that_are_not_dense_are_refused_by_name(name: str, layout: str) -> None:
    dense = torch.ones(2, 1)
    nested = torch.nested.nested_tensor(list(dense.unbind()))
    other = dense.to_sparse() if layout == "sparse" else nested
    arguments = {"rewards": dense, "group_ids": [0, 0], "response_mask": dense}
    with pytest.raises(ValueError, match=f"^{name}: expected a dense tensor, found"):
        gdpo_advantages(**arguments | {name: other})
