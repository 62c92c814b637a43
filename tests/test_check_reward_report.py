"""The report on answers and outcomes written by hand: each complaint."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from gdpo_verl.check_reward.answers import GROUND_TRUTH, PHRASED, Answer
from gdpo_verl.check_reward.report import Report, measure
from gdpo_verl.check_reward.table import to_json, to_text
from gdpo_verl.check_reward.worker import Outcome, Scored
from gdpo_verl.config import GdpoConfig
from gdpo_verl.rewards import Component


def outcome(score: object, seconds: float = 0.002, **info: object) -> Outcome:
    return Outcome(score=score, info={"score": score, **info}, seconds=seconds)


DECLARED = (Component("a", 0, 1), Component("b", -3, 3))
# Two rows with two answers each; "b" differs in neither.
ANSWERS = [
    Answer(0, GROUND_TRUTH, "yes", 0),
    Answer(0, "empty", "", 0),
    Answer(7, GROUND_TRUTH, "no", 7),
    Answer(7, "empty", "", 7),
]
GOOD = [
    outcome(3.0, 1.5, a=1.0, b=2.0, parse_error=0),
    outcome(2.0, 0.002, a=0.0, b=2.0, parse_error=4),
    outcome(0.0, 0.004, a=1.0, b=-1.0, parse_error=0),
    outcome(-1.0, 0.006, a=0.0, b=-1.0, parse_error=4),
]
GOOD[0] = Outcome(GOOD[0].score, GOOD[0].info, seconds=1.5, first=True)


def report_of(
    outcomes: list[Outcome] = GOOD,
    *,
    answers: list[Answer] = ANSWERS,
    declared: tuple[Component, ...] = DECLARED,
    **algorithm: object,
) -> Report:
    return measure(answers, Scored(declared, outcomes), GdpoConfig.from_algorithm(algorithm))


def test_summary_of_hand_made_outcomes() -> None:
    report = report_of()
    assert report.problems == []
    a, b = report.components
    assert (a.name, a.weight, a.declared) == ("a", 1.0, (0, 1))
    assert (a.low, a.mean, a.high, a.constant_groups, a.unscored) == (0.0, 0.5, 1.0, 0.0, 0.0)
    assert (b.low, b.mean, b.high, b.constant_groups, b.unscored) == (-1.0, 0.5, 2.0, 1.0, 0.0)
    assert list(report.notes) == [
        "'b' never differs between two answers to one prompt: if that is so in the training it "
        "teaches nothing"
    ]
    # The first call, 1.5 s, is reported by itself: 2, 4 and 6 ms stay; 98 % of the way from the
    # second to the third is 5.96.
    assert report.seconds == pytest.approx((0.004, 0.00596, 0.006))
    assert report.first_seconds == 1.5
    assert report.slowest is not None
    assert report.slowest.name == "7 (empty)"
    assert report.worst is not None
    assert (report.worst.name, report.worst.score) == ("7 (empty)", -1.0)
    assert report.parse_errors == {0: 2, 4: 2}
    assert [(k.kind, k.count, k.low, k.mean, k.high, k.unread) for k in report.kinds] == [
        ("ground truth", 2, 0.0, 1.5, 3.0, 0),
        ("empty", 2, -1.0, 0.5, 2.0, 2),
    ]


def with_last(**changes: object) -> list[Outcome]:
    """GOOD with another last outcome."""
    return [*GOOD[:3], outcome(**{"score": -1.0, "a": 0.0, "b": -1.0, "parse_error": 4} | changes)]


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        pytest.param(
            with_last(a=2.0, score=1.0),
            "row 7 (empty): 'a' is 2, declared as 0 to 1",
            id="out of range",
        ),
        pytest.param(
            with_last(score=0.5),
            "row 7 (empty): its score is 0.5, but the weighted sum of the components ['a', 'b'] "
            "is -1. A GRPO control would optimise something else than GDPO decouples; use "
            "reward.reward_manager.name=gdpo_components, or return the sum as 'score'",
            id="score is another sum",
        ),
        pytest.param(
            with_last(score=float("nan")),
            "row 7 (empty): expected a finite number as its score, found nan",
            id="no score",
        ),
        pytest.param(
            with_last(score=np.float32(-1)),
            "row 7 (empty): expected a finite number as its score, found np.float32(-1.0), a "
            "numpy.float32, which verl cannot put into a tensor. Return float(score)",
            id="numpy's float32",
        ),
        pytest.param(
            [*GOOD[:3], outcome(-1.0, a=0.0, parse_error=4)],
            "algorithm.gdpo_reward_keys: the reward returned no 'b' for row 7 (empty), only "
            "['a', 'parse_error', 'score']. Return it from compute_score on every path, failures "
            "included.",
            id="missing key",
        ),
        pytest.param(
            [outcome(0.0, a=0.0, c=0.0) for _ in ANSWERS],
            "algorithm.gdpo_reward_keys: 'b' is not among the reward components ['a', 'c']. Return "
            "it from compute_score or remove the key.",
            id="key in no answer",
        ),
        pytest.param(
            with_last(b="x"),
            "algorithm.gdpo_reward_keys: expected a finite number, None or NaN for 'b', found 'x' "
            "for row 7 (empty). Numbers are at most 1e+300 in size.",
            id="not a number",
        ),
        pytest.param(
            [outcome(1.0, a=1.0, b=0.0) for _ in ANSWERS],
            "no component differs between two answers to one prompt, in any of 2 prompts: every "
            "advantage would be 0 and nothing would be learnt",
            id="nothing to learn",
        ),
        pytest.param(
            with_last(score="-1.0"),
            "row 7 (empty): expected a finite number as its score, found '-1.0'",
            id="a score as text",
        ),
        pytest.param(
            [Outcome(score, {"acc": score}, 0.001) for score in (1.0, 0.0, 1.0, 0.0)],
            "row 0 (ground truth): expected compute_score to return a dict with 'score' and the "
            "components, found 1.0. Return {'score': …, 'correctness': …} and declare the "
            "components (gdpo_verl.rewards.declares), or name them in algorithm.gdpo_reward_keys "
            "(and 3 more)",
            id="numbers in place of dicts",
        ),
        pytest.param(
            [*GOOD[:3], dataclasses.replace(GOOD[3], seconds=3.01)],
            "row 7 (empty): it took 3.01 s, more than 5% of a step of 1 min 0 s, whose rewards "
            "wait for the slowest answer. Make it faster, or say with --step-seconds how long your "
            "steps are",
            id="slow",
        ),
        pytest.param(
            [*GOOD[:2], outcome(-3.0, a=0.0, b=-3.0, parse_error=9), GOOD[3]],
            "row 7 (ground truth): parse_error 9: the reward cannot read the row's ground truth "
            "and gives every answer the minimum. Correct it, or leave the row out of the data",
            id="malformed ground truth",
        ),
        pytest.param(
            [*GOOD[:2], outcome(-3.0, a=0.0, b=-3.0, parse_error=4), GOOD[3]],
            "row 7 (ground truth): parse_error 4 with the row's own ground truth as the answer: "
            "correct the ground truth, or leave the row out of the data",
            id="ground truth that is no answer",
        ),
        pytest.param(
            GOOD[:2],
            "2 answers were left out, after too many that did not come back",
            id="left out",
        ),
    ],
)
def test_each_problem_is_named_once(outcomes: list[Outcome], expected: str) -> None:
    assert list(report_of(outcomes).problems) == [expected]


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
        dataclasses.replace(answer, kind=kind, made_up=made_up)
        for answer, kind in zip(ANSWERS, kinds, strict=True)
    ]
    outcomes = [
        outcome(1.0, a=1.0, b=0.0, **({} if code is None else {"parse_error": code}))
        for code in codes
    ]
    report = report_of(outcomes, answers=answers)
    about = "no component differs between two answers to one prompt, in any of 2 prompts"
    assert [text.startswith(about) for text in report.problems] == [True] * problem
    assert any("--answers" in note for note in report.notes) is not problem


def test_score_follows_weights_and_conditions() -> None:
    conditions = {"b": {"on": "a", "at_least": 1.0}}
    # 2 a + b where a is 1, else 2 a: 4, 0, 1, 0.
    scores = [4.0, 0.0, 1.0, 0.0]
    outcomes = [
        outcome(score, a=case.info["a"], b=case.info["b"])
        for score, case in zip(scores, GOOD, strict=True)
    ]
    settings = {"gdpo_reward_weights": {"a": 2.0}, "gdpo": {"conditions": conditions}}
    assert list(report_of(outcomes, **settings).problems) == []
    assert report_of(outcomes, **settings).agree == 4
    assert "the weighted sum" in report_of(outcomes).problems[0]


def test_ground_truths_in_another_form_than_answers_are_no_problem() -> None:
    unread = [outcome(2.0, a=1.0, b=1.0, parse_error=1), outcome(1.0, a=0.0, b=1.0, parse_error=1)]
    assert list(report_of(unread * 2).problems) == []


MADE_UP = [dataclasses.replace(answer, made_up=True) for answer in ANSWERS]
# What GOOD gives to the truth goes to the empty answer, and the reverse.
SWAPPED = [GOOD[1], GOOD[0], GOOD[3], GOOD[2]]


def without_code(outcomes: list[Outcome]) -> list[Outcome]:
    return [
        dataclasses.replace(
            each, info={key: value for key, value in each.info.items() if key != "parse_error"}
        )
        for each in outcomes
    ]


@pytest.mark.parametrize(
    ("outcomes", "problem", "note"),
    [
        pytest.param(GOOD, "", "", id="ordered"),
        pytest.param(without_code(SWAPPED), "less than a wrong answer in 2 of 2 rows", "",
                     id="inverted"),
        pytest.param(without_code([GOOD[0], GOOD[0], GOOD[2], GOOD[2]]),
                     "less than a wrong answer in 0 of 2 rows", "", id="unordered"),
        pytest.param(SWAPPED, "", "less than a wrong answer in 2 of 2 rows", id="truths unread"),
        pytest.param([outcome(3.0, a=0.0, b=3.0), outcome(4.0, a=1.0, b=3.0)] * 2,
                     "the reward is inverted", "", id="inverted, beside a full component"),
        pytest.param([outcome(-3.0, a=0.0, b=-3.0), outcome(-2.0, a=1.0, b=-3.0)] * 2, "",
                     "but by 'a' alone: ['b'] are at their lowest for every answer", id="alone"),
    ],
)  # fmt: skip
def test_a_reward_that_does_not_prefer_the_truth_is_a_problem(
    outcomes: list[Outcome], problem: str, note: str
) -> None:
    report = report_of(outcomes, answers=MADE_UP)
    found = ["the ground truth (ground truth) scores" in text for text in report.problems]
    assert any(found) == bool(problem)
    assert problem in "".join(report.problems)
    assert note in "".join(report.notes)


def test_a_truth_that_is_an_object_is_no_answer() -> None:
    truths = [dataclasses.replace(answer, text='{"inputs": []}') for answer in MADE_UP]
    report = report_of(without_code(SWAPPED), answers=truths)
    assert list(report.problems) == []
    assert "a ground truth is not written as an answer" in report.notes[0]


@pytest.mark.parametrize(
    ("again", "expected"),
    [
        pytest.param({3: GOOD[3]}, None, id="the same"),
        pytest.param(
            {3: outcome(-1.0 + 1e-13, a=0.0, b=-1.0)}, None, id="but for the sum's rounding"
        ),
        pytest.param(
            {3: outcome(0.0, a=1.0, b=-1.0), 2: outcome(1.0, a=1.0, b=0.0)},
            "row 7 (ground truth): scored twice, in another order: 'score' 0.0 and then 1.0, 'b' "
            "-1.0 and then 0.0. The reward of an answer must not depend on chance, on the time, or "
            "on the answers before it (and 1 more)",
            id="another reward",
        ),
        pytest.param(
            {0: Outcome(error="did not end within 3 s")},
            "row 0 (ground truth): scored twice, in another order: the second time it did not end "
            "within 3 s. The reward of an answer must not depend on chance, on the time, or on the "
            "answers before it",
            id="no reward",
        ),
    ],
)
def test_another_reward_for_the_same_answer_is_a_problem(
    again: dict[int, Outcome], expected: str | None
) -> None:
    scored = Scored(DECLARED, GOOD, again)
    report = measure(ANSWERS, scored, GdpoConfig.from_algorithm({}))
    assert list(report.problems) == ([expected] if expected else [])


def test_the_time_of_an_answer_is_the_shorter_of_two() -> None:
    slow = [*GOOD[:3], dataclasses.replace(GOOD[3], seconds=9.0)]
    scored = Scored(DECLARED, slow, {3: GOOD[3]})
    assert measure(ANSWERS, scored, GdpoConfig.from_algorithm({})).problems == []
    limits = measure(ANSWERS, Scored(DECLARED, slow), GdpoConfig.from_algorithm({}), 181.0)
    assert limits.problems == []  # 5 % of 181 s is 9.05 s
    assert "longest 9 s; first call 1.5 s; at most 9.05 s, 5% of a step of 3 min 1 s" in to_text(
        limits, {}
    )


def test_unscored_and_optional_components() -> None:
    declared = (Component("a", 0, 1), Component("b", -3, 3, optional=True))
    outcomes = [outcome(1.0, a=1.0), outcome(0.0, a=0.0), outcome(1.0, a=1.0), outcome(0.0, a=0.0)]
    report = report_of(outcomes, declared=declared)
    assert list(report.problems) == []
    assert list(report.notes) == ["'b' is not scored in any answer"]
    assert (report.components[1].mean, report.components[1].unscored) == (None, 1.0)


def test_answers_that_the_reward_did_not_see_as_they_are_are_noted() -> None:
    outcomes = [*GOOD[:3], Outcome(-1.0, GOOD[3].info, seconds=0.006, altered=True)]
    assert report_of(outcomes).notes[0] == (
        "row 7 (empty): the tokenizer gives back another text, which is what the reward saw"
    )


def test_differing_diagnostics_are_noted() -> None:
    notes = report_of(with_last(extra=1)).notes
    assert notes[0].startswith(
        "row 7 (empty): the keys ['a', 'b', 'extra', 'parse_error', 'score']"
    )


def test_pages_of_a_report_hold_what_was_found() -> None:
    report = report_of(with_last(a=2.0, score=1.0))
    text = to_text(report, {"reward": "mine"})
    assert text.startswith("reward  mine\n")
    assert [" ".join(line.split()) for line in text.splitlines() if line[:2] in ("a ", "b ")] == [
        "a 1 0 to 1 0 to 2 1.000 0% of prompts 0% of answers",
        "b 1 -3 to 3 -1 to 2 0.500 100% of prompts 0% of answers",
    ]
    assert "score = 1·a + 1·b in 4 of 4 answers" in text
    assert "parse_error codes and their answers: 0: 2, 4: 2" in text
    assert text.endswith("PROBLEM  row 7 (empty): 'a' is 2, declared as 0 to 1")
    record = json.loads(to_json(report, {"reward": "mine"}))
    assert record["answers"][3]["returned"] == {"score": 1.0, "a": 2.0, "b": -1.0, "parse_error": 4}
