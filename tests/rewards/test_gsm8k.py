"""The GSM8K rewards: by hand, strict against published, on the clock."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from linear import assert_linear, filled

from gdpo_verl.rewards.gsm8k import ParseError, compute_score

THOUGHT = "<think>6 times 7</think>"


def tagged(answer: str) -> str:
    return f"{THOUGHT}\n<answer>{answer}</answer>"


def verdict(text: str, ground_truth: object = "42", strict: bool = True) -> tuple:
    """(correctness, integer, format), and the code."""
    result = compute_score("gsm8k", text, ground_truth, strict=strict)
    components = result["correctness"], result["integer"], result["format"]
    return components, ParseError(result["parse_error"])


# ---------------------------------------------------------------- worked by hand


@pytest.mark.parametrize("strict", [True, False], ids=["strict", "published"])
def test_the_plain_answer_earns_everything(strict):
    assert verdict(tagged("42"), strict=strict) == ((1, 1, 1), ParseError.NONE)
    assert verdict(tagged(" 42\n"), "So 6 · 7 = 42.\n#### 42", strict) == ((1, 1, 1), 0)
    assert verdict(tagged("41"), strict=strict) == ((0, 1, 1), ParseError.NONE)


# A ground truth, (correctness, integer) under the mended and under the published rules, and answers
# that earn it.
ANSWERS = [
    ("1,000", (1, 1), (1, 0), ["1,000"]),
    ("1,000", (1, 1), (0, 1), ["1000"]),
    ("1000", (1, 1), (0, 0), ["1,000"]),
    ("100", (0, 0), (0, 0), ["1,00"]),
    ("-3", (1, 1), (1, 0), ["-3"]),
    ("-3", (1, 1), (0, 0), ["−3"]),  # the typographic minus
    ("7", (1, 1), (0, 0), ["+7"]),
    ("7", (1, 1), (0, 1), ["007"]),
    ("0", (1, 1), (0, 0), ["-0", ".0"]),
    ("42.5", (1, 0), (0, 0), ["42.50"]),
    ("0.5", (1, 0), (0, 0), [".5"]),
    ("-1042.5", (1, 0), (0, 0), ["-$1,042.50"]),
    ("-42", (1, 1), (0, 0), ["$-42"]),
    ("42", (1, 1), (0, 0), ["42.0", "42.", "**42**", "**42.**", "**$\\boxed{\\$42}$**."]),
    ("42", (1, 1), (0, 0), ["$42", "42 €", "\\$42", "42%", "42\\%", "$42$", "$$42$$"]),
    ("42", (1, 1), (0, 0), ["\\(42\\)", "\\[\n42\n\\]", "\\boxed{42}"]),
    ("42", (1, 1), (0, 0), ["\\text{42}", "$\\mathbf{42}$", "\\boxed{\\text{$42}}"]),
    # Digits of other kinds.
    ("2", (0, 0), (0, 1), ["²"]),
    ("42", (0, 0), (0, 1), ["٤٢"]),
    # No number, several, and what is still to be worked out.
    ("0", (0, 0), (0, 0), [".", "", "$"]),
    ("42", (0, 0), (0, 0), ["", "\\boxed{}", "4.2.", ",042", "4 2", "$4$2", "41 42 43"]),
    ("42", (0, 0), (0, 0), ["84/2", "x = 42", "42 eggs"]),
]


@pytest.mark.parametrize(
    ("answer", "truth", "strict", "published"),
    [(answer, *earned) for *earned, answers in ANSWERS for answer in answers],
)
def test_answers_are_numbers(answer, truth, strict, published):
    assert verdict(tagged(answer), truth)[0][:2] == strict
    assert verdict(tagged(answer), truth, strict=False)[0][:2] == published


@pytest.mark.parametrize(
    ("text", "strict", "code", "published"),
    [
        # (correctness, integer, format)
        ("42", (0, 0, 0), "NO_ANSWER", (1, 1, 0)),
        ("<think>It is <answer>42</answer></think>", (0, 0, 0), "NO_ANSWER", (1, 1, 0)),
        ("<think>42 <answer>42</answer>", (0, 0, 0), "UNCLOSED", (1, 1, 0)),
        (f"{THOUGHT}\n<answer>42", (0, 0, 0), "UNCLOSED", (1, 1, 0)),
        (tagged(" "), (0, 0, 0), "UNREADABLE", (0, 0, 1)),
        (tagged("six"), (0, 0, 1), "UNREADABLE", (0, 0, 1)),
        ("<answer>42</answer>", (1, 1, 0), "NONE", (1, 1, 0)),
        (f"{tagged('41')}<answer>42</answer>", (1, 1, 0), "NONE", (1, 1, 0)),  # the last counts
        (f"{THOUGHT}<answer>42</answer>", (1, 1, 0), "NONE", (1, 1, 0)),
        ("<think> </think>\n<answer>42</answer>", (1, 1, 0), "NONE", (1, 1, 1)),
        (f"<think>a</think> So. {tagged('42')}", (1, 1, 1), "NONE", (1, 1, 1)),
        ("<think>I write <answer>.</think>\n<answer>42</answer>", (1, 1, 1), "NONE", (1, 1, 0)),
        (f"{THOUGHT} \n<answer>42</answer>", (1, 1, 1), "NONE", (1, 1, 0)),
        # Published, $ matches before a newline that ends the text.
        (tagged("42") + "\n", (1, 1, 1), "NONE", (1, 1, 1)),
        (tagged("42") + "<|im_end|>", (1, 1, 1), "NONE", (1, 1, 0)),
    ],
)
def test_shapes_are_read_and_scored(text, strict, code, published):
    assert verdict(text) == (strict, ParseError[code])
    assert verdict(text, strict=False)[0] == published


def test_the_published_rules_say_why_an_answer_is_no_number():
    codes = {
        tagged("42"): "NONE",
        "42": "NO_ANSWER",
        f"{THOUGHT}\n<answer>42": "UNCLOSED",
        tagged("six"): "UNREADABLE",
        tagged(""): "UNREADABLE",
    }
    assert {text: verdict(text, strict=False)[1].name for text in codes} == codes


@given(st.integers(-(10**12), 10**12), st.integers(0, 5))
def test_every_spelling_of_an_integer_is_right_and_an_integer(number, zeros):
    for spelling in (f"{number}", f"{number:,}", f"{number:+}", f"{number}.{'0' * zeros}"):
        assert verdict(tagged(spelling), f"#### {number}") == ((1, 1, 1), ParseError.NONE)
        assert verdict(tagged(spelling), f"{number + 1}") == ((0, 1, 1), ParseError.NONE)


# ---------------------------------------------------------------- on the clock


INSIDE = (f"{THOUGHT}\n<answer>", "</answer>")
WORST = {
    "digits and a letter": filled("9", INSIDE[0], "x</answer>"),
    "groups of digits and a letter": filled(",999", INSIDE[0] + "9", "x</answer>"),
    "spaces": filled(" ", INSIDE[0], "42</answer>"),
    "ends of thought": filled("</think>\n", "<think>"),
    "ends of answer": filled("</answer>", f"{THOUGHT}\n<answer>"),
    "newlines": filled("\n", THOUGHT, "<answer>42</answer>"),
    "dollars": filled("$", INSIDE[0], "x</answer>"),
    "boxes": filled("\\boxed{", INSIDE[0], "42</answer>"),
    "signs behind it": filled("%", INSIDE[0] + "42", "x</answer>"),
    "digits, blanks and a letter": filled(" ", INSIDE[0] + "9" * 9999, "x</answer>"),
    "special tokens": filled("<|im_end|> "),
}


@pytest.mark.parametrize("strict", [True, False], ids=["strict", "published"])
@pytest.mark.parametrize("text", WORST.values(), ids=WORST.keys())
def test_the_time_is_linear_in_the_text(text, strict):
    assert_linear(lambda answer: compute_score("gsm8k", answer, "9" * 4000, strict=strict), text)
