"""The explorer's tool calls: what they earn, what they do, and what decides between two."""

from __future__ import annotations

import pytest

from gdpo_verl.explain import calls, compare

NAMES = [str(i) for i in range(1, len(calls.ANSWERS) + 1)]


def test_each_call_is_scored_held_against_the_truth_and_executed():
    # Four arguments are asked for, so that the reward is S - 3, S of six points: one for the
    # name, the arguments' names in common, and one for each equal argument. The wrong rate loses
    # one; two redundant arguments share 4 of 6 names; a missing one shares 3 of 4 and loses one.
    assert [row[1:] for row in calls.table()[1]] == [
        ["1", "3", "as asked", "returns 1,349.35"],
        ["0", "3", "as asked", "returns 1,349.35"],
        ["1", "2", "wrong: rate", "returns 425,795,984,000,815.06"],
        [
            "1",
            "2.667",
            "redundant: currency, decimals",
            "refused: got an unexpected keyword argument 'currency'",
        ],
        [
            "1",
            "1.75",
            "missing: per_year",
            "refused: missing 1 required positional argument: 'per_year'",
        ],
        ["0", "-3", "–", "cannot be read"],
        ["0", "-3", "–", "no call"],
    ]


@pytest.mark.parametrize(("weight", "above"), [(5.0, "3"), (5.2, "2")])
def test_the_weight_that_turns_the_order_around_is_the_one_named(weight, above):
    # Format is 1 in four of seven answers: deviation sqrt(2/7). Correctness deviates by 2.717,
    # so that a point of format is worth 2.717 / sqrt(2/7) = 5.08 points of correctness.
    group = compare.compare(NAMES, calls.rewards(), calls.KEYS, weights=[1.0, weight])
    below = "2" if above == "3" else "3"
    assert calls.order_sentence(group).startswith(
        f"With these weights GDPO puts answer {above} above answer {below}. It prefers answer 2 "
        "once correctness weighs more than 5.08 times as much as format."
    )


def test_grpo_takes_the_wrong_rate_and_the_missing_thought_for_equal():
    group = compare.compare(NAMES, calls.rewards(), calls.KEYS)
    assert {each.name for each in group if each.split} == {"2", "3"}
