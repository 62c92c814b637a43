"""Derived components: the arguments, results and limits of a user's function of a whole group."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from gdpo_verl import advantages_of
from gdpo_verl.config import GdpoConfig
from gdpo_verl.rewards.derived import rank, relative_length

LENGTH = {
    "function": "pkg://gdpo_verl.rewards.derived:relative_length",
    "outcome": "right",
}
RIGHT = [1, 1, 0, 1, 0, 1]
LENGTHS = [10, 30, 5, 20, 8, 9]
GROUPS = ["a", "a", "a", "a", "b", "b"]
# In group a, right responses get (30 - length) / 20. In group b only one response is right.
BREVITY = [1.0, 0.0, None, 0.5, None, None]


def advantages(derived, groups=GROUPS, tokens=LENGTHS, **settings):
    gdpo = {"derived": derived, **settings.pop("gdpo", {})}
    rewards = [{"right": value} for value in RIGHT]
    return advantages_of(rewards, groups, tokens, config={"gdpo": gdpo, **settings})


def by_hand(**settings):
    rewards = [{"right": a, "brevity": b} for a, b in zip(RIGHT, BREVITY, strict=True)]
    return advantages_of(rewards, GROUPS, LENGTHS, config=settings)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"gdpo_reward_keys": ["brevity", "right"], "gdpo_reward_weights": [2.0, 1.0]},
        {"gdpo": {"conditions": {"right": {"on": "brevity", "at_least": 0.5}}}},
        {"gdpo": {"gate": {"on": "brevity"}}},
        {"gdpo": {"variant": "dara"}},
    ],
)
def test_a_derived_component_is_a_component_like_any_other(settings):
    assert advantages({"brevity": LENGTH}, **settings) == by_hand(**settings)


def test_ids_may_be_a_tensor_and_groups_may_be_in_any_order():
    order = [3, 4, 0, 5, 2, 1]
    found = advantages_of(
        [{"right": RIGHT[row]} for row in order],
        torch.tensor([ord(GROUPS[row]) for row in order]),
        [LENGTHS[row] for row in order],
        config={"gdpo": {"derived": {"brevity": LENGTH}}},
    )
    assert found == pytest.approx([by_hand()[row] for row in order], abs=1e-12)


def test_a_derived_component_may_have_a_range_for_variants_that_need_one():
    settings = {"gdpo": {"variant": "tchebycheff"}, "gdpo_reward_keys": ["brevity"]}
    config = GdpoConfig.from_algorithm(
        {"gdpo": {"derived": {"brevity": LENGTH | {"range": [0, 1]}}}}
    )
    assert config.resolve(["right"]).ranges == {"brevity": (0.0, 1.0)}
    with pytest.raises(ValueError, match=r"these have none: \['brevity'\]"):
        advantages({"brevity": LENGTH}, **settings)


@pytest.mark.parametrize(
    ("function", "found"),
    [
        ("raising", r"failed for the group 'a': KeyError: 'nobody'"),
        ("too_few", r"expected 4 values for the group 'a', .* found 3"),
        ("text", r"found '1.0' for the group 'a', response 0"),
        ("infinite", r"found inf for the group 'a', response 0"),
        ("nothing", r"failed for the group 'a': TypeError"),
        ("asynchronous", r"failed for the group 'a': TypeError"),
    ],
)
@pytest.mark.filterwarnings("ignore:coroutine")
def test_a_function_that_fails_is_named_with_its_group(function, found):
    with pytest.raises(ValueError, match=rf"^config\.gdpo\.derived\.x: .*{found}"):
        advantages({"x": f"pkg://group_functions:{function}"})


def test_the_made_up_group_also_contains_the_other_values_that_the_reward_returned():
    derived = {"x": "pkg://group_functions:verbosity"}
    objective = GdpoConfig.from_algorithm({"gdpo": {"derived": derived}}).resolve(["right"])
    objective.try_derived({"right": 0.0, "words": 3})
    message = r"^algorithm\.gdpo\.derived\.x: .* for the group 'made up': KeyError: 'words'"
    with pytest.raises(ValueError, match=message):
        objective.try_derived({"right": 0.0})


def test_a_careless_function_changes_neither_the_rewards_nor_a_random_generator():
    both = {"x": "pkg://group_functions:careless", "brevity": LENGTH}
    state, numpy_state = random.getstate(), np.random.get_state()[1].tolist()
    rewards = [{"right": value} for value in RIGHT]
    advantages_of(rewards, GROUPS, LENGTHS, config={"gdpo": {"derived": both}})
    assert rewards == [{"right": value} for value in RIGHT]
    assert random.getstate() == state
    assert np.random.get_state()[1].tolist() == numpy_state


def test_without_token_counts_only_a_function_that_needs_lengths_is_rejected():
    ranked = {"x": {"function": "pkg://gdpo_verl.rewards.derived:rank", "of": "right"}}
    assert len(advantages(ranked, tokens=None)) == 6
    with pytest.raises(ValueError, match="pass token_counts"):
        advantages({"brevity": LENGTH}, tokens=None)


def test_a_derived_component_with_a_name_that_the_reward_returns_is_rejected():
    with pytest.raises(ValueError, match=r"derived\.right: the reward itself returns"):
        advantages({"right": LENGTH})


def test_a_function_of_a_file_in_the_working_directory_is_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    function = "def shorter(rewards, lengths):\n    return [-float(length) for length in lengths]\n"
    Path("rewards.py").write_text(function)
    negated = [{"right": a, "x": -b} for a, b in zip(RIGHT, LENGTHS, strict=True)]
    assert advantages({"x": "rewards.py:shorter"}) == advantages_of(negated, GROUPS, LENGTHS)


def test_relative_length_compares_only_responses_that_pass():
    def of(right, lengths, **settings):
        rewards = [{"right": value} for value in right]
        return relative_length(rewards, lengths, outcome="right", **settings)

    assert of([1, 1], [7, 7]) == [1.0, 1.0]
    assert of([1, 0, None, float("nan")], [7, 8, 9, 10]) == [None] * 4
    assert of([0.5, 0.7], [7, 9], at_least=0.5) == [1.0, 0.0]
    with pytest.raises(ValueError, match="expected one of"):
        relative_length([{"wrong": 1}] * 2, [1, 2], outcome="right")


def test_rank_is_the_share_of_the_other_responses_that_are_surpassed():
    def of(values):
        return rank([{"q": value} for value in values], [1] * len(values), of="q")

    assert of([2, 2, 2]) == [0.5, 0.5, 0.5]
    assert of([1, None]) == [None, None]
    assert of([[1, 1], [None, 3], []]) == [0.0, 1.0, None]


@pytest.mark.parametrize("turns", range(1, 60))
def test_per_turn_rewards_that_add_up_to_one_count_as_one(turns):
    rewards = [{"done": [1 / turns] * turns}, {"done": [0.5, 0.5]}, {"done": []}]
    assert relative_length(rewards, [30, 20, 10], outcome="done") == [0.0, 1.0, None]
    assert rank(rewards, [1] * 3, of="done") == [0.5, 0.5, None]
    almost = [{"done": [0.9999]}, *rewards[:2]]
    assert relative_length(almost, [10, 30, 20], outcome="done") == [None, 0.0, 1.0]
    assert rank(almost, [1] * 3, of="done") == [0.0, 0.75, 0.75]
