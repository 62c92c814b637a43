"""The report on answers and results written by hand: each complaint."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gdpo_verl.check_reward.answers import GROUND_TRUTH, PHRASED, CheckedAnswer
from gdpo_verl.check_reward.report import Report, measure
from gdpo_verl.check_reward.worker import RewardResult, Scored
from gdpo_verl.config import GdpoConfig
from gdpo_verl.rewards import Component


def result(score: object, seconds: float = 0.002, **info: object) -> RewardResult:
    return RewardResult(score=score, info={"score": score, **info}, seconds=seconds)


DECLARED = (Component("a", 0, 1), Component("b", -3, 3))
# Two rows with two answers each; "b" differs in neither.
ANSWERS = [
    CheckedAnswer(0, GROUND_TRUTH, "yes", 0),
    CheckedAnswer(0, "empty", "", 0),
    CheckedAnswer(7, GROUND_TRUTH, "no", 7),
    CheckedAnswer(7, "empty", "", 7),
]
GOOD = [
    replace(result(3.0, 1.5, a=1.0, b=2.0, parse_error=0), first=True),
    result(2.0, 0.002, a=0.0, b=2.0, parse_error=4),
    result(0.0, 0.004, a=1.0, b=-1.0, parse_error=0),
    result(-1.0, 0.006, a=0.0, b=-1.0, parse_error=4),
]


def report_of(
    results: list[RewardResult] = GOOD,
    again: dict[int, RewardResult] | None = None,
    *,
    answers: list[CheckedAnswer] = ANSWERS,
    declared: tuple[Component, ...] = DECLARED,
    **algorithm: object,
) -> Report:
    scored = Scored(declared, results, again or {})
    return measure(answers, scored, GdpoConfig.from_algorithm(algorithm))


def with_last(**changes: object) -> list[RewardResult]:
    """GOOD with another last result."""
    return [*GOOD[:3], result(**{"score": -1.0, "a": 0.0, "b": -1.0, "parse_error": 4} | changes)]


def test_a_condition_on_a_reward_that_can_be_negative_is_noted() -> None:
    condition = {"on": "a", "at_least": 1}

    def noted(**settings: Any) -> list[str]:
        return [note for note in report_of(**settings).notes if "goes down" in note]

    (note,) = noted(gdpo={"conditions": {"b": condition}})
    assert note.startswith("algorithm.gdpo.conditions.b: 'b' goes down to -3 and counts as 0 where")
    # Not declared, it is what it did.
    unknown = (Component("a"), Component("b"))
    (note,) = noted(declared=unknown, gdpo={"conditions": {"b": condition}})
    assert "goes down to -1" in note
    assert not noted(gdpo={"conditions": {"a": {"on": "b", "at_least": 2}}})


def test_summary_of_hand_made_results() -> None:
    report = report_of()
    assert report.problems == []
    a, b = report.components
    assert (a.name, a.weight, a.declared) == ("a", 1.0, (0, 1))
    assert (a.low, a.mean, a.high, a.constant_groups, a.unscored) == (0.0, 0.5, 1.0, 0.0, 0.0)
    assert (b.low, b.mean, b.high, b.constant_groups, b.unscored) == (-1.0, 0.5, 2.0, 1.0, 0.0)
    (note,) = report.notes
    assert note.startswith("'b' never differs between two answers to one prompt")
    # The first call, 1.5 s, is reported by itself: 2, 4 and 6 ms stay; 98 % of the way from the
    # second to the third is 5.96.
    record = report.record()
    assert record["seconds"] == pytest.approx({"median": 0.004, "p99": 0.00596, "max": 0.006})
    assert record["first_call_seconds"] == 1.5
    assert record["parse_errors"] == {0: 2, 4: 2}
    assert [(k.kind, k.count, k.low, k.mean, k.high, k.unread) for k in report.kinds] == [
        ("ground truth", 2, 0.0, 1.5, 3.0, 0),
        ("empty", 2, -1.0, 0.5, 2.0, 2),
    ]
    text = report.to_text()
    assert "slowest: row 7 (empty), 6 ms, score -1: ''" in text
    assert "lowest score: row 7 (empty), 6 ms, score -1: ''" in text


def test_pages_of_a_report_hold_what_was_found() -> None:
    report = replace(report_of(with_last(a=2.0, score=1.0)), about={"reward": "mine"})
    text = report.to_text()
    assert text.startswith("reward  mine\n")
    assert [" ".join(line.split()) for line in text.splitlines() if line[:2] in ("a ", "b ")] == [
        "a 1 0 to 1 0 to 2 1.000 0% of prompts 0% of answers",
        "b 1 -3 to 3 -1 to 2 0.500 100% of prompts 0% of answers",
    ]
    assert "score = 1·a + 1·b in 4 of 4 answers" in text
    assert "parse_error codes and their answers: 0: 2, 4: 2" in text
    assert text.endswith("PROBLEM  row 7 (empty): 'a' is 2, declared as 0 to 1")
    record = json.loads(report.to_json())
    assert record["answers"][3]["returned"] == {"score": 1.0, "a": 2.0, "b": -1.0, "parse_error": 4}


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        (with_last(a=2.0, score=1.0), "row 7 (empty): 'a' is 2, declared as 0 to 1"),
        (with_last(score=0.5), "row 7 (empty): its score is 0.5, but the weighted sum of the "
         "components ['a', 'b'] is -1."),
        (with_last(score=float("nan")), "row 7 (empty): expected a finite number as its score"),
        (with_last(score=np.float32(-1)), "row 7 (empty): expected a finite number as its score, "
         "found np.float32(-1.0), a numpy.float32, which verl cannot put into a tensor."),
        (with_last(score="-1.0"), "row 7 (empty): expected a finite number as its score, found '-"),
        ([*GOOD[:3], result(-1.0, a=0.0, parse_error=4)],
         "algorithm.gdpo_reward_keys: the reward returned no 'b' for row 7 (empty), only ['a', "),
        ([result(0.0, a=0.0, c=0.0)] * 4,
         "algorithm.gdpo_reward_keys: 'b' is not among the reward components ['a', 'c']."),
        (with_last(b="x"), "algorithm.gdpo_reward_keys: expected a finite number, None or NaN for "
         "'b', found 'x' for row 7 (empty). Numbers are at most 1e+300 in size."),
        (with_last(b=1e301), "algorithm.gdpo_reward_keys: expected a finite number, None or NaN"),
        ([result(1.0, a=1.0, b=0.0)] * 4,
         "no component differs between two answers to one prompt, in any of 2 prompts: every "),
        ([RewardResult(score, {"acc": score}, 0.001) for score in (1.0, 0.0, 1.0, 0.0)],
         "row 0 (ground truth): expected compute_score to return a dict with 'score' and the "),
        ([*GOOD[:3], replace(GOOD[3], seconds=3.01)],
         "row 7 (empty): it took 3.01 s, more than 5% of a step of 1 min 0 s, whose rewards wait"),
        ([*GOOD[:2], result(-3.0, a=0.0, b=-3.0, parse_error=9), GOOD[3]],
         "row 7 (ground truth): parse_error 9: the reward cannot read the row's ground truth"),
        ([*GOOD[:2], result(-3.0, a=0.0, b=-3.0, parse_error=4), GOOD[3]],
         "row 7 (ground truth): parse_error 4 with the row's own ground truth as the answer"),
    ],
    ids=[
        "out of range", "score is another sum", "NaN", "numpy's float32", "a score as text",
        "missing key", "key in no answer", "not a number", "too large", "nothing to learn",
        "numbers in place of dicts", "slow", "malformed ground truth", "truth that is no answer",
    ],
)  # fmt: skip
def test_each_problem_is_named_once(results: list[RewardResult], expected: str) -> None:
    (problem,) = report_of(results).problems
    assert problem.startswith(expected)


@pytest.mark.parametrize(
    ("again", "expected"),
    [
        ({3: GOOD[3]}, None),
        ({3: result(-1.0 + 1e-13, a=0.0, b=-1.0)}, None),
        ({3: result(0.0, a=1.0, b=-1.0), 2: result(1.0, a=1.0, b=0.0)},
         "row 7 (ground truth): scored twice, in another order: 'score' 0.0 and then 1.0, 'b' "
         "-1.0 and then 0.0. The reward of an answer must not depend on chance, on the time, or "
         "on the answers before it (and 1 more)"),
        ({0: RewardResult(error="did not end within 3 s")},
         "row 0 (ground truth): scored twice, in another order: the second time it did not end "
         "within 3 s. The reward of an answer must not depend on chance, on the time, or on the "
         "answers before it"),
    ],
    ids=["the same", "but for the sum's rounding", "another reward", "no reward"],
)  # fmt: skip
def test_another_reward_for_the_same_answer_is_a_problem(
    again: dict[int, RewardResult], expected: str | None
) -> None:
    assert list(report_of(again=again).problems) == ([expected] if expected else [])


def test_the_time_of_an_answer_is_the_shorter_of_two() -> None:
    slow = [*GOOD[:3], replace(GOOD[3], seconds=9.0)]
    assert report_of(slow, {3: GOOD[3]}).problems == []
    scored = Scored(DECLARED, slow)
    limits = measure(ANSWERS, scored, GdpoConfig.from_algorithm({}), 181.0)
    assert limits.problems == []  # 5 % of 181 s is 9.05 s
    assert "at most 9.05 s, 5% of a step of 3 min 1 s" in limits.to_text()


@pytest.mark.parametrize(
    ("codes", "made_up", "problem"),
    [
        pytest.param([1, 1, 1, 1], True, False, id="made up, none read"),
        pytest.param([1, 1, 1, 0], True, False, id="made up, only another text read"),
        pytest.param([None] * 4, True, True, id="made up, nobody says what was read"),
        pytest.param([0, 1, 1, 1], True, True, id="made up, a ground truth read"),
        pytest.param([1, 1, 0, 1], True, True, id="made up, a phrased ground truth read"),
        pytest.param([1, 1, 1, 1], False, True, id="given"),
    ],
)
def test_made_up_answers_that_may_not_fit_and_do_not_differ_are_a_note(
    codes: list[int | None], made_up: bool, problem: bool
) -> None:
    kinds = [GROUND_TRUTH, "empty", PHRASED, "empty"]
    answers = [
        replace(answer, kind=kind, made_up=made_up)
        for answer, kind in zip(ANSWERS, kinds, strict=True)
    ]
    results = [
        result(1.0, a=1.0, b=0.0, **({} if code is None else {"parse_error": code}))
        for code in codes
    ]
    report = report_of(results, answers=answers)
    about = "no component differs between two answers to one prompt, in any of 2 prompts"
    assert [text.startswith(about) for text in report.problems] == [True] * problem
    assert any("--answers" in note for note in report.notes) is not problem


MADE_UP = [replace(answer, made_up=True) for answer in ANSWERS]
UNCODED = [replace(each, info={**each.info, "parse_error": None}) for each in GOOD]
# What GOOD gives to the truth goes to the empty answer, and the reverse.
SWAPPED = [GOOD[1], GOOD[0], GOOD[3], GOOD[2]]
INVERTED = [UNCODED[1], UNCODED[0], UNCODED[3], UNCODED[2]]
OBJECTS = [replace(answer, text='{"inputs": []}') for answer in MADE_UP]


@pytest.mark.parametrize(
    ("results", "answers", "problem", "note"),
    [
        pytest.param(GOOD, MADE_UP, "", "", id="ordered"),
        pytest.param(INVERTED, MADE_UP, "less than a wrong answer in 2 of 2 rows", "",
                     id="inverted"),
        pytest.param([UNCODED[0], UNCODED[0], UNCODED[2], UNCODED[2]], MADE_UP,
                     "less than a wrong answer in 0 of 2 rows", "", id="unordered"),
        pytest.param(SWAPPED, MADE_UP, "", "less than a wrong answer in 2 of 2 rows",
                     id="truths unread"),
        pytest.param([result(3.0, a=0.0, b=3.0), result(4.0, a=1.0, b=3.0)] * 2, MADE_UP,
                     "the reward is inverted", "", id="inverted, beside a full component"),
        pytest.param([result(-3.0, a=0.0, b=-3.0), result(-2.0, a=1.0, b=-3.0)] * 2, MADE_UP, "",
                     "but by 'a' alone: ['b'] are at their lowest for every answer: give real ones "
                     "with --answers, or sample them with --model", id="alone"),
        pytest.param(INVERTED, OBJECTS, "", "a ground truth is not written as an answer",
                     id="a truth that is an object"),
    ],
)  # fmt: skip
def test_a_reward_that_does_not_prefer_the_truth_is_a_problem(
    results: list[RewardResult], answers: list[CheckedAnswer], problem: str, note: str
) -> None:
    report = report_of(results, answers=answers)
    found = ["the ground truth (ground truth) scores" in text for text in report.problems]
    assert any(found) == bool(problem)
    assert problem in "".join(report.problems)
    assert note in "".join(report.notes)


def test_score_follows_weights_and_conditions() -> None:
    conditions = {"b": {"on": "a", "at_least": 1.0}}
    # 2 a + b where a is 1, else 2 a: 4, 0, 1, 0.
    results = [
        result(score, a=each.info["a"], b=each.info["b"])
        for score, each in zip([4.0, 0.0, 1.0, 0.0], GOOD, strict=True)
    ]
    settings = {"gdpo_reward_weights": {"a": 2.0}, "gdpo": {"conditions": conditions}}
    assert list(report_of(results, **settings).problems) == []
    assert "in 4 of 4 answers" in report_of(results, **settings).to_text()
    assert "the weighted sum" in report_of(results).problems[0]


def test_optional_components_that_no_answer_has_are_noted() -> None:
    declared = (Component("a", 0, 1), Component("b", -3, 3, optional=True))
    report = report_of([result(1.0, a=1.0), result(0.0, a=0.0)] * 2, declared=declared)
    assert list(report.problems) == []
    assert list(report.notes) == ["'b' is not scored in any answer"]
    assert (report.components[1].mean, report.components[1].unscored) == (None, 1.0)


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        ([*GOOD[:3], replace(GOOD[3], not_round_tripped=True)],
         "row 7 (empty): the tokenizer gives back another text, which is what the reward saw"),
        (with_last(extra=1), "row 7 (empty): the keys ['a', 'b', 'extra', 'parse_error', 'score']"),
        (GOOD[:2], "2 answers were not scored"),
    ],
    ids=["another text", "another diagnostic", "left out"],
)  # fmt: skip
def test_what_is_worth_a_look_is_noted(results: list[RewardResult], expected: str) -> None:
    report = report_of(results)
    assert (report.problems, report.notes[0].startswith(expected)) == ([], True)
