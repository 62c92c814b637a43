"""Rewards for GSM8K: correctness, integer and format, each 0 or 1.

Use them where the answer is one number.
Assumes: the prompt asks for the tags below; the ground truth is a number, or ends in #### and a
number.

These are the three rewards of the GSM8K example of GDPO (https://arxiv.org/abs/2601.05242). A
response looks like this:

    <think>why</think>
    <answer>42</answer>

The strict rules are ours. `strict=False` selects the published rules, with their faults. With both
rules, the time is linear in the length of the text. This matters because the policy writes the
text, and may learn to exploit a slow reward function.
"""

from __future__ import annotations

import re
from typing import Any

from gdpo_verl.config.components import Component, declares
from gdpo_verl.rewards.parse_error import (
    ParseError,
    check_is_text,
    warn_of_ground_truth,
    with_score,
)
from gdpo_verl.rewards.thought import apart, assistant_text, behind_thought, has_thought

__all__ = ["ParseError", "compute_score", "parse_ground_truth"]

OPEN, CLOSE = "<answer>", "</answer>"
HASHES = "####"

_PUBLISHED_FORMAT = re.compile(r"<think>.*?</think>\n<answer>.*?</answer>$", re.DOTALL)
# A number, and the marks that may surround it: bold type, code, a box, a font, dollar signs of
# LaTeX or of money, a per cent sign. Digits of other scripts, which \d would match, are not
# accepted.
_NUMBER = re.compile(
    r"(?:[*_`]|\\(?:boxed|text(?:bf)?|math(?:rm|bf)) *\{|\\[(\[]|\\?[$€£¥]|\s)*"
    r"([+\-−–]?) ?\\?[$€£¥]?(?=\.?[0-9])([0-9]*|[0-9]{1,3}(?:,[0-9]{3})+)(?:\.([0-9]*))?"
    r"(?:[*_`]|\}|\\[)\]]|\\?[$€£¥%]|\s)*[.;]?"
)
_FULL_WIDTH = str.maketrans("０１２３４５６７８９－．，％", "0123456789-.,%")

AnswerVerdict = tuple[bool, bool, bool, ParseError]


@declares(Component("correctness", 0, 1), Component("integer", 0, 1), Component("format", 0, 1))
def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: dict[str, Any] | None = None,
    *,
    strict: bool = True,
    **kwargs: Any,
) -> dict[str, float]:
    """Compute the three rewards of one response, with the arguments that verl passes.

    Strict rules: the answer is the text in the last answer tags after the last `</think>`. It must
    be a number such as 42, -3, +7, 1,000, 42.0 or .5, and may be written as $42$, **42**,
    \\boxed{42}, $42 or 42%. It is correct if it equals the number of the ground truth. It is an
    integer if only zeros follow its decimal point. The format is right if the text is a thought,
    newlines and an answer, and nothing else. Neither the thought nor the answer may be empty.

    Published rules: the answer is the text in the last answer tags, or the whole text if there are
    no tags. It is correct if it equals the text after #### in the ground truth. It is an integer if
    `str.isdigit` says so.

    Args:
      data_source: ignored, as are `extra_info` and `kwargs`.
      solution_str: the assistant's turn.
      ground_truth: a number, or a solution that ends in #### and a number.
      strict: False for the published rules.

    Returns:
      A dict with the rewards correctness, integer and format (0.0 or 1.0), with score (their sum)
      and with parse_error (a `ParseError`). The keys are the same for any text. All rewards are 0
      if the ground truth is malformed.

    >>> compute_score("gsm8k", "<think>6 * 7</think>\\n<answer>42.0</answer>", "... #### 42")
    {'score': 3.0, 'correctness': 1.0, 'integer': 1.0, 'format': 1.0, 'parse_error': 0}
    """
    try:
        wanted = parse_ground_truth(ground_truth)
        verdict = (
            _judge_strictly(solution_str, wanted)
            if strict
            else _judge_as_published(solution_str, ground_truth)
        )
    except ValueError as fault:
        warn_of_ground_truth("gsm8k", fault)
        verdict = (False, False, False, ParseError.GROUND_TRUTH)
    correct, integer, has_format, error = verdict
    rewards = {
        "correctness": float(correct),
        "integer": float(integer),
        "format": float(has_format),
    }
    return with_score(rewards, error)


def parse_ground_truth(ground_truth: str) -> str:
    """Return the number of a ground truth, without commas, leading zeros and trailing zeros.

    Raises ValueError if there is no number.

    >>> parse_ground_truth("600 + 400 = 1000, so #### 1,000")
    '1000'
    """
    check_is_text(ground_truth)
    number = _read_number(ground_truth.rpartition(HASHES)[2])
    if number is None:
        raise ValueError(
            "ground_truth: expected a number, or a solution that ends in #### and a number, "
            f"found {ground_truth[-200:]!a}"
        )
    return number


def _judge_strictly(text: str, wanted: str) -> AnswerVerdict:
    answer, has_format, error = _read_answer(assistant_text(text))
    number = None if answer is None else _read_number(answer)
    if answer is not None and number is None:
        error = ParseError.UNREADABLE
    # `_read_number` has removed zeros at the end of a decimal.
    integer = number is not None and "." not in number
    return number == wanted, integer, has_format, error


def _read_answer(text: str) -> tuple[str | None, bool, ParseError]:
    """Return the text between the answer tags, whether the format is right, and the error."""
    rest = behind_thought(text)
    if rest is None:
        return None, False, ParseError.UNCLOSED
    gap, tag, behind = rest.rpartition(OPEN)
    if not tag:
        return None, False, ParseError.NO_ANSWER
    answer, tag, tail = behind.partition(CLOSE)
    if not tag:
        return None, False, ParseError.UNCLOSED
    thinks = has_thought(text, len(text) - len(rest))
    alone = apart(gap) and not tail
    return answer, thinks and alone and bool(answer.strip()), ParseError.NONE


def _read_number(text: str) -> str | None:
    """Return a number in a spelling that all equal numbers share; None if there is no number.

    The result is a text, because int() and Decimal() reject or are slow for a megabyte of digits.
    """
    text = re.sub(r"\{,\}|\\,|,\\!", ",", text.translate(_FULL_WIDTH))
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    sign, whole, fraction = match.groups(default="")
    whole = whole.replace(",", "").lstrip("0") or "0"
    fraction = fraction.rstrip("0")
    size = f"{whole}.{fraction}" if fraction else whole
    return size if sign in ("", "+") or size == "0" else f"-{size}"


def _judge_as_published(text: str, ground_truth: str) -> AnswerVerdict:
    _, opened, behind = text.rpartition(OPEN)
    answer, closed, _ = behind.partition(CLOSE)
    answer = answer.strip()
    # The published rules give no reason for a failure, so the reason comes from the strict rules.
    error = ParseError.NONE if _read_number(answer) else ParseError.UNREADABLE
    # With the published rules, an answer without an end is the rest of the text.
    if not opened or not closed:
        error = ParseError.UNCLOSED if opened else ParseError.NO_ANSWER
    before, hashes, behind = ground_truth.partition(HASHES)
    wanted = behind.partition(HASHES)[0] if hashes else before
    # The tags are counted first. If each of them occurs once, the expression needs a single pass
    # over the text.
    tags_once = text.count(OPEN) == 1 and text.count(CLOSE) == 1
    has_format = tags_once and _PUBLISHED_FORMAT.match(text) is not None
    return answer == wanted.strip(), answer.isdigit(), has_format, error
