"""Each complaint of the report, on responses and results that are written by hand."""

from dataclasses import replace

import pytest
from omegaconf import OmegaConf

from gdpo_verl.lab.check_reward.answers import GROUND_TRUTH, CheckedAnswer
from gdpo_verl.lab.check_reward.report import measure, report_text
from gdpo_verl.lab.check_reward.worker import RewardResult, Scored
from gdpo_verl.rewards import Component


def result(score, seconds=0.002, **info):
    return RewardResult(score=score, info={"score": score, **info}, seconds=seconds)


DECLARED = (Component("a", 0, 1), Component("b", -3, 3))
# Two rows with two responses each. "b" is constant in both.
ANSWERS = [
    CheckedAnswer(0, GROUND_TRUTH, "yes", 0),
    CheckedAnswer(0, "empty", "", 0),
    CheckedAnswer(7, GROUND_TRUTH, "no", 7),
    CheckedAnswer(7, "empty", "", 7),
]
GOOD = [
    result(3.0, 1.5, a=1.0, b=2.0, parse_error=0),
    result(2.0, 0.002, a=0.0, b=2.0, parse_error=4),
    result(0.0, 0.004, a=1.0, b=-1.0, parse_error=0),
    result(-1.0, 0.006, a=0.0, b=-1.0, parse_error=4),
]


def report_of(
    results=GOOD,
    again=None,
    *,
    answers=ANSWERS,
    declared=DECLARED,
    **algorithm,
):
    config = OmegaConf.create(
        {
            "algorithm": {"adv_estimator": "gdpo"} | algorithm,
            "actor_rollout_ref": {"rollout": {"n": 4}},
            "data": {"train_batch_size": 2},
            "trainer": {},
        }
    )
    return measure(config, answers, Scored(declared, (), results, again or {}))


def with_last(**changes):
    """Return GOOD with another last result."""
    return [*GOOD[:3], result(**{"score": -1.0, "a": 0.0, "b": -1.0, "parse_error": 4} | changes)]


def test_summary_of_hand_made_results():
    # In the second scoring one response is faster, and the sum of another one is rounded
    # differently.
    again = {0: replace(GOOD[0], seconds=0.003), 3: result(-1.0 + 1e-13, 0.1, a=0.0, b=-1.0)}
    report = report_of(again=again)
    assert report["problems"] == []
    (note,) = report["notes"]
    assert note.startswith("'b' is constant in every group")
    # The shorter times are 2, 3, 4 and 6 ms. The 99th percentile is 97 % of the way from 4 to 6:
    # 5.94.
    assert report["seconds"] == pytest.approx({"median": 0.0035, "p99": 0.00594, "max": 0.006})
    lines = [" ".join(line.split()) for line in report_text({"about": {}, **report}).splitlines()]
    assert lines == [
        "",
        "component weight declared observed mean constant not scored",
        "a 1 0 to 1 0 to 1 0.500 0% of groups 0% of responses",
        "b 1 -3 to 3 -1 to 2 0.500 100% of groups 0% of responses",
        "",
        "response count score: lowest mean highest",
        "ground truth 2 0.000 1.500 3.000",
        "empty 2 -1.000 0.500 2.000",
        "",
        "parse_error codes and their responses: 0: 2, 4: 2",
        "time for one response: median 3.5 ms, p99 5.94 ms, longest 6 ms",
        "",
        "capacity: not known, because 2 responses to a prompt are too few",
        "",
        f"note {note}",
        "",
        "Advice",
        "No advice can be given: it needs 30 groups of several responses, found 2.",
    ]


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        (with_last(a=2.0, score=1.0), "row 7 (empty): 'a' is 2, declared as 0 to 1"),
        (with_last(score=0.5), "row 7 (empty): its score is 0.5, but the weighted sum of the "
         "components ['a', 'b'] is -1."),
        ([*GOOD[:3], result(-1.0, a=0.0, parse_error=4)],
         "algorithm.gdpo_reward_keys: the reward returned no 'b' for row 7 (empty), only ['a', "),
    ],
)  # fmt: skip
def test_each_problem_is_named_once(results, expected):
    (problem,) = report_of(results)["problems"]
    assert problem.startswith(expected)


def test_a_slow_response_is_noted():
    slow, _ = report_of([*GOOD[:3], replace(GOOD[3], seconds=3.01)])["notes"]
    assert slow == "row 7 (empty): it took 3.01 s. In a run each step waits for the slowest reward"


def test_components_neither_declared_nor_named_are_a_problem():
    report = report_of(declared=())
    (problem,) = report["problems"]
    assert problem.startswith("algorithm.gdpo_reward_keys: the reward declares no components")
    assert report["kinds"][0]["high"] == 3.0  # the rest of the summary is still reported
    assert report_of(declared=(), gdpo_reward_keys=["a", "b"])["problems"] == []


SAME = "every component is constant in each of"
PROGRAMS = '{"inputs": []}'


def alike(*codes):
    return [result(1.0, a=1.0, b=0.0, parse_error=code) for code in codes]


def made_up(results, text, answers=ANSWERS):
    """Report on made-up responses with this text."""
    return report_of(results, answers=[replace(a, text=text, made_up=True) for a in answers])


@pytest.mark.parametrize(
    ("codes", "text", "kind"),
    [
        # The cases: no truth can be read; one can; the reward does not say; real programs, not made
        # up.
        ((1, 1, 1, 0), "22", "notes"),
        ((0, 1, 1, 1), "22", "problems"),
        ((None,) * 4, "22", "problems"),
        ((None,) * 4, PROGRAMS, "notes"),
    ],
)
def test_a_reward_that_is_constant_for_made_up_responses_is_a_problem_or_a_note(codes, text, kind):
    report = made_up(alike(*codes), text)
    (complaint,) = [each for each in report["problems"] + report["notes"] if SAME in each]
    assert complaint in report[kind]
    assert SAME not in "".join(made_up(GOOD, text)["problems"])


NONE = "in no layout does the ground truth score more than every wrong response in half of"


def test_a_reward_that_does_not_prefer_the_truth_is_a_problem_or_a_note():
    first, second, third, fourth = GOOD
    notes = made_up([first, first, third, third], "22")["notes"]
    (note,) = [each for each in notes if NONE in each]
    assert note.startswith(
        f"{NONE} the rows. If no made-up response has the layout that the reward"
    )
    assert NONE not in "".join(made_up(GOOD, "22")["notes"])
    # Another row's truth gets the same score as the row's own truth.
    answers = [replace(a, kind="another row's") if a.kind == "empty" else a for a in ANSWERS]
    inverted = made_up([second, first, fourth, third], "22", answers)["problems"]
    assert inverted[0].startswith(
        f"the reward is inverted: another row's ground truth scores more; {NONE}"
    )
    assert made_up(GOOD, "22", answers)["problems"] == []


def test_the_score_must_follow_weights_and_conditions():
    # The score is 2 a + b if a is 1, else 2 a.
    pairs = [(1.0, 2.0), (0.0, 2.0), (1.0, -1.0), (0.0, -1.0)]
    scores = [4.0, 0.0, 1.0, 0.0]
    results = [result(score, a=a, b=b) for score, (a, b) in zip(scores, pairs, strict=True)]
    conditions = {"b": {"on": "a", "at_least": 1.0}}
    settings = {"gdpo_reward_weights": {"a": 2.0}, "gdpo": {"conditions": conditions}}
    report = report_of(results, **settings)
    assert report["problems"] == []
    # If the condition fails, b counts as 0, which is more than its smallest value.
    name = "algorithm.gdpo.conditions.b: 'b' can be"
    assert f"{name} -3, and it counts as 0 where 'a' fails" in "".join(report["notes"])
    unknown = report_of(results, declared=(Component("a"), Component("b")), **settings)
    assert f"{name} -1, " in "".join(unknown["notes"])


PENALTIES = [result(1.0 + b, a=1.0, b=b) for b in (0.0, -0.5, -1.0, 0.0)]


@pytest.mark.parametrize("ends", [(-1, 0), (None, 0), (None, None)])
def test_a_condition_on_a_penalty_is_a_problem_because_failing_avoids_the_penalty(ends):
    declared = (Component("a", 0, 1), Component("b", *ends))
    gdpo = {"conditions": {"b": {"on": "a", "at_least": 1.0}}}
    (problem,) = report_of(PENALTIES, declared=declared, gdpo=gdpo)["problems"]
    assert problem.startswith("algorithm.gdpo.conditions.b: 'b' ")
    assert "such as 1 + penalty" in problem


def test_criteria_that_every_or_no_response_meets_are_named():
    results = []
    for some, once in ((0, 1), (1, None), (0, None), (1, None)):
        rubric = {"easy": 1, "far": 0, "some": some, "once": once}
        results.append(result((1 + some + (once or 0)) / 4, rubric=rubric))
    notes = report_of(results, declared=(Component("rubric", by_criterion=True),))["notes"]
    found = [note for note in notes if note.startswith("'rubric': ")]
    assert "every response meets 1 of 4 criteria, which would teach nothing: easy. " in found[0]
    assert "no response meets 1 of 4 criteria, which would teach nothing: far. " in found[1]


def test_other_keys_and_optional_components_that_no_response_has_are_noted():
    (keys, _) = report_of(with_last(extra=1))["notes"]
    expected = "row 7 (empty): the keys ['a', 'b', 'extra', 'parse_error', 'score'] are not those"
    assert keys.startswith(expected)

    declared = (Component("a", 0, 1), Component("b", -3, 3, optional=True))
    report = report_of([result(1.0, a=1.0), result(0.0, a=0.0)] * 2, declared=declared)
    assert (report["problems"], report["notes"]) == ([], ["'b' is not scored in any response"])


def test_responses_of_a_policy_give_advice_capacity_and_forecast():
    answers = [CheckedAnswer(row, "sampled", "text", row) for row in range(40) for _ in range(16)]
    # For each prompt, half of the responses have a. Two of the forty prompts have one response with
    # b.
    results = []
    for place in range(len(answers)):
        a, b = float(place % 2), 2.0 * (place in (3, 100))
        results.append(result(a + b, 0.001, a=a, b=b))
    report = report_of(results, answers=answers)
    shown = report_text({"about": {}, **report})
    varies = "b                   1.2%     2.5%     5.0%"
    assert varies in shown
    assert "capacity at actor_rollout_ref.rollout.n=4: 0.9 of 2 rewards" in shown
    assert "push, 2 groups a step" in shown
    assert report["teaching"]["advice"] == []
    open_question = "Advice\n40 groups do not decide whether b rewards responses that fail a"
    assert shown.index(open_question) > shown.index(varies)
