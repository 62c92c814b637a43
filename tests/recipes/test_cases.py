"""The cases that a recipe's reward promises to judge as they say: ``recipes/NAME/cases.jsonl``."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
from protected import working_protections

from gdpo_verl.config.components import declared_components
from gdpo_verl.lab.run.composition import recipes_directory

FILES = sorted(recipes_directory().glob("*/cases.jsonl"))
# A busy machine is no slow program.
SETTINGS = {"code": {"timeout": 60, "deadline": 600}}
NEEDS = {"instructions": "if_verifiable", "math_length": "math_verify"}


def cases_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.open(encoding="utf-8")]


CASES = [
    pytest.param(file.parent.name, case, id=f"{file.parent.name}-{number}-{case['why'][:40]}")
    for file in FILES
    for number, case in enumerate(cases_of(file), start=1)
]


@pytest.mark.parametrize(("task", "case"), CASES)
def test_a_reward_judges_as_it_promises(task: str, case: dict[str, Any]) -> None:
    if task == "code" and not list(working_protections()):
        pytest.skip("neither bubblewrap nor Landlock works here: apt install bubblewrap")
    pytest.importorskip(NEEDS.get(task, "json"))
    reward = importlib.import_module(f"gdpo_verl.rewards.{task}")
    if case["expected"].get("parse_error") == "GROUND_TRUTH":  # which no row is made of
        with pytest.raises(ValueError, match=r"^ground_truth: "):
            reward.parse_ground_truth(case["truth"])
    elif case["expected"].get("correctness", 0) > 0:
        reward.parse_ground_truth(case["truth"])
    about = {"response_length": 1, **case.get("extra_info", {})}
    for rules, expected in (({}, case["expected"]), ({"strict": False}, case.get("lenient", {}))):
        if expected:
            options = SETTINGS.get(task, {}) | rules
            found = reward.compute_score(task, case["answer"], case["truth"], about, **options)
            components = [found[each.name] for each in declared_components(reward.compute_score)]
            assert found["score"] == pytest.approx(sum(filter(None, components)))
            found["parse_error"] = reward.ParseError(found["parse_error"]).name
            assert {key: found[key] for key in expected} == pytest.approx(expected)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.parent.name)
def test_each_line_says_what_is_expected_and_why(file: Path) -> None:
    cases = cases_of(file)
    asked = {json.dumps([case["answer"], case["truth"], case.get("extra_info")]) for case in cases}
    assert len(asked) == len(cases)
    for case in cases:
        assert set(case) - {"lenient", "verl", "extra_info"} == {
            "answer",
            "truth",
            "expected",
            "why",
        }
        assert case["expected"]
