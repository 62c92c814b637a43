"""The recipes' cases, judged: each as it says."""

import importlib
import json

import pytest
from protected import working_protections
from verdicts import FILES, SETTINGS, cases_of

from gdpo_verl.config.components import declared_components
from gdpo_verl.rewards import tool_turns

NEEDS = {"instructions": "if_verifiable", "math_length": "math_verify"}
CASES = [
    pytest.param(recipe, case, id=f"{recipe}-{number}-{case['why'][:40]}")
    for recipe in FILES
    for number, case in enumerate(cases_of(recipe), start=1)
]


@pytest.mark.parametrize(("recipe", "case"), CASES)
def test_a_reward_judges_as_it_promises(recipe, case):
    if recipe == "code" and not list(working_protections()):
        pytest.skip("neither bubblewrap nor Landlock works here: apt install bubblewrap")
    pytest.importorskip(NEEDS.get(recipe, "json"))
    reward = importlib.import_module(f"gdpo_verl.rewards.{recipe}")
    if case["expected"].get("parse_error") == "GROUND_TRUTH":  # which no row is made of
        with pytest.raises(ValueError, match=r"^ground_truth: "):
            reward.parse_ground_truth(case["truth"])
    elif case["expected"].get("correctness", 0) > 0:
        reward.parse_ground_truth(case["truth"])
    about = {"response_length": 1, **case.get("extra_info", {})}
    for rules, expected in (({}, case["expected"]), ({"strict": False}, case.get("lenient", {}))):
        if expected:
            options = SETTINGS.get(recipe, {}) | rules
            found = reward.compute_score(recipe, case["answer"], case["truth"], about, **options)
            components = [found[each.name] for each in declared_components(reward.compute_score)]
            assert found["score"] == pytest.approx(sum(filter(None, components)))
            found["parse_error"] = reward.ParseError(found["parse_error"]).name
            assert {key: found[key] for key in expected} == pytest.approx(expected)


@pytest.mark.parametrize("case", cases_of("tool_turns"), ids=lambda case: case["why"])
def test_a_reward_by_turn_is_the_same_divided_among_the_turns(case):
    given = ("", case["answer"], case["truth"], case["extra_info"])
    whole = tool_turns.compute_score(*given)
    divided = tool_turns.compute_score_by_turn(*given)
    turns = divided["executed"]
    expected = case.get("by_turn", {"executed": turns})
    assert turns == (expected["executed"] and pytest.approx(expected["executed"]))
    divided["executed"] = turns and pytest.approx(sum(turns))
    assert whole == divided


def test_two_calls_in_a_turn_cannot_be_told_apart():
    about = {"calls": 1, "tool_rewards": [1.0, 1.0], "num_turns": 2}
    with pytest.raises(
        ValueError, match=r"one call in each of 1 turns, found 2\. Set actor_rollout_ref\."
    ):
        tool_turns.compute_score_by_turn("", "", "42", about)


@pytest.mark.parametrize("recipe", FILES)
def test_each_line_says_what_is_expected_and_why_and_no_line_is_there_twice(recipe):
    seen = []
    for case in cases_of(recipe):
        required = case.keys() - {"extra_info", "lenient", "verl", "by_turn"}
        assert required == {"answer", "truth", "expected", "why"}
        asked = json.dumps([case["answer"], case["truth"], case.get("extra_info")])
        assert asked not in seen
        seen.append(asked)
