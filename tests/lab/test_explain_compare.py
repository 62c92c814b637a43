"""Groups of the explorer: ties, pairs, examples and calls."""

import math

import pytest
import torch

from gdpo_verl import gdpo_advantages
from gdpo_verl.lab.explain import calls, charts, compare, examples, phantom


def group_of(*rewards):
    rows = torch.tensor(rewards, dtype=torch.float64)
    found = compare.decompose_group(rows, ["first", "second"], whiten=False)
    return {each.name: each for each in compare.compare("abcd"[: len(rows)], found)}


def test_grpo_ties_are_marked_and_split_where_gdpo_tells_them_apart():
    # Sums 1, 1, 1, 0: mean 3/4, deviation 1/2. First reward: mean 1/4, deviation 1/2. Second:
    # mean 1/2, deviation 1/sqrt(3), so that a trade of one for the other is worth 2 - sqrt(3).
    group = group_of((1, 0), (0, 1), (0, 1), (0, 0))
    assert list(group) == ["a", "b", "c", "d"]
    assert [round(each.grpo, 4) for each in group.values()] == [0.5, 0.5, 0.5, -1.5]
    assert [round(each.gdpo, 4) for each in group.values()] == [0.634, 0.366, 0.366, -1.366]
    assert [(each.tie, each.split) for each in group.values()] == [("A", True)] * 3 + [("", False)]
    ((first, second),) = compare.tied_pairs(list(group.values()))
    assert (first.name, second.name, first.score, second.score) == ("a", "b", 1.0, 1.0)
    assert sum(first.terms) - sum(second.terms) == pytest.approx(2 - math.sqrt(3), abs=1e-5)


def test_a_tie_of_rewards_that_vary_equally_is_one_for_gdpo_too():
    group = group_of((1, 0), (0, 1), (0, 0))
    # Each mean 1/3, each deviation 1/sqrt(3).
    expected = {"a": 1 / math.sqrt(3), "b": 1 / math.sqrt(3), "c": -2 / math.sqrt(3)}
    assert {each.name: each.gdpo for each in group.values()} == pytest.approx(expected, abs=1e-5)
    assert [(each.tie, each.split) for each in group.values()] == [("A", False)] * 2 + [("", False)]
    # The same rewards are no tie.
    assert not any(each.tie for each in group_of((1, 0), (1, 0), (0, 0)).values())


@pytest.mark.parametrize(
    ("variant", "whiten"), [("gdpo", "sequence"), ("dvao", "none"), ("saw", "sequence")]
)
def test_the_advantages_of_a_group_are_the_library_s(variant, whiten):
    rewards = torch.tensor([[1, 0, 0], [0, 1, 1], [1, 1, 0], [0, 0, 0]], dtype=torch.float64)
    found = compare.decompose_group(rewards, ["a", "b", "c"], variant=variant, highest=[1.0] * 3)
    options = {"variant": variant, "whiten": whiten, "ranges": [(0.0, 1.0)] * 3}
    expected = gdpo_advantages(rewards, [0] * 4, torch.ones(4, 1), **options)
    torch.testing.assert_close(found.advantage, expected[:, 0])


# ---------------------------------------------------------------- the examples


def test_the_answers_are_scored_by_the_rewards():
    scores = ["{:.0f}{:.0f}{:.0f}".format(*examples.score(each)) for each in examples.ANSWERS]
    assert " ".join(scores) == "111 110 101 011 011 010 010 011 010 110 001 000"


def test_each_call_is_scored_and_executed():
    # Four arguments are asked for, so that the reward is S - 3, S of six points: one for the
    # name, the arguments' names in common, and one for each equal argument. The wrong rate loses
    # one; two redundant arguments share 4 of 6 names; a missing one shares 3 of 4 and loses one.
    refused = "rejected: got an unexpected keyword argument 'currency'"
    missing = "rejected: missing 1 required positional argument: 'per_year'"
    assert [row[1:] for row in calls.table()[1]] == [
        ["1", "3", "returns 1,349.35"],
        ["0", "3", "returns 1,349.35"],
        ["1", "2", "returns 425,795,984,000,815.06"],
        ["1", "2.667", refused],
        ["1", "1.75", missing],
        ["0", "-3", "cannot be read"],
        ["0", "-3", "no call"],
    ]


def test_five_times_the_weight_of_format_turns_the_calls_around():
    # Format is 1 in four of seven answers: deviation sqrt(2/7). Correctness deviates by 2.717,
    # so that a point of format is worth 2.717 / sqrt(2/7) = 5.08 points of correctness.
    for weight, above, split in ((1.0, "3", {"2", "3"}), (5.0, "3", set()), (5.2, "2", set())):
        found = compare.decompose_group(calls.rewards(), calls.KEYS, weights=[1.0, weight])
        group = compare.compare("1234567", found)
        assert next(each.name for each in group if each.name in "23") == above
        assert {each.name for each in group if each.split} == split


def test_the_widest_range_rules_the_order_of_grpo():
    keys = [name for name, *_ in examples.RANGES]
    rewards = torch.tensor(list(examples.RANKINGS.values()), dtype=torch.float64)
    by_watch_time = rewards[:, 2].argsort().tolist()
    for rows, alike in ((rewards, True), (rewards / torch.tensor([1, 4, 60]), False)):
        by_grpo = compare.decompose_group(rows, keys).grpo.argsort().tolist()
        assert (by_grpo == by_watch_time) == alike


def test_where_all_answers_are_alike_a_remedy_stops_the_praise_of_the_shortest():
    # Brevity alone: (tokens' mean 139 - 40) over their unbiased deviation, 74.06.
    for right, remedy in ((0, "none"), (8, "condition")):
        praised = phantom.remedied(right, remedy)["40 tokens"]
        assert praised == pytest.approx(99 / 74.06, abs=1e-3)
    for right, remedy in ((0, "condition"), (0, "gate"), (8, "gate")):
        assert not any(phantom.remedied(right, remedy).values())
    # The outcome of this group varies: the gate leaves it alone.
    assert phantom.remedied(3, "gate") == phantom.remedied(3, "none")
    assert phantom.remedied(3, "condition") != phantom.remedied(3, "gate")


# ---------------------------------------------------------------- bars


def test_bars_are_as_long_as_the_advantages_and_a_third_shares_their_scale():
    group = [
        compare.Rollout(name, (), 0.0, (), 2.0 * sign, 1.0 * sign)
        for name, sign in (("a", 1), ("b", -1))
    ]
    lengths = charts.PARTS.bars(group, third=("third", {"a": 4.0}))
    bars = [(50, 25), (50, 12.5), (50, 50), (25, 25), (37.5, 12.5)]
    for left, width in bars:
        assert f"left:{left:.2f}%;width:{width:.2f}%" in lengths
    assert lengths.count("width:") == len(bars)
