"""The estimator on numbers worked out by hand, and where rounding could look like a signal.

Further numbers, about unscored rewards, weights, lengths and scales, are conformance vectors
(scripts/dev/conformance.py).

In the derivations s = 1/sqrt(2). Two different rewards in a group of two normalise to ±s, whatever
they are: their mean is halfway between them, and their unbiased deviation is |r1 - r2| s. The
numbers are worked out without the epsilon that is added to each deviation. At deviations of about 1
it changes them by 1e-6, which is below the tolerance of the literals.
"""

import itertools

import pytest
import torch
from by_hand import NAN, PAIRS, TWO_GROUPS, S, by_row, close, exactly_zero, lengths

from gdpo_verl import gdpo_advantages, group_normalize, grpo_advantages


@pytest.mark.parametrize(
    ("whiten", "mask", "expected"),
    [
        # In the first group only the first reward varies: ±s. In the second group both vary: ±2s.
        ("none", lengths(1, 1, 1, 1), [S, -S, 2 * S, -2 * S]),
        # Mean 0, var = (s² + s² + 4s² + 4s²)/3 = 10s²/3; s/sqrt(10s²/3) = sqrt(3/10).
        ("sequence", lengths(3, 1, 1, 1), [0.54772, -0.54772, 1.09545, -1.09545]),
        # Eight tokens: mean 0, var = 2·10s²/7; sqrt(7/20).
        ("token", lengths(2, 2, 2, 2), [0.59161, -0.59161, 1.18322, -1.18322]),
        # In units of s the six tokens are 1, 1, 1, -1, 2, -2. Their mean is 1/3, and var = (12 -
        # 6/9)/5 = 34/15. The first advantage is (1 - 1/3) sqrt(15/34), and so on.
        ("token", lengths(3, 1, 1, 1), [0.44281, -0.88561, 1.10702, -1.54983]),
    ],
)
def test_two_groups_of_two_by_hand(whiten, mask, expected):
    found = gdpo_advantages(TWO_GROUPS, PAIRS, mask, whiten=whiten)
    close(by_row(found, mask), expected)


def test_grpo_normalises_the_weighted_sum():
    mask = lengths(3, 1, 1, 1)
    # The sums are 1, 0 and 2, 0. After normalisation, one reward and two rewards look the same.
    close(by_row(grpo_advantages(TWO_GROUPS, PAIRS, mask), mask), [S, -S, S, -S])
    # Sums 3·1 = 3, 2·1 = 2, 0: mean 5/3, var = (16 + 1 + 25)/9/2 = 7/3.
    rewards = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    found = grpo_advantages(rewards, [0] * 3, lengths(1, 1, 1), weights=[3.0, 2.0])
    close(found[:, 0], [4 / 3 / (7 / 3) ** 0.5, 1 / 3 / (7 / 3) ** 0.5, -5 / 3 / (7 / 3) ** 0.5])
    # Sums 1 + 0, 0 + 3 and 2 + 0 have mean 2 and deviation 1; the fourth row is left out.
    unscored = torch.tensor([[1.0, NAN], [NAN, 3.0], [2.0, 0.0], [NAN, NAN]])
    found = grpo_advantages(unscored, [0] * 4, lengths(1, 1, 1, 1))
    close(found[:, 0], [-1.0, 1.0, 0.0, 0.0])


@pytest.mark.parametrize(
    ("excess", "first"),
    [
        # The sum is ±s·excess. Below 1e-4 of the largest weight it counts as rounding.
        (1e-6, 0.0),
        # Whitened over two rows: ±excess·s / sqrt(2·(excess·s)²/1) = ±s.
        (1e-2, S),
    ],
)
def test_a_sum_that_nearly_cancels_is_rounding_below_a_limit_and_kept_above_it(excess, first):
    rewards, mask = torch.tensor([[3.0, 0.0], [-3.0, 6.0]]).double(), lengths(1, 1)
    for size in (1.0, 1000.0):
        weights = [size * (1 + excess), size]
        found = gdpo_advantages(rewards, [0, 0], mask, weights=weights, whiten="sequence")
        close(found[:, 0], [first, -first], 1e-3 if first else 0.0)


def test_without_the_std_small_advantages_are_kept():
    # Centred in reward units, ±5e-7; whitened with 1e-8 added to the variance 5e-13.
    rewards, mask = torch.tensor([[1e-6], [0.0]]).double(), lengths(1, 1)
    found = gdpo_advantages(rewards, [0, 0], mask, whiten="sequence", scale=False)
    close(found[:, 0], [0.0049999, -0.0049999], 1e-7)


def test_equal_rows_give_exactly_zero_under_grpo():
    # Equal rows must have equal sums to the last bit. A matrix product does not guarantee this.
    generator = torch.Generator().manual_seed(0)
    for size, count in itertools.product((2, 7, 17, 1001), (2, 3, 5, 8)):
        row, weights = torch.rand(2, count, generator=generator, dtype=torch.float64)
        rewards, mask = row.expand(size, count).clone(), torch.ones(size, 1)
        found = grpo_advantages(rewards, [0] * size, mask, weights=weights.tolist(), epsilon=0.0)
        assert exactly_zero(found)


@pytest.mark.parametrize(
    ("rewards", "scale", "expected"),
    [
        # 1 and 0 are scored: ±s. The others 0, 1, 2 have the deviation 1.
        ([[1.0, 0.0], [0.0, 1.0], [NAN, 2.0]], True, [[S, -1.0], [-S, 0.0], [NAN, 1.0]]),
        # E[x²] - E[x]² in float32 would be 0 here. Mean 5000.5, deviation sqrt(1/3).
        ([[5000.0], [5001.0]] * 2, True, [[-0.866025], [0.866025]] * 2),
        # Without the deviations rewards are only centred.
        ([[10.0, 0.0], [0.0, 1.0]], False, [[5.0, -0.5], [-5.0, 0.5]]),
    ],
    ids=["an unscored reward stays NaN", "tiny differences far from zero", "only centred"],
)
def test_a_group_is_normalised_by_hand(rewards, scale, expected):
    found = group_normalize(torch.tensor(rewards), [0] * len(rewards), scale=scale)
    torch.testing.assert_close(found, torch.tensor(expected), atol=1e-5, rtol=0.0, equal_nan=True)


def test_without_the_std_gdpo_and_grpo_are_equal():
    # Centred: 5, -5 and -1/2, 1/2.
    rewards, mask = torch.tensor([[10.0, 0.0], [0.0, 1.0]]), lengths(1, 1)
    decoupled = gdpo_advantages(rewards, [0, 0], mask, whiten="none", scale=False)
    close(decoupled[:, 0], [4.5, -4.5])
    # Without deviations, decoupling makes no difference.
    close(grpo_advantages(rewards, [0, 0], mask, scale=False), decoupled.double(), 0.0)


def test_an_empty_batch_gives_an_empty_result():
    rewards, mask = torch.zeros(0, 2), torch.zeros(0, 3)
    assert grpo_advantages(rewards, [], mask).shape == (0, 3)
    assert group_normalize(rewards, []).shape == (0, 2)


@pytest.mark.parametrize(
    ("rewards", "first"),
    [
        # 0.1 + 0.2 is 0.30000000000000004, and 0.3 + 0 is 0.3.
        ([[0.1, 0.2], [0.3, 0.0]], 0.0),
        # This is a difference.
        ([[0.1, 0.2], [0.3, 1e-12]], -S),
        # Two numbers that are two steps of float64 apart, so that their mean is a number of
        # float64, too.
        ([[1.0], [1.0 + 2**-51]], -S),
    ],
)
def test_sums_that_differ_by_rounding_are_equal_under_grpo(rewards, first):
    table = torch.tensor(rewards, dtype=torch.float64)
    found = grpo_advantages(table, [0, 0], torch.ones(2, 1), epsilon=0.0)
    close(found[:, 0], [first, -first], 1e-3 if first else 0.0)
