"""`gdpo-verl check-reward` on the rewards of the recipes."""

import json

import pytest
from protected import working_protections
from test_check_reward import check as check
from test_check_reward import scores, write_answers, write_data
from test_check_reward import work as work

GOOD_CALL = '<think>So.</think>\n<tool_call>\n{"name": "f", "parameters": {"a": 1}}\n</tool_call>'
TESTS = [
    json.dumps({"inputs": [f"{number}\n"], "outputs": [f"{2 * number}\n"]}) for number in (1, 2, 3)
]


@pytest.fixture
def recipe(check):
    """Check a recipe's reward, without its model, on three rows with these ground truths."""

    def run(name, truths, *options):
        write_data("rows.parquet", truths=truths)
        data = ["--recipe", name, "--data", "rows.parquet", *options]
        return check(None, *data, "actor_rollout_ref.model.path=null")

    return run


@pytest.mark.parametrize(
    ("name", "truths", "expected"),
    [
        # The rewards are correctness, integer and format. A number without tags is no answer.
        ("gsm8k/gdpo_strict", ["22", "1,044", "-66"],
         {"as an answer": [3.0] * 3, "ground truth": [0.0] * 3}),
        # Only the layout with a box is right. All responses are within 4,000 tokens.
        ("math_length/gdpo", [r"\frac{1}{2}", "x = 3", "(1, 2]"],
         {"in a box": [2.0] * 3, "ground truth": [1.0] * 3, "empty": [1.0] * 3}),
        # The score is half of the format's reward 1, plus correctness 3. In an empty response
        # nothing is right.
        ("toolbox/gdpo +algorithm.gdpo_reward_weights={format:0.5}", [GOOD_CALL] * 3,
         {"ground truth": [3.5] * 3, "empty": [-3.0] * 3}),
    ],
)  # fmt: skip
def test_a_recipe_reads_the_truth_in_its_own_layout(recipe, name, truths, expected):
    name, *options = name.split()
    status, shown, report = recipe(name, truths, *options)
    assert (status, {kind: scores(report)[kind] for kind in expected}) == (0, expected)
    if name == "math_length/gdpo":  # another row's truth is read as well, in one layout of three
        assert report["parse_errors"] == {"0": 6, "1": 21}
        assert "note     'length' is 1 for every response" in shown


def test_a_ground_truth_that_the_reward_cannot_read_is_a_problem(recipe):
    status, _, report = recipe("gsm8k/gdpo_strict", ["22", "forty-two", "forty-two"])
    assert status == 1
    assert (
        "row 1 (ground truth): parse_error 9: the reward cannot read the row's ground truth and "
        "gives every response the minimum. Correct it, or leave the row out of the data (and 17 "
        "more)"
    ) in report["problems"]


def test_the_condition_of_the_recipe_gives_nothing_for_repeating_the_topic(recipe):
    pytest.importorskip("if_verifiable")
    pytest.importorskip("wordllama")
    truth = {
        "topic": "the sea",
        "instruction_id_list": ["punctuation:no_comma"],
        "kwargs": [{}],
    }
    own = "The ocean covers most of the planet. Fish and whales live in it as ships cross it."
    write_answers(own, "the sea " * 8)
    options = ("--answers", "answers.jsonl")
    name = "instructions/gdpo_conditioned"
    _, _, report = recipe(name, [json.dumps(truth)] * 3, *options)
    text, topic = report["answers"]
    assert topic["returned"]["relevance"] > 0.9
    assert topic["score"] == 1.0
    assert text["score"] == pytest.approx(1.0 + text["returned"]["relevance"])


@pytest.mark.skipif(
    next(working_protections(), None) is None,
    reason="no sandbox works here: apt install bubblewrap",
)
@pytest.mark.parametrize(
    ("first", "scored", "problems"),
    [("2 * int(input())", 3.0, 0), ("4", 1.0, 1)],
    ids=["right and short", "as wrong as the other"],
)
def test_programs_that_do_not_differ_are_a_problem(recipe, first, scored, problems):
    write_answers(f"```python\nprint({first})\n```", "```python\nprint(3)\n```")
    status, shown, report = recipe("code/gdpo_strict", TESTS, "--answers", "answers.jsonl")
    assert (status, scores(report)) == (problems, {"answers.jsonl": [scored, 1.0]})
    assert shown.count("PROBLEM  every component is constant in each of") == problems
    assert report["sandboxes"] == [next(working_protections()).name]
