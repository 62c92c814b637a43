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
