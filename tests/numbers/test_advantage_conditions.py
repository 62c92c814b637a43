"""Conditions (Eq. 8): which rewards count, and thresholds in every dtype."""

import pytest
import torch
from by_hand import NAN

from gdpo_verl import apply_conditions

LENGTH_IF_CORRECT = {"length": {"on": "correctness", "at_least": 1.0}}


def test_a_conditioned_reward_counts_only_where_the_other_reached_its_threshold():
    rewards = [[1.0, 0.5], [0.9, 0.5], [2.0, -0.5], [NAN, 0.5], [1.0, NAN], [0.0, NAN]]
    # If the answer is wrong, the length does not count, whatever it is. If the answer is right, a
    # length that is not scored stays not scored.
    expected = [[1.0, 0.5], [0.9, 0.0], [2.0, -0.5], [NAN, NAN], [1.0, NAN], [0.0, 0.0]]
    found = apply_conditions(torch.tensor(rewards), ["correctness", "length"], LENGTH_IF_CORRECT)
    torch.testing.assert_close(found, torch.tensor(expected), rtol=0, atol=0, equal_nan=True)


def test_several_components_may_depend_on_the_same_one():
    conditions = LENGTH_IF_CORRECT | {"style": {"on": "correctness", "at_least": 0}}
    rewards = torch.tensor([[7.0, 0.0, 8.0], [7.0, -1.0, 8.0], [7.0, 1.0, 8.0]])
    found = apply_conditions(rewards, ("length", "correctness", "style"), conditions)
    assert found.tolist() == [[0.0, 0.0, 8.0], [0.0, -1.0, 0.0], [7.0, 1.0, 8.0]]


ON_B = {"on": "b", "at_least": 1}


@pytest.mark.parametrize(
    "conditions",
    [
        {"a": ON_B, "b": {"on": "a", "at_least": 1}},
        {"b": ON_B},
        {"a": []},
        {"a": [ON_B, "b"]},
        {"a": ON_B | {"more_than": 1}},
        {"a": {"at_least": 1}},
        {"d": ON_B},
        {"a": {"on": "d", "at_least": 1}},
        {"a": {"on": "b"}},
        {"a": ON_B | {"at_most": None}},
        ["a"],
        {"a": ON_B | {"at_least": "1"}},
        {"a": ON_B | {"at_least": NAN}},
    ],
    ids=str,
)
def test_bad_conditions_are_rejected(conditions):
    rewards, keys = torch.zeros(2, 3), ["a", "b", "c"]
    apply_conditions(rewards, keys, {"a": ON_B})
    with pytest.raises(ValueError, match=r"^conditions"):
        apply_conditions(rewards, keys, conditions)


CYCLE = r"^conditions: .* a cycle: (a -> b -> c -> a|b -> c -> a -> b|c -> a -> b -> c)\."


def test_cycles_of_conditions_are_rejected_with_the_names():
    conditions = {"a": ON_B, "b": [{"on": "d", "at_least": 0}, {"on": "c", "at_most": 1}]}
    conditions["c"] = {"on": "a", "equals": 1}
    with pytest.raises(ValueError, match=CYCLE):
        apply_conditions(torch.zeros(2, 4), ["a", "b", "c", "d"], conditions)


PIPELINE = {
    # The components are not in the order in which they depend on each other.
    "passes": [{"on": "runs", "at_least": 1}, {"on": "length", "at_most": 0.7}],
    "runs": {"on": "parses", "equals": 0.7},
}


def test_all_conditions_of_a_list_must_hold_and_a_condition_sees_values_after_conditions():
    rows = [
        # the rewards parses, runs, passes and length; runs and passes after their conditions
        ([0.7, 1.0, 5.0, 0.7], [1.0, 5.0]),
        ([0.6, 1.0, 5.0, 0.7], [0.0, 0.0]),  # a program that does not parse does not run
        ([0.8, 1.0, 5.0, 0.7], [0.0, 0.0]),
        ([0.7, 0.5, 5.0, 0.7], [0.5, 0.0]),
        ([0.7, 1.0, 5.0, 0.8], [1.0, 0.0]),
        ([NAN, 1.0, 5.0, 0.1], [NAN, NAN]),
        ([NAN, 1.0, 5.0, 0.8], [NAN, 0.0]),  # it is too long, whether or not it parses
        ([0.7, NAN, NAN, 0.8], [NAN, 0.0]),
        ([0.7, 1.0, NAN, 0.1], [1.0, NAN]),
    ]
    rewards = torch.tensor([row for row, _ in rows])  # in float32 0.7 is 0.69999999
    found = apply_conditions(rewards, ["parses", "runs", "passes", "length"], PIPELINE)
    expected = torch.tensor([row for _, row in rows])
    torch.testing.assert_close(found[:, 1:3], expected, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(found[:, ::3], rewards[:, ::3], rtol=0, atol=0, equal_nan=True)


def test_thresholds_may_be_compared_with_other_numbers():
    rewards, sums = torch.tensor([[5.0, 0.0], [5.0, 1.0]]), torch.tensor([[0.0, 1.0], [0.0, 0.0]])
    found = apply_conditions(rewards, ["a", "b"], {"a": ON_B}, sums)
    assert found.tolist() == [[5.0, 0.0], [0.0, 1.0]]


@pytest.mark.parametrize("rewards", [[[1.0, 0.0]], torch.zeros(2), torch.zeros(2, 3)], ids=str)
def test_conditions_need_one_column_per_component(rewards):
    with pytest.raises(ValueError, match=r"^rewards: expected a tensor of shape \(B, 2\)"):
        apply_conditions(rewards, ["correctness", "length"], LENGTH_IF_CORRECT)


FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_reward_written_like_the_threshold_reaches_it_in_every_dtype(dtype):
    condition = {"length": {"on": "quality", "at_least": 0.7}}
    rewards = torch.tensor([[0.7, 1.0], [0.69, 1.0]], dtype=dtype)
    found = apply_conditions(rewards, ["quality", "length"], condition)
    assert found[:, 1].tolist() == [1.0, 0.0]
    if dtype.itemsize > 2:  # tests/plugin/test_batch.py tests half precision
        found = apply_conditions(rewards.double(), ["quality", "length"], condition)
        assert found[:, 1].tolist() == [1.0, 0.0]


@pytest.mark.parametrize(
    ("threshold", "values", "counted"),
    [
        (1e200, [1e199, 1e200], [0.0, 1.0]),
        (1e300, [-1e300, 1e300], [0.0, 1.0]),
        (-1e300, [-1e300, 1e300], [1.0, 1.0]),
    ],
)
def test_a_threshold_beyond_float32_is_compared_as_it_is(threshold, values, counted):
    rewards = torch.tensor([[value, 1.0] for value in values], dtype=torch.float64)
    found = apply_conditions(rewards, ["a", "b"], {"b": {"on": "a", "at_least": threshold}})
    assert found[:, 1].tolist() == counted
