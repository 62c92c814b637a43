"""The mathematics rewards: what is right, what cheats earn, what hangs, the clock."""

from __future__ import annotations

import time

import pytest
from linear import assert_linear, filled, long, seconds

from gdpo_verl.rewards import math_form, math_length
from gdpo_verl.rewards.math_length import ParseError, compute_score, parse_ground_truth


def verdict(text, ground_truth="3", question=None, **kwargs):
    """Correctness and the code."""
    info = {"response_length": 100, "question": question}
    result = compute_score("math", text, ground_truth, info, limit=100, **kwargs)
    return result["correctness"], ParseError(result["parse_error"])


def boxed(answer):
    return f"So the answer is $\\boxed{{{answer}}}$."


# ---------------------------------------------------------------- correctness


@pytest.mark.parametrize(
    ("text", "correctness", "code"),
    [
        pytest.param("3", 0, "NO_ANSWER", id="no box"),
        pytest.param(r"\boxed{}", 0, "UNREADABLE", id="an empty box"),
        pytest.param(r"\boxed{\frac}", 0, "UNREADABLE", id="no formula"),
        pytest.param(r"\boxed{3", 0, "UNCLOSED", id="an open box"),
        pytest.param(r"\boxed{4} or \boxed{3}", 1, "NONE", id="two boxes: the last counts"),
        pytest.param(r"\boxed{4, \boxed{3}}", 1, "NONE", id="a box in a box: the inner one"),
        pytest.param(r"\boxed{3} as \boxed says", 1, "NONE", id="the word boxed"),
        pytest.param(r"\boxed {3}", 1, "NONE", id="a space before the brace"),
        pytest.param(r"$\boxed 3$", 1, "NONE", id="no braces"),
        pytest.param(r"So \boxed 3.", 1, "NONE", id="no braces and no formula"),
        pytest.param(r"\fbox{3}", 1, "NONE", id="another box"),
        pytest.param(r"\boxed{1, 2, 3, 4}", 0, "NONE", id="all candidates with commas"),
        pytest.param(r"\boxed{2 \text{ or } 3}", 0, "NONE", id="all candidates with or"),
        pytest.param(r"\boxed{[0, 9]}", 0, "NONE", id="an interval around it"),
    ],
)
def test_the_last_box_counts_and_holds_one_answer(text, correctness, code):
    assert verdict(text) == (correctness, ParseError[code])


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


@pytest.mark.parametrize(
    ("text", "strict", "code"),
    [
        pytest.param(r"<think>maybe \boxed{3}", 0, "UNCLOSED", id="an unfinished thought"),
        pytest.param(r"<think>\boxed{3}</think> It is 4.", 0, "NO_ANSWER", id="in the thought"),
        pytest.param(r"<think>\boxed{4}</think> \boxed{3}", 1, "NONE", id="behind the thought"),
        pytest.param(r"or \boxed{4}</think> \boxed{3}", 1, "NONE", id="a thought of the template"),
        pytest.param(r"</think> \boxed{3} <think> or", 0, "UNCLOSED", id="thinking again"),
    ],
)
def test_the_box_stands_behind_the_thought(text, strict, code):
    assert verdict(text) == (strict, ParseError[code])
    assert verdict(text, strict=False) == (1.0, ParseError.NONE)


# What a ground truth is, and what a person writes for it: each is right.
RIGHT = [
    ("3", "3.0"), ("1,000", "1000"), ("1/2", r"\dfrac12"), (r"\{1, 2\}", r"\left\{2, 1\right\}"),
    (r"(0, 2] \cup [3, \infty)", r"(0,2]\cup[3,\infty)"), (r"\sqrt{8}", r"2\sqrt2"),
    ("x^2 - 1", "(x-1)(x+1)"), (r"\text{Monday}", "Monday"), (r"50\%", "50"),
    (r"The sum is $3$, so \boxed{\sqrt{7}}.", r"\sqrt7"),
    # No plain numbers, whatever their spelling.
    (r"\text{(C)}", "C"), (r"\frac12x", r"\frac x2"), ("2x", r"2\cdot x"), ("x+y=1", "y=1-x"),
    ("2x+3y-z-3=0", "z=2x+3y-3"), (r"3\pi", r"\pi\cdot3"), (r"2\sqrt2", r"\sqrt8"), ("3x", "x+2x"),
    ("x^2-1", "(x-1)(x+1)"), (r"\frac{1}{2^{100}}", "2^{-100}"), ("2^{10}", "1024"), ("5!", "120"),
    # Plain numbers in any spelling.
    ("15", "{15}"), ("-3", "−3"), (r"-\frac34", r"\frac3{-4}"), ("5", r"5\ \text{m s}^{-1}"),
    (r"(-\infty,\infty)", r"\mathbb{R}"), ("15", r"15~\text{cm}"), (r"\frac54", "1 1/4"),
    (r"\sqrt{12}", "√12"), ("100000", "1e5"), ("0.001", "1e-3"), ("1000000", "10^6"),
    ("5", r"\mathbf{5}"), ("5", r"\text{5}"), ("5", r"x = 5"), ("5", r"5\text{ cm}"),
    ("5", r"5 \text{ cm}^2"), ("5", r"\$5"), ("20", r"20^{\circ}"), ("1000", "1,000"),
    (r"\frac12", ".5"), ("0.5", r"\frac{2}{4}"), (r"\frac{5}{4}", r"1\frac{1}{4}"),
    ("45000", r"4.5 \times 10^{4}"), (r"\frac35", "3/5"), ("[0,3)", r"[0, 3)"),
    ("(1,2)", r"\left(1, 2\right)"), (r"\{1,2\}", "1, 2"), ("1,2", r"2 \text{ and } 1"),
    (r"\begin{pmatrix} \frac15 \\ -1 \end{pmatrix}", r"\begin{bmatrix} 1/5 \\ -1 \end{bmatrix}"),
    # The left-hand side is what was asked for, and d a variable.
    ("2x+2", "f'(x)=2(x+1)"), ("x^2+C", r"\int 2x\,dx=C+x^2"), (r"2\sqrt2", r"A'B'=\sqrt8"),
    (r"\frac{1+d}2", r"\frac{d+1}2"), ("5", r"\int_0^5 dx = 5"), ("10", r"\sum_{i=1}^4 i=10"),
    ("10", "1+2+3+4=10"), ("2x", r"\frac{dy}{dx}=2x"),
    ("x+y=1", "2x+2y=2"), ("x^2+y^2=25", "x^2+y^2-25=0"), ("3x-4y+7=0", "3x-4y=-7"),
    ("15", "f(3)=9+6=15"), ("15", r"P(3)=3\cdot5=15"), ("15", r"1+2+3+4+5=\frac{5\cdot6}2=15"),
    (r"\log_2 3", r"\log_2(3)"), (r"\sin^2(1)", r"\sin^2 1"), ("2e-1", "-1+2e"),
    (r"\frac{\sqrt3}{2}", r"\frac{√3}{2}"), (r"\frac54", r"1\ 1/4"), (r"\sqrt{x+1}", "√{x+1}"),
    # The ground truth holds the operator itself.
    (r"\binom{n}{2}", r"\dbinom{n}{2}"), (r"\binom{n}{2}", r"\binom{n}{n-2}"),
    (r"\binom{n}{2}", r"\frac{n(n-1)}2"),
    (r"\frac{1}{2004!}", r"\frac{1}{2004!}"),
    # Letters, and numbers below math-verify's tolerance.
    ("CAB", "CAB"), (r"\angle ABC", r"\angle CBA"), ("AB", "BA"), ("xy", "yx"),
    (r"\triangle ABC", r"\triangle CAB"), ("10^{-9}", "10^{-9}"), ("0", "-0"),
    (r"1.5\times10^{-8}", r"1.5\times 10^{-8}"),
    # What stands behind it, repeating decimals, the empty set.
    ("42", "42."), ("5", "5,"), ("5", r"5\,"), (r"\frac13", r"0.\overline{3}"),
    (r"-\frac{7}{30}", r"-0.2\overline{3}"), (r"0.\overline{142857}", r"\frac17"),
    (r"\emptyset", r"\varnothing"), (r"\varnothing", r"\emptyset"),
    # A list, and thousands.
    ("12345", r"12,\!345"), (r"\frac{12}{5,\!525}", r"\frac{12}{5525}"),
    ("1000000", r"1\,000\,000"), (r"(5, 125)", r"(5,\,125)"),
    ("5, 125", "5,125"), (r"5,\;125", "5,125"), ("5125", "5,125"), ("1, 100, 250", "1,100,250"),
    ("(5,125)", "(5, 125)"),
    # Units: left out, in other words, several.
    (r"5\text{ cm}", "5"), (r"5\text{ cm}", r"5\,\mathrm{cm}"), (r"5\text{ cm}", "5 cm"),
    ("5", "5 m"),
    (r"5\text{ cm}", r"5\text{ centimeters}"), (r"5 \mathrm{~cm}^{2}", r"5\text{ square cm}"),
    (r"60\text{ mph}", r"60\text{ miles per hour}"), (r"3\text{ hours}", r"3\mathrm{~hr}"),
    (r"13 / 20 \mathrm{ft} / \mathrm{s}", r"\frac{13}{20}\text{ feet per second}"),
    (r"2450 \pi \mathrm{N}-\mathrm{m}", r"2450\pi"), ("12", "12 students"),
    (r"7\text{ a.m.}", r"7\text{ AM}"),
    (r"2\text{ hours }30\text{ minutes}", r"2\text{ h and }30\text{ min}"),
    (r"3\text{ boys}, 4\text{ girls}", r"4\text{ girls and }3\text{ boys}"),
    ("6", r"6\text{ years old}"),
    (r"30 \mathrm{mph}, 40 \mathrm{mph}", r"40, 30"), (r"(3\text{ cm}, 4\text{ cm})", "(3, 4)"),
    (r"V=5 \mathrm{~cm}^{3}", "5"), (r"1.2\text{ million}", "1200000"),
    ("3000", r"3\text{ thousand}"),
    (r"\$25", r"25\text{ dollars}"), (r"\$3, \$4", "3, 4"), (r"25\%", r"25\text{ percent}"),
    (r"20\%, 30\%", "20, 30"), (r"\text{A} \text{ and } \text{B}", r"\text{A}, \text{B}"),
    # Vectors, angles, capitals.
    (r"\mathbf{i}+2\mathbf{j}", r"2\mathbf{j}+\mathbf{i}"), (r"2\mathbf{i}-3\mathbf{k}", "2i-3k"),
    (r"3\mathrm{i}+4", "4+3i"), (r"x\mathrm{e}^{x}", "xe^x"), (r"\sin 30^\circ", r"\frac{1}{2}"),
    (r"\cos 20^{\circ}", r"\sin 70^\circ"), (r"30^\circ", r"30\text{ degrees}"),
    (r"\pi(R^2-r^2)", r"\pi R^2-\pi r^2"), (r"\text{YES}", r"\text{Yes}"), ("x^2+C", "x^2+c"),
    # Equations, and values with a name.
    ("f(2)=7", "7"), ("f(2)=7", "f(2)=7.0"), ("7", "f(2)=7"), ("I=5", "5"),
    ("f(3)=4+5=9", "f(3)=9"),
    (r"\log_{5}(625)=4", r"4=\log_5 625"), ("3^2+4^2=5^2", "4^2+3^2=5^2"),
    ("A=\\{1,2\\}", r"\{2,1\}"),
    ("x^2-2x+10=0", "2x^2+20=4x"), ("y=2x+1", "2x-y+1=0"), ("x^2+1=0", "-x^2-1=0"),
    ("x=3, y=-2", "(3,-2)"), ("x=3, y=-2", "3, -2"), ("(4,7)", "y=7, x=4"), ("x=2, x=3", "3, 2"),
    (r"x=1\text{ and }y=2", "(1,2)"), ("x_1=2, x_2=3", "3, 2"),
    ("f(1)=2, f(2)=3", "f(2)=3, f(1)=2"),
]  # fmt: skip
WRONG = [
    ("3", "30"), ("-3", r"\pm 3"), ("1,000", "1"), (r"\frac12", r"\frac21"), ("1/2", "12"),
    (r"\{1,2\}", r"\{1,2,3\}"), (r"(0,2]\cup[3,\infty)", "(0,2]"), (r"\sqrt8", "8"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}2\\1\end{pmatrix}"), (r"50\%", "0.5"),
    ("x^2 - 1", "x^2+1"), (r"\text{Monday}", r"\text{Tuesday}"), (r"3, so \boxed{\sqrt7}.", "3"),
    (
        r"y=t\begin{pmatrix}1\\2\end{pmatrix}+\begin{pmatrix}1\\2\end{pmatrix}",
        r"y=t\begin{pmatrix}1\\2\end{pmatrix}+\begin{pmatrix}1\\3\end{pmatrix}",
    ),
]  # fmt: skip
# A fragment, another unit, another letter, another equation.
OTHER = [
    (r"2\mathbf{i}-3\mathbf{k}", r"2\mathbf{i}+3\mathbf{k}"), (r"2\mathbf{i}-3\mathbf{k}", "2"),
    (r"2\text{ hours }30\text{ minutes}", r"2\text{ hours}"), (r"1.2\text{ million}", "1.2"),
    (r"2\text{ hours }30\text{ minutes}", r"30\text{ hours }2\text{ minutes}"), ("2ab", "2"),
    (r"3\text{ boys}, 4\text{ girls}", r"3\text{ boys}, 5\text{ girls}"), (r"2\pi h", r"2\pi"),
    (r"3\text{ boys}, 4\text{ girls}", r"4\text{ boys}, 3\text{ girls}"), ("3t", "3"),
    (r"30 \mathrm{mph}, 40 \mathrm{mph}", "30"), (r"30 \mathrm{mph}, 40 \mathrm{mph}", "30, 50"),
    (r"4 \mathrm{ft} \times 12 \mathrm{ft}", r"6\text{ ft} \times 8\text{ ft}"),
    (r"2\mathrm{e}", "2"),
    (r"5\text{ cm}", r"5\text{ m}"), (r"5\text{ cm}", r"5\text{ cm}^2"), ("5 cm", "5 m"),
    (r"60\text{ mph}", r"60\text{ km/h}"), (r"5\text{ m/s}", r"5\text{ m}"),
    (r"\$25", r"25\text{ cents}"),
    (r"3\text{ a.m.}", r"3\text{ p.m.}"), (r"37^\circ\text{C}", r"37^\circ\text{F}"),
    ("1.2", r"1.2\text{ billion}"),
    (r"8\text{ boys}", r"8\text{ girls}"),
    (r"(3\text{ cm}, 4\text{ cm})", r"(3\text{ cm}, 5\text{ cm})"),
    (r"3\text{ R }2", r"3\text{ R }1"), (r"2x\text{ if }x>0", r"2x\text{ if }x<0"),
    (r"20\%, 30\%", "20, 40"), ("3", r"3\text{ or maybe 4}"),
    ("x", "X"), (r"\pi(R^2-r^2)", "0"), ("A+a", "2a"), ("A_1", "a_1"), ("x^3+C", "x^3"),
    ("F(x)", "f(x)"),
    (r"\log_{5}(625)=4", r"\log_{5}(625)=5"), (r"\log_{5}(625)=4", "1=0"), (r"\log_5 625=4", "4=4"),
    ("5^4=625", "5^3=125"), ("3^2+4^2=5^2", "3^2+4^2=6^2"), ("3^2+4^2=5^2", "5^2+12^2=13^2"),
    ("I=5", "I=6"), ("e=3", "e=4"), ("f(2)=7", "f(2)=8"), ("f(2)=7", "f(3)=7"),
    ("f(3)=4+5=9", "f(3)=10"),
    ("x^2-2x+10=0", "x^2-2x+10=1"), ("x^2+1=0", "x^4+1=0"), ("|x|=-1", "|x|=-2"),
    (r"\sin^2x+\cos^2x=1", "x=x"), ("f(1)=2, f(2)=3", "f(1)=3, f(2)=2"), ("I=5, V=3", "I=5, V=4"),
    ("x=3, y=-2", "(-2,3)"), ("x=3, y=-2", "-2, 3"), ("(4,7)", "y=4, x=7"),
    ("x=1, y=2, z=3", "(3,2,1)"),
    (r"\operatorname{Cov}(Z,W)=0, x=5", "5"), (r"\sin 20^\circ", r"\sin 20"),
]  # fmt: skip
# Right by value for math-verify, and no answer.
UNEVALUATED = [
    ("5", r"\int_{0}^{2} \int_{0}^{1}(x+2) d x d y"), ("5", "2(3)"), ("6", "2(3)"),
    ("120", r"\binom{10}{3}"), ("120", r"{10 \choose 3}"), ("120", "5!"), ("6", r"\gcd(12,18)"),
    ("32", "2^5"), ("15", "x=15=10+5"),
    ("2", r"\sqrt{4}"), ("2", "√4"), ("6", "(2)(3)"), ("6", r"2 \cdot 3"),
    ("5", "2+3"), ("5", r"x = 2 + 3"), ("3", "|-3|"), ("5", r"\log_2 32"), ("5", r"\max(3,5)"),
    ("-2", r"\begin{vmatrix}1&2\\3&4\end{vmatrix}"), ("0", r"\sin 0"), (r"\{3,7\}", r"\{1+2,7\}"),
    ("-2", r"\det \begin{pmatrix}1&2\\3&4\end{pmatrix}"), ("10", r"S=\sum_{i=1}^4 i"),
    (r"\begin{pmatrix}2\\4\end{pmatrix}", r"2\begin{pmatrix}1\\2\end{pmatrix}"),
    ("(3, 7)", "(1+2, 3+4)"), ("[0,3)", "[0,1+2)"),
    ("2x+1", r"\frac{d}{dx}(x^2+x)"), ("2x", r"\frac{\mathrm{d}}{\mathrm{d}x} x^2"),
    ("2x", r"f'(x)=\frac{d}{dx}x^2"), (r"\frac{x^2}2", r"\int x\,dx"),
    (r"\frac{n(n-1)}2", r"\binom{n}{2}"), ("n!", r"\prod_{i=1}^n i"), ("x", r"\lim_{h\to0}(x+h)"),
]  # fmt: skip
# Another formula, which math-verify takes for the same.
DIFFERENT = [
    ("CAB", "ABC"), (r"\angle ABC", r"\angle BAC"), (r"\frac{1}{2^{100}}", r"\frac1{2^{101}}"),
    ("0.0000001", "0.0000002"), ("4210_5", "4210_6"), ("4210_{5}", "4210_{10}"),
]  # fmt: skip


@pytest.mark.parametrize(("ground_truth", "answer"), RIGHT)
def test_a_right_answer_is_paid_in_any_spelling(ground_truth, answer):
    parse_ground_truth(ground_truth)
    for strict in (True, False):
        paid = verdict(boxed(answer), ground_truth, strict=strict)
        assert paid == (1.0, ParseError.NONE)


@pytest.mark.parametrize(("ground_truth", "answer"), WRONG)
def test_another_formula_is_wrong(ground_truth, answer):
    assert verdict(boxed(answer), ground_truth) == (0.0, ParseError.NONE)


@pytest.mark.parametrize(("ground_truth", "answer"), OTHER)
def test_a_part_and_another_unit_letter_or_equation_are_wrong(ground_truth, answer):
    for strict in (True, False):
        assert verdict(boxed(answer), ground_truth, strict=strict)[0] == 0


@pytest.mark.parametrize(("ground_truth", "answer"), UNEVALUATED)
def test_what_is_still_to_be_evaluated_is_no_answer(ground_truth, answer):
    assert verdict(boxed(answer), ground_truth)[0] == 0
    assert verdict(boxed(answer), answer) == (1.0, ParseError.NONE)  # where it was asked for


@pytest.mark.parametrize(("ground_truth", "answer"), DIFFERENT)
def test_another_letter_or_number_is_wrong(ground_truth, answer):
    assert verdict(boxed(answer), ground_truth) == (0.0, ParseError.NONE)
    assert verdict(boxed(answer), ground_truth, strict=False) == (1.0, ParseError.NONE)


def test_the_lenient_verdict_is_math_verifys():
    echo = boxed(r"\int_{0}^{2} \int_{0}^{1}(x+2) d x d y")
    assert verdict(echo, "5") == (0.0, ParseError.NOT_EVALUATED)
    assert verdict(echo, "5", strict=False) == (1.0, ParseError.NONE)


@pytest.mark.parametrize(
    ("question", "ground_truth", "echo", "answer"),
    [
        ("Factor $x^2 - 4$.", "(x-2)(x+2)", "x^2-4", "(x+2)(x-2)"),
        (r"Simplify $\frac{84}{144}$.", r"\frac{7}{12}", r"\dfrac{84}{144}", "7/12"),
        (r"Simplify $\sqrt{50}$ for $y$.", r"5\sqrt{2}", r"y = \sqrt{50}", r"y = 5\sqrt2"),
        (r"Express $0.1\overline{7}$ as one.", r"\frac{8}{45}", r"0.1\overline{7}", "8/45"),
        (r"Convert $\frac{57}{160}$ to a decimal.", "0.35625", r"\frac{57}{160}", "y=.35625"),
        (r"\begin{align*}y&=\sqrt{50}\\z&=1\end{align*}", r"5\sqrt2", r"\sqrt{50}", r"5\sqrt{2}"),
        (r"\begin{align*}y=\sqrt{50}\end{align*} is?", r"5\sqrt2", r"\sqrt{50}", r"5\sqrt{2}"),
        (r"Expand $(x+1)(x-1) \text{ for } x>0$.", "x^2-1", "(x+1)(x-1)", "y=x^2-1"),
        ("Factor $x^2 - 4$.", "(x-2)(x+2)", "(x^2-4)", r"(x-2)\cdot(x+2)"),
        ("Factor $x^2 - 4$.", "(x-2)(x+2)", r"\{x^2-4\}", "(x-2)(2+x)"),
        ("Factor $x^2 - 4$.", "(x-2)(x+2)", r"x^2-4\text{ cm}", r"(x-2)(x+2)\text{ cm}"),
    ],
)
def test_a_formula_of_the_question_is_no_answer_where_the_question_is_known(
    question, ground_truth, echo, answer
):
    assert verdict(boxed(echo), ground_truth) == (1.0, ParseError.NONE)
    assert verdict(boxed(echo), ground_truth, question) == (0.0, ParseError.NOT_EVALUATED)
    assert verdict(boxed(answer), ground_truth, question) == (1.0, ParseError.NONE)
    # The ground truth is an answer wherever else it stands, and so is a number.
    assert verdict(boxed(ground_truth), ground_truth, f"{question} ${ground_truth}$")[0] == 1
    assert verdict(boxed("0.5"), r"\frac12", "Is $0.5$ or $0.25$ more?")[0] == 1
    assert verdict(boxed("x=2"), "2", "Is $x=2$ or $x=3$?")[0] == 1
    # A part of a formula is none of the question's.
    assert verdict(boxed("2x+2"), "2(x+1)", "Derive $f(x)=x^2+2x+2$.")[0] == 1


# ---------------------------------------------------------------- the ground truth


def test_a_ground_truth_on_which_math_verify_hangs_is_refused():
    with pytest.raises(ValueError, match="cannot compare answers with it: it gave no verdict"):
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


def test_a_box_beyond_any_formula_is_counted_and_not_cut_off():
    assert verdict(boxed("0" * 10_000 + "3")) == (0.0, ParseError.TOO_LONG)
    assert verdict(boxed(" " * 9_000 + "3")) == (1.0, ParseError.NONE)
    assert verdict("3" * 1_000_000 + boxed("3")) == (1.0, ParseError.NONE)


# ---------------------------------------------------------------- on the clock


WORST = {
    "open boxes": filled(r"\boxed{"),
    "nested boxes": lambda size: r"\boxed{" * (size // 8) + "3" + "}" * (size // 8),
    "boxed and spaces": filled(" ", r"\boxed{3}\boxed", "x"),
    "braces": filled("{", r"\boxed{"),
    "backslashes": filled("\\", r"\boxed{", "}"),
    "digits in the box": filled("9", r"\boxed{", "}"),
}


@pytest.mark.parametrize(
    "unit",
    [
        *("9", "9,", "0.", " ", "9 ", "=", "=9", "{", "}", "(", r"\text{", "^ ", "_ ", r"\frac"),
        *(".", "a", r"0.3\bar ", "9_", r"\, ", "$", r"\\", "9/9", r"9\frac99", "x+", "{,}", "√ "),
        *(r"\text{9", "A", "9e9", "(9)", "10^{9"),
        *("9 cm", r"9\text{ cm}", r"\text{a}", "9 apples ", r"=\text{a}=", r"9\$"),
    ],
)
def test_the_form_of_the_longest_box_takes_no_time(unit):
    for end in ("", "!", "9", "}"):
        answer = unit * (math_length.LONGEST // len(unit)) + end

        def look(answer=answer):
            latex = math_form.tidied(answer)
            math_form.without_unit(latex, latex)
            math_form.as_list("5, 6", answer)
            math_form.differ("1_2", answer)
            math_form.differ("CAB", answer)

        assert seconds(look) < long()


@pytest.mark.parametrize("text", WORST.values(), ids=WORST.keys())
def test_the_time_is_linear_in_the_text(text):
    assert_linear(lambda answer: verdict(answer, deadline=1.0), text)
