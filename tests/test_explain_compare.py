"""Groups of the explorer: ties, pairs, exact counts, and the sentences about them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from browser import browser as browser

from gdpo_verl.explain import compare, conclusions, examples


def group_of(*rewards: tuple[float, ...], **options: Any) -> dict[str, compare.Rollout]:
    names = [chr(ord("a") + i) for i in range(len(rewards))]
    keys = [f"reward {k}" for k in range(len(rewards[0]))]
    options = {"whiten": False} | options
    group = compare.compare(names, torch.tensor(rewards, dtype=torch.float64), keys, **options)
    return {each.name: each for each in group}


def test_grpo_ties_are_marked_and_split_where_gdpo_tells_them_apart():
    # Sums 1, 1, 1, 0: mean 3/4, deviation 1/2. First reward: mean 1/4, deviation 1/2. Second:
    # mean 1/2, deviation 1/sqrt(3), so that a trade of one for the other is worth 2 - sqrt(3).
    group = group_of((1, 0), (0, 1), (0, 1), (0, 0))
    assert list(group) == ["a", "b", "c", "d"]
    assert [round(each.grpo, 4) for each in group.values()] == [0.5, 0.5, 0.5, -1.5]
    assert [round(each.gdpo, 4) for each in group.values()] == [0.634, 0.366, 0.366, -1.366]
    assert [(each.tie, each.split) for each in group.values()] == [("A", True)] * 3 + [("", False)]


def test_a_tie_of_rewards_that_vary_equally_is_one_for_gdpo_too():
    group = group_of((1, 0), (0, 1), (0, 0))
    # Each mean 1/3, each deviation 1/sqrt(3).
    expected = {"a": 1 / math.sqrt(3), "b": 1 / math.sqrt(3), "c": -2 / math.sqrt(3)}
    assert {each.name: each.gdpo for each in group.values()} == pytest.approx(expected, abs=1e-5)
    assert [(each.tie, each.split) for each in group.values()] == [("A", False)] * 2 + [("", False)]


def test_rollouts_with_the_same_rewards_are_no_tie():
    assert not any(each.tie for each in group_of((1, 0), (1, 0), (0, 0)).values())


def test_conditions_and_weights_enter_before_ties_are_looked_for():
    conditions = {"reward 1": {"on": "reward 0", "at_least": 1.0}}
    rewards = ((1, 0), (0, 1), (0, 1), (0, 0))
    conditioned = group_of(*rewards, conditions=conditions)
    assert conditioned["b"].rewards == (0.0, 0.0)
    assert not any(each.tie for each in conditioned.values())
    assert not group_of(*rewards, weights=[2.0, 1.0])["a"].tie


def test_whitening_gives_the_group_mean_zero_and_deviation_one():
    values = torch.tensor(
        [each.gdpo for each in group_of((1, 0), (0, 1), (0, 0), whiten=True).values()]
    )
    torch.testing.assert_close(values.mean(), torch.tensor(0.0), atol=1e-6, rtol=0)
    torch.testing.assert_close(values.std(), torch.tensor(1.0), atol=1e-6, rtol=0)


def test_the_pair_that_explains_a_tie_is_the_one_farthest_apart():
    (pair,) = compare.tied_pairs(list(group_of((1, 0), (0, 1), (0, 1), (0, 0)).values()))
    assert (pair.first.name, pair.second.name) == ("a", "b")
    assert pair.sums == (1.0, 1.0)
    assert pair.gap == pytest.approx(2 - math.sqrt(3), abs=1e-5)
    assert pair.deviations == pytest.approx((0.5, 1 / math.sqrt(3)))
    assert conclusions.pair_sentence(pair, ["style", "speed"]) == (
        "a [1, 0] and b [0, 1]: GRPO adds first, and both sums are 1, so both get +0.500, and "
        "they stay equal whatever the rest of the group does. GDPO divides each reward by its own "
        "deviation first: style is worth +1.500 and -0.500 (σ 0.500); speed is worth -0.866 and "
        "+0.866 (σ 0.577); the sums differ by 0.268 before whitening."
    )


def test_the_sentence_of_a_pair_says_when_gdpo_is_no_better():
    (pair,) = compare.tied_pairs(list(group_of((1, 0), (0, 1), (0, 0)).values()))
    assert "the sums are equal again" in conclusions.pair_sentence(pair, ["style", "speed"])


def test_the_sentence_of_a_group_counts_what_each_method_tells_apart():
    group = list(group_of((1, 0), (0, 1), (0, 1), (0, 0)).values())
    assert conclusions.collapse_sentence(group).startswith(
        "Different reward vectors among the 4 rollouts: 3. Different advantages: 2 with GRPO, 3 "
        "with GDPO. 3 rollouts have the GRPO advantage of a rollout whose rewards differ."
    )
    same = list(group_of((1, 0), (0, 1), (0, 0)).values())
    assert conclusions.collapse_sentence(same).endswith("ties in both.")
    none = list(group_of((1, 1), (0, 1), (0, 0)).values())
    assert "No two different reward vectors" in conclusions.collapse_sentence(none)


def test_scales_move_grpo_and_leave_gdpo_alone():
    unit = list(group_of((1, 0), (0, 1), (0, 0)).values())
    scaled = list(group_of((5, 0), (0, 1), (0, 0)).values())
    # Sums 5, 1, 0: deviation sqrt(7), so that rollout b falls from 0.577 to -1 / sqrt(7).
    assert conclusions.scale_sentence(scaled, unit) == (
        "Against rewards that are all worth 1, GRPO's advantages change by up to 0.955 and GDPO's "
        "by up to 0.000."
    )


def test_the_widest_range_rules_the_order_of_grpo():
    keys = [scale.name for scale in examples.RANGES]
    rewards = torch.tensor(list(examples.RANKINGS.values()), dtype=torch.float64)
    group = compare.compare(list(examples.RANKINGS), rewards, keys)
    assert "Its order is that of watch time." in conclusions.ranking_sentence(group, keys)
    narrow = compare.compare(list(examples.RANKINGS), rewards / torch.tensor([1, 4, 60]), keys)
    assert "Its order" not in conclusions.ranking_sentence(narrow, keys)


# ---------------------------------------------------------------- the examples


def test_the_answers_are_scored_by_the_rewards():
    scores = [tuple(map(int, examples.score(answer))) for answer in examples.ANSWERS]
    assert scores == [
        *[(1, 1, 1), (1, 1, 0), (1, 0, 1), (0, 1, 1), (0, 1, 1), (0, 1, 0)],
        *[(0, 1, 0), (0, 1, 1), (0, 1, 0), (1, 1, 0), (0, 0, 1), (0, 0, 0)],
    ]


# ---------------------------------------------------------------- exact counts


@pytest.mark.parametrize(
    ("components", "size", "grpo", "unscaled", "gdpo"),
    [
        *[(2, 2, 2, 3, 3), (2, 3, 4, 6, 6), (2, 4, 7, 10, 14), (2, 6, 16, 21, 38)],
        *[(2, 8, 29, 36, 81), (2, 10, 46, 55, 145), (1, 4, 4, 4, 4), (3, 4, 14, 20, 45)],
        *[(4, 4, 23, 35, 127), (5, 4, 41, 56, 318)],
    ],
)
def test_the_counts_of_distinct_groups_are_exact(components, size, grpo, unscaled, gdpo):
    # A separate enumeration with the standard library's statistics gives the same.
    found = compare.count_distinct(components, size)
    assert (found.grpo, found.grpo_unscaled, found.gdpo) == (grpo, unscaled, gdpo)
    assert found.groups == compare.group_count(components, size)


def test_too_many_groups_are_counted_but_not_gone_through():
    assert compare.group_count(5, 12) > compare.MOST_GROUPS
    assert "more than the 60,000" in conclusions.count_sentence(5, 12)
    assert "GRPO tells 2 of them apart" in conclusions.count_sentence(2, 2)


def test_gdpo_misses_a_trade_where_both_rewards_vary_equally():
    gaps = compare.gaps_of_a_trade(12)
    equal = [(a, b) for a in range(1, 12) for b in range(1, 12) if abs(gaps[a - 1, b - 1]) < 1e-9]
    assert equal == [(a, b) for a in range(1, 12) for b in range(1, 12) if b in (a, 12 - a)]
    # One of twelve varies with sqrt(1/12), six of twelve with sqrt(3/11).
    assert float(gaps[0, 5]) == pytest.approx(math.sqrt(12) - math.sqrt(11 / 3))
