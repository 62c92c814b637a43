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


def test_ties_of_grpo_are_marked_and_split_if_gdpo_distinguishes_the_responses():
    # The sums 1, 1, 1, 0 have the mean 3/4 and the deviation 1/2. The first reward has the mean 1/4
    # and the deviation 1/2. The second has the mean 1/2 and the deviation 1/sqrt(3), so that
    # exchanging one reward for the other changes the advantage by 2 - sqrt(3).
    group = group_of((1, 0), (0, 1), (0, 1), (0, 0))
    assert list(group) == ["a", "b", "c", "d"]
    assert [round(each.grpo, 4) for each in group.values()] == [0.5, 0.5, 0.5, -1.5]
    assert [round(each.gdpo, 4) for each in group.values()] == [0.634, 0.366, 0.366, -1.366]
    assert [(each.tie, each.split) for each in group.values()] == [("A", True)] * 3 + [("", False)]
    ((first, second),) = compare.tied_pairs(list(group.values()))
    assert (first.name, second.name, first.score, second.score) == ("a", "b", 1.0, 1.0)
    assert sum(first.terms) - sum(second.terms) == pytest.approx(2 - math.sqrt(3), abs=1e-5)


def test_a_tie_of_rewards_that_vary_equally_is_also_a_tie_for_gdpo():
    group = group_of((1, 0), (0, 1), (0, 0))
    assert [(each.tie, each.split) for each in group.values()] == [("A", False)] * 2 + [("", False)]
    # Responses with the same rewards are no tie.
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


def test_the_responses_are_scored_by_the_rewards_of_the_package():
    scores = ["{:.0f}{:.0f}{:.0f}".format(*examples.score(each)) for each in examples.ANSWERS]
    assert " ".join(scores) == "111 110 101 011 011 010 010 011 010 110 001 000"


def test_each_call_is_scored_and_executed():
    # Four arguments are expected, so that the reward is S - 3, where S has up to six points: one
    # for the name of the tool, one for the share of common argument names, and one for each equal
    # argument. The wrong rate loses one point. With two redundant arguments 4 of 6 names are
    # common. With a missing argument 3 of 4 names are common, and one point is lost.
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
    # Format is 1 in four of seven responses: its deviation is sqrt(2/7). The deviation of
    # correctness is 2.717, so that a point of format counts like 2.717 / sqrt(2/7) = 5.08 points of
    # correctness.
    for weight, above, split in ((1.0, "3", {"2", "3"}), (5.0, "3", set()), (5.2, "2", set())):
        found = compare.decompose_group(calls.rewards(), calls.KEYS, weights=[1.0, weight])
        group = compare.compare("1234567", found)
        assert next(each.name for each in group if each.name in "23") == above
        assert {each.name for each in group if each.split} == split


def test_the_reward_with_the_widest_range_determines_the_order_of_grpo():
    keys = [name for name, *_ in examples.RANGES]
    rewards = torch.tensor(list(examples.RANKINGS.values()), dtype=torch.float64)
    by_watch_time = rewards[:, 2].argsort().tolist()
    for rows, alike in ((rewards, True), (rewards / torch.tensor([1, 4, 60]), False)):
        by_grpo = compare.decompose_group(rows, keys).grpo.argsort().tolist()
        assert (by_grpo == by_watch_time) == alike


def test_a_remedy_removes_the_advantage_of_the_shortest_response_if_all_fail():
    # Only brevity varies: (139 - 40) / 74.06, with the mean and the unbiased deviation of the
    # tokens.
    for right, remedy in ((0, "none"), (8, "condition")):
        praised = phantom.remedied(right, remedy)["40 tokens"]
        assert praised == pytest.approx(99 / 74.06, abs=1e-3)
    for right, remedy in ((0, "condition"), (0, "gate"), (8, "gate")):
        assert not any(phantom.remedied(right, remedy).values())
    # The outcome of this group varies, so that the gate does not close it.
    assert phantom.remedied(3, "gate") == phantom.remedied(3, "none")
    assert phantom.remedied(3, "condition") != phantom.remedied(3, "gate")


# ---------------------------------------------------------------- bars


def test_the_length_of_bars_is_the_advantage_and_a_third_estimator_has_the_same_scale():
    group = [
        compare.Rollout(name, (), 0.0, (), 2.0 * sign, 1.0 * sign)
        for name, sign in (("a", 1), ("b", -1))
    ]
    lengths = charts.PARTS.bars(group, third=("third", {"a": 4.0}))
    bars = [(50, 25), (50, 12.5), (50, 50), (25, 25), (37.5, 12.5)]
    for left, width in bars:
        assert f"left:{left:.2f}%;width:{width:.2f}%" in lengths
    assert lengths.count("width:") == len(bars)
