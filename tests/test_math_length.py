"""The mathematics rewards: what is right, what cheats earn, what hangs, any text, the clock."""

from __future__ import annotations

import itertools
import logging
import math
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from linear import assert_linear

from gdpo_verl.rewards import declared_components, length, math_length, parse_error
from gdpo_verl.rewards.math_length import ParseError, compute_score, parse_ground_truth

SHORT, LONG = {"response_length": 100}, {"response_length": 101}


def verdict(text: str, ground_truth: object = "3", **kwargs: float) -> tuple[float, ParseError]:
    """Correctness and the code."""
    result = compute_score("math", text, ground_truth, SHORT, limit=100, **kwargs)
    assert set(result) == {"score", "correctness", "length", "parse_error"}
    assert result["score"] == result["correctness"] + result["length"]
    assert result["correctness"] in (0.0, 1.0)
    assert result["length"] == float(result["parse_error"] != ParseError.GROUND_TRUTH)
    return result["correctness"], ParseError(result["parse_error"])


def boxed(answer: str) -> str:
    return f"So the answer is $\\boxed{{{answer}}}$."


def test_it_declares_its_components_and_their_ranges() -> None:
    declared = {c.name: (c.low, c.high) for c in declared_components(compute_score)}
    assert declared == {"correctness": (0, 1), "length": (0, 1)}


# ---------------------------------------------------------------- correctness


@pytest.mark.parametrize(
    ("ground_truth", "right", "wrong"),
    [
        pytest.param("3", "3.0", "30", id="numbers"),
        pytest.param("-3", r"x = -3", r"\pm 3", id="signs"),
        pytest.param("1,000", "1000", "1", id="commas"),
        pytest.param(r"\frac{1}{2}", "0.5", r"\frac{2}{1}", id="fractions"),
        pytest.param("1/2", r"\dfrac12", "12", id="fractions on a line"),
        pytest.param(r"\{1, 2\}", r"\left\{2, 1\right\}", r"\{1, 2, 3\}", id="sets"),
        pytest.param("[1, 2)", "[1,2)", "(1,2)", id="intervals"),
        pytest.param(r"(0, 2] \cup [3, \infty)", r"(0,2]\cup[3,\infty)", "(0,2]", id="unions"),
        pytest.param(r"\sqrt{8}", r"2\sqrt2", "8", id="roots"),
        pytest.param("x^2 - 1", "(x-1)(x+1)", "x^2+1", id="polynomials"),
        pytest.param(
            r"\begin{pmatrix}1\\2\end{pmatrix}",
            r"\begin{pmatrix}1\\2\end{pmatrix}",
            r"\begin{pmatrix}2\\1\end{pmatrix}",
            id="matrices",
        ),
        pytest.param(r"\text{Monday}", "Monday", r"\text{Tuesday}", id="words"),
        pytest.param(r"50\%", "50", "0.5", id="percent"),
        pytest.param(r"The sum is $3$, so \boxed{\sqrt{7}}.", r"\sqrt7", "3", id="a box"),
    ],
)
def test_equal_formulas_are_right(ground_truth: str, right: str, wrong: str) -> None:
    assert verdict(boxed(right), ground_truth) == (1.0, ParseError.NONE)
    assert verdict(boxed(wrong), ground_truth) == (0.0, ParseError.NONE)
    parse_ground_truth(ground_truth)


@pytest.mark.parametrize(
    ("text", "correctness", "code"),
    [
        pytest.param("3", 0, "NO_ANSWER", id="no box"),
        pytest.param("", 0, "NO_ANSWER", id="no text"),
        pytest.param(r"\boxed{}", 0, "UNREADABLE", id="an empty box"),
        pytest.param(r"\boxed{ }", 0, "UNREADABLE", id="a blank box"),
        pytest.param(r"\boxed{\frac}", 0, "UNREADABLE", id="no formula"),
        pytest.param(r"\boxed{3", 0, "UNCLOSED", id="an open box"),
        pytest.param(r"\boxed{3} or \boxed{4", 0, "UNCLOSED", id="the last box open"),
        pytest.param(r"\boxed{4} or \boxed{3}", 1, "NONE", id="two boxes: the last counts"),
        pytest.param(r"\boxed{3} or \boxed{4}", 0, "NONE", id="two boxes: not the first"),
        pytest.param(r"\boxed{4, \boxed{3}}", 1, "NONE", id="a box in a box: the inner one"),
        pytest.param(r"\boxed{3} as \boxed says", 1, "NONE", id="the word boxed"),
        pytest.param(r"\boxed {3}", 1, "NONE", id="a space before the brace"),
        pytest.param(r"\boxed{1, 2, 3, 4}", 0, "NONE", id="all candidates with commas"),
        pytest.param(r"\boxed{2 \text{ or } 3}", 0, "NONE", id="all candidates with or"),
        pytest.param(r"\boxed{x=2, x=3}", 0, "NONE", id="all candidates as equations"),
        pytest.param(r"\boxed{2 \quad 3}", 0, "NONE", id="all candidates side by side"),
        pytest.param(r"\boxed{[0, 9]}", 0, "NONE", id="an interval around it"),
        pytest.param(r"\boxed{\text{final answer is } $3$, $4$}", 0, "NONE", id="a sentence"),
    ],
)
def test_the_last_box_counts_and_holds_one_answer(text: str, correctness: int, code: str) -> None:
    assert verdict(text) == (correctness, ParseError[code])


def test_braces_inside_the_box_are_matched_and_escaped_ones_are_not() -> None:
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
def test_no_answer_is_right_everywhere(answer: str) -> None:
    assert sum(verdict(boxed(answer), gold)[0] for gold in GOLD) == 0


# ---------------------------------------------------------------- length


def test_length_is_one_up_to_the_limit() -> None:
    # The same wrong answer, 100 and 101 tokens long: whether it is right plays no part.
    within = compute_score("math", "?", "3", SHORT, limit=100)
    beyond = compute_score("math", "?", "3", LONG, limit=100)
    assert (within["length"], within["correctness"]) == (1.0, 0.0)
    assert (beyond["length"], beyond["correctness"]) == (0.0, 0.0)


def test_the_limit_is_the_papers_unless_set() -> None:
    for tokens, expected in ((4000, 1.0), (4001, 0.0)):
        info = {"response_length": tokens}
        assert compute_score("math", boxed("3"), "3", info)["length"] == expected


@pytest.mark.parametrize("extra_info", [None, {}, {"response_length": None}], ids=str)
def test_without_the_response_length_the_error_names_the_manager(extra_info: dict | None) -> None:
    with pytest.raises(ValueError, match=r"reward\.reward_manager\.name=gdpo_components"):
        compute_score("math", boxed("3"), "3", extra_info)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *itertools.product(["limit", "deadline"], [0, -1, None, "4000", True, math.nan]),
        ("deadline", math.inf),
    ],
)
def test_a_limit_that_is_no_positive_number_is_refused_by_its_key(key: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"custom_reward_function\.reward_kwargs\.{key}: "):
        compute_score("math", boxed("3"), "3", SHORT, **{key: value})


def test_the_length_reward_is_the_one_that_other_tasks_use() -> None:
    assert math_length.length_reward is length.length_reward


# ---------------------------------------------------------------- the ground truth


@pytest.mark.parametrize(
    "ground_truth",
    ["", r"\frac{", r"\boxed{3", "@#", "9" * 10_001, None, 3],
    ids=["nothing", "no formula", "an open box", "signs", "too long", "None", "a number"],
)
def test_a_malformed_ground_truth_is_refused_and_in_training_counted_and_said_once(
    ground_truth: object, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match=r"^ground_truth: "):
        parse_ground_truth(ground_truth)  # type: ignore[arg-type]
    monkeypatch.setattr(parse_error, "_warned", set())
    with caplog.at_level(logging.WARNING):
        for answer in ("3", "3", str(ground_truth)[:100].replace("{", "")):
            assert verdict(boxed(answer), ground_truth) == (0.0, ParseError.GROUND_TRUTH)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "math_length" in caplog.text


def test_a_ground_truth_on_which_math_verify_hangs_is_refused() -> None:
    with pytest.raises(ValueError, match=r"cannot compare answers with it \(DEADLINE\)"):
        parse_ground_truth("(" * 4000, deadline=1.0)


# ---------------------------------------------------------------- what hangs

HANGS = [r"9^{9^{9^9}}", r"((10!)!)!", r"\int_0^1 \sin(x^x) \cos(x)^{x} dx", "(" * 4000]


@pytest.mark.parametrize("answer", HANGS, ids=lambda answer: answer[:12])
def test_an_answer_that_hangs_gets_the_minimum_at_the_deadline(answer: str) -> None:
    verdict(boxed("3"))  # a worker is there
    start = time.monotonic()
    assert verdict(boxed(answer), deadline=0.7) == (0.0, ParseError.DEADLINE)
    assert time.monotonic() - start < 5
    assert verdict(boxed("3")) == (1.0, ParseError.NONE)


def test_a_box_beyond_any_formula_is_counted_and_not_cut_off() -> None:
    assert verdict(boxed("0" * 10_000 + "3")) == (0.0, ParseError.TOO_LONG)
    assert verdict(boxed(" " * 9_000 + "3")) == (1.0, ParseError.NONE)
    assert verdict("3" * 1_000_000 + boxed("3")) == (1.0, ParseError.NONE)


# ---------------------------------------------------------------- any text

PIECES = [r"\boxed{", "}", "{", r"\frac", "3", "x", r"\}", "\\", "^", "=", ",", r"\text{", "$", "é"]


@settings(max_examples=150, deadline=None)
@given(st.text(st.characters()), st.text())
def test_any_text_gives_the_declared_keys_in_range(text: str, ground_truth: str) -> None:
    verdict(text, ground_truth, deadline=2.0)
    verdict(boxed(text), "3", deadline=2.0)
    verdict(boxed("3"), text, deadline=2.0)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_near_valid_text_gives_the_declared_keys_in_range(text: str) -> None:
    verdict(text, "3", deadline=2.0)
    verdict(boxed(text), "3", deadline=2.0)
    verdict(boxed("3"), text, deadline=2.0)


# ---------------------------------------------------------------- on the clock


def filled(unit: str, start: str = "", end: str = ""):
    return lambda size: start + unit * ((size - len(start) - len(end)) // len(unit)) + end


WORST = {
    "open boxes": filled(r"\boxed{"),
    "open boxes in a box": filled(r"\boxed{", "", "}"),
    "nested boxes": lambda size: r"\boxed{" * (size // 8) + "3" + "}" * (size // 8),
    "boxes": filled(r"\boxed{3} "),
    "words boxed": filled(r"\boxed"),
    "boxed and spaces": filled(" ", r"\boxed{3}\boxed", "x"),
    "braces": filled("{", r"\boxed{"),
    "pairs of braces": filled("{}", r"\boxed{", "}"),
    "backslashes": filled("\\", r"\boxed{", "}"),
    "digits in the box": filled("9", r"\boxed{", "}"),
    "lone surrogates": filled("\ud800", r"\boxed{", "}"),
    "NUL": filled("\0", r"\boxed{", "}"),
}


@pytest.mark.parametrize("text", WORST.values(), ids=WORST.keys())
def test_the_time_is_linear_in_the_text(text) -> None:
    assert_linear(lambda answer: verdict(answer, deadline=1.0), text)
