"""The GSM8K rewards: every spelling of a number."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gdpo_verl.rewards.gsm8k import ParseError, compute_score

THOUGHT = "<think>6 times 7</think>"


def tagged(answer: str) -> str:
    return f"{THOUGHT}\n<answer>{answer}</answer>"


def verdict(text: str, ground_truth: object = "42", strict: bool = True) -> tuple:
    """(correctness, integer, format), and the code."""
    result = compute_score("gsm8k", text, ground_truth, strict=strict)
    components = result["correctness"], result["integer"], result["format"]
    return components, ParseError(result["parse_error"])


@given(st.integers(-(10**12), 10**12), st.integers(0, 5))
def test_every_spelling_of_an_integer_is_right_and_an_integer(number, zeros):
    for spelling in (f"{number}", f"{number:,}", f"{number:+}", f"{number}.{'0' * zeros}"):
        assert verdict(tagged(spelling), f"#### {number}") == ((1, 1, 1), ParseError.NONE)
        assert verdict(tagged(spelling), f"{number + 1}") == ((0, 1, 1), ParseError.NONE)
