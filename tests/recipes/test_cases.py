"""The recipes' cases, judged: each as it says."""

from __future__ import annotations

import importlib
import json
from typing import Any

import pytest
from protected import working_protections
from verdicts import FILES, SETTINGS, cases_of

from gdpo_verl.config.components import declared_components

NEEDS = {"instructions": "if_verifiable", "math_length": "math_verify"}
CASES = [
    pytest.param(recipe, case, id=f"{recipe}-{number}-{case['why'][:40]}")
    for recipe in FILES
    for number, case in enumerate(cases_of(recipe), start=1)
]


@pytest.mark.parametrize(("recipe", "case"), CASES)
def test_a_reward_judges_as_it_promises(recipe: str, case: dict[str, Any]) -> None:
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


@pytest.mark.parametrize("recipe", FILES)
def test_each_line_says_what_is_expected_and_why(recipe: str) -> None:
    cases = cases_of(recipe)
    asked = {json.dumps([case["answer"], case["truth"], case.get("extra_info")]) for case in cases}
    assert len(asked) == len(cases)
    for case in cases:
        assert {"answer", "truth", "expected", "why"} <= set(case)
        assert set(case) <= {"answer", "truth", "extra_info", "expected", "lenient", "verl", "why"}
        assert case["expected"]
