"""`gdpo-verl check-reward` on the recipes' rewards."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from reward_checks import check as check
from reward_checks import scores, write_data
from reward_checks import work as work
from sandboxes import working_protections

GOOD_CALL = '<think>So.</think>\n<tool_call>\n{"name": "f", "parameters": {"a": 1}}\n</tool_call>'
TESTS = [
    json.dumps({"inputs": [f"{number}\n"], "outputs": [f"{2 * number}\n"]}) for number in (1, 2, 3)
]


@pytest.fixture
def recipe(check: Callable, work: Path) -> Callable[..., tuple[int, str, dict[str, Any]]]:
    """Check a recipe's reward, without its model, on three rows of these ground truths."""

    def run(name: str, truths: list[str], *options: str) -> tuple[int, str, dict[str, Any]]:
        write_data(work / "rows.parquet", truths=truths)
        data = ["--recipe", name, "--data", "rows.parquet", *options]
        return check(None, *data, "actor_rollout_ref.model.path=null")

    return run


@pytest.mark.parametrize(
    ("name", "truths", "expected"),
    [
        # Correctness, integer and format; a number without tags is no answer.
        ("gsm8k/gdpo_strict", ["22", "1,044", "-66"],
         {"as an answer": [3.0] * 3, "ground truth": [0.0] * 3}),
        # Published, an integer is digits alone, in tags or not.
        ("gsm8k/gdpo", ["22", "1,044", "-66"],
         {"as an answer": [3.0, 2.0, 2.0], "ground truth": [2.0, 1.0, 1.0]}),
        # Right in a box, and within 4,000 tokens, as what is not in a box is, too.
        ("math_length/gdpo", [r"\frac{1}{2}", "x = 3", "(1, 2]"],
         {"in a box": [2.0] * 3, "ground truth": [1.0] * 3, "empty": [1.0] * 3}),
        # Half of format's 1, and correctness 3; nothing in an empty answer is right.
        ("toolbox/gdpo +algorithm.gdpo_reward_weights={format:0.5}", [GOOD_CALL] * 3,
         {"ground truth": [3.5] * 3, "empty": [-3.0] * 3}),
        # Conditioned: short, but not right.
        ("math_length/gdpo_conditioned", ["1", "2", "3"],
         {"in a box": [2.0] * 3, "empty": [0.0] * 3}),
    ],
)  # fmt: skip
def test_a_recipe_reads_the_truth_in_its_own_form(
    recipe: Callable, name: str, truths: list[str], expected: dict[str, list[float]]
) -> None:
    name, *options = name.split()
    status, shown, report = recipe(name, truths, *options)
    assert (status, {kind: scores(report)[kind] for kind in expected}) == (0, expected)
    if name == "math_length/gdpo":  # another row's truth is read, too: in one form of three
        assert report["parse_errors"] == {"0": 6, "1": 21}
        assert "note     'length' is 1 for every answer" in shown


UNREADABLE = {
    "gsm8k/gdpo_strict": ("22", "forty-two"),
    "math_length/gdpo": ("22", r"\boxed{}"),
    "toolbox/gdpo": (GOOD_CALL, "<tool_call>\nno JSON\n</tool_call>"),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_ground_truth_that_the_reward_refuses_is_a_problem(recipe: Callable, name: str) -> None:
    good, refused = UNREADABLE[name]
    status, _, report = recipe(name, [good, refused, refused])
    assert status == 1
    assert (
        "row 1 (ground truth): parse_error 9: the reward cannot read the row's ground truth and "
        "gives every answer the minimum. Correct it, or leave the row out of the data (and 1 more)"
    ) in report["problems"]


needs_sandbox = pytest.mark.skipif(
    next(working_protections(), None) is None,
    reason="no sandbox works here: apt install bubblewrap",
)


@needs_sandbox
def test_programs_cannot_be_made_up_of_their_tests_and_that_is_a_note(recipe: Callable) -> None:
    status, shown, report = recipe("code/gdpo_strict", TESTS)
    assert status == 0
    assert all(answer["score"] == 0.0 for answer in report["answers"])
    assert "note     no component differs between two answers to one prompt" in shown
    assert "give real ones with --answers, or sample them with --model" in shown


@needs_sandbox
def test_given_programs_that_all_fail_are_a_problem(recipe: Callable, work: Path) -> None:
    def lines(*programs: str) -> str:
        fenced = [f"```python\n{program}\n```" for program in programs]
        return "\n".join(json.dumps({"index": 0, "answer": text}) for text in fenced)

    (work / "answers.jsonl").write_text(lines("print(2 * int(input()))", "print(3)"))
    status, _, report = recipe("code/gdpo_strict", TESTS, "--answers", "answers.jsonl")
    # Both run; the right one passes and is short.
    assert (status, scores(report)) == (0, {"answers.jsonl": [3.0, 1.0]})
    assert report["sandboxes"] == [next(working_protections()).name]

    (work / "answers.jsonl").write_text(lines("print(4)", "print(3)"))
    status, shown, report = recipe("code/gdpo_strict", TESTS, "--answers", "answers.jsonl")
    assert (status, scores(report)) == (1, {"answers.jsonl": [1.0, 1.0]})
    assert "PROBLEM  no component differs between two answers to one prompt" in shown
