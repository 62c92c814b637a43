"""The mathematics rewards: what is right, what cheats earn, what hangs."""

import time

import pytest

from gdpo_verl.rewards import math_length
from gdpo_verl.rewards.math_length import ParseError, compute_score, parse_ground_truth


def verdict(text, ground_truth="3", **kwargs):
    """Correctness and the code."""
    result = compute_score("", text, ground_truth, {"response_length": 1}, **kwargs)
    return result["correctness"], ParseError(result["parse_error"])


def boxed(answer):
    return f"So the answer is $\\boxed{{{answer}}}$."


# ---------------------------------------------------------------- correctness


def test_braces_inside_the_box_are_matched_and_escaped_ones_are_not():
    assert math_length._last_box(r"\boxed{\frac{1}{2}} }") == (r"\frac{1}{2}", 0)
    assert math_length._last_box(r"\boxed{\left\{ 1 \right.} }") == (r"\left\{ 1 \right.", 0)
    assert math_length._last_box(r"\boxed{1 \\} }") == (r"1 \\", 0)


UNIVERSAL = [
    "x=x", r"\text{True}", r"\frac{0}{0}", r"\emptyset", r"\mathbb{R}", "x", r"\infty", "0=0",
    "1=1", r"\{\}", "()", r"[-\infty,\infty]", r"x\in\mathbb{R}", r"\pm", r"x\ne x", "?", "*",
    r"\ldots", r"\text{}", "nan", "f(x)", "x_1", "x > -1", r"\begin{pmatrix}\end{pmatrix}",
]  # fmt: skip
GOLD = ["3", "-4", r"\frac12", "(1,2)", "[1,2)", r"\{1,2\}", "x+1", r"\text{Monday}", "x<2", r"\pi"]


@pytest.mark.parametrize("answer", UNIVERSAL)
def test_no_answer_is_right_everywhere(answer):
    assert sum(verdict(boxed(answer), gold)[0] for gold in GOLD) == 0


# ---------------------------------------------------------------- the ground truth


def test_a_ground_truth_on_which_math_verify_hangs_is_refused():
    with pytest.raises(ValueError, match=r"equal to itself.*parse_error: DEADLINE"):
        parse_ground_truth("(" * 4000, deadline=1.0)


# ---------------------------------------------------------------- what hangs

HANGS = [r"9^{9^{9^9}}", r"((10!)!)!", r"\int_0^1 \sin(x^x) \cos(x)^{x} dx", "(" * 4000]


@pytest.mark.parametrize("answer", HANGS, ids=lambda answer: answer[:12])
def test_an_answer_that_hangs_gets_the_minimum_at_the_deadline(answer):
    verdict(boxed("3"))  # a worker is there
    start = time.monotonic()
    assert verdict(boxed(answer), deadline=0.7) == (0.0, ParseError.DEADLINE)
    assert time.monotonic() - start < 60
    assert verdict(boxed("3")) == (1.0, ParseError.NONE)


UNITS = [
    r"3\text{ m}^{999999}", r"3\text{ m^9^9^9}", r"3\text{ (m^9)^9}", r"3\text{ 10^{10^{10}} m}",
    "3" + r"\text{ m}" * 1000, "3 " + "m/" * 4000, "3 m" + "^9" * 4000, r"3\text{" + "m s " * 2000,
    "3" + "°" * 9000, "3" + "²" * 9000, r"3\text{" + "½" * 4000, "3" + "€1" * 4000,
]  # fmt: skip


@pytest.mark.parametrize("answer", UNITS, ids=lambda answer: answer[:12])
def test_no_unit_hangs(answer):
    # It takes about 2 s; on a busy machine many times as long.
    assert verdict(boxed(answer), deadline=120.0)[1] is not ParseError.DEADLINE
    assert verdict(boxed("3")) == (1.0, ParseError.NONE)


def test_a_quantity_of_the_question_in_another_unit_is_no_answer():
    question = {"response_length": 1, "question": "Convert $0.5$ km to metres."}
    for answer, correct in ((r"0.5\text{ km}", 0), (r"500\text{ m}", 1), ("500", 1)):
        score = compute_score("", boxed(answer), r"500\text{ m}", question)
        assert score["correctness"] == correct, answer


def test_a_box_beyond_any_formula_is_counted_and_not_cut_off():
    assert verdict(boxed("0" * 10_000 + "3")) == (0.0, ParseError.TOO_LONG)
    assert verdict(boxed(" " * 9_000 + "3")) == (1.0, ParseError.NONE)
    assert verdict("3" * 1_000_000 + boxed("3")) == (1.0, ParseError.NONE)
