"""Rewards for mathematics under a length limit: correctness and length, each 0 or 1.

Use them where the answer is a formula or a number, and the response should be short.
Assumes: the prompt asks for \\boxed{}; the reward manager passes the number of tokens.

The rewards of GDPO's mathematics task (https://arxiv.org/abs/2601.05242). The answer is the
content of the last \\boxed{...}. The library math-verify compares it with the ground truth. A few
characters of LaTeX can make its computer algebra hang or take any amount of memory, so it runs in
worker processes with a deadline.
"""

from __future__ import annotations

import importlib.util
import re
from typing import Any

from gdpo_verl.config.arguments import check_positive
from gdpo_verl.config.components import Component, declares
from gdpo_verl.rewards.deadline import ask
from gdpo_verl.rewards.length import length_reward
from gdpo_verl.rewards.parse_error import (
    ParseError,
    check_is_text,
    warn_of_ground_truth,
    with_score,
)
from gdpo_verl.rewards.thought import behind_thought

__all__ = ["ParseError", "compute_score", "parse_ground_truth"]

# The worker imports them. Who loads this module learns before the first rollout what is missing.
for _package in ("math_verify", "pint"):
    if importlib.util.find_spec(_package) is None:
        raise ModuleNotFoundError(
            f"gdpo_verl.rewards.math_length: expected the package {_package}, found none. "
            "Run in a clone of gdpo-verl: pip install '.[rewards]'"
        )

LIMIT = 4000  # the paper's, in tokens
DEADLINE = 5.0  # seconds for one response; common ones take milliseconds
LONGEST = 10_000  # characters in a box

# Without braces TeX boxes what comes next; here a whole number, or a letter at the formula's end.
_BOX = re.compile(
    r"\\(?:boxed|fbox)\s*(?:\{|([-+]?\d[\d.,]{0,99}|[A-Za-z](?=\s{0,9}(?:\$|\\[)\]]))))"
)
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)


@declares(Component("correctness", 0, 1), Component("length", 0, 1))
def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: dict[str, Any] | None = None,
    *,
    strict: bool = True,
    limit: float = LIMIT,
    deadline: float = DEADLINE,
    **kwargs: Any,
) -> dict[str, float]:
    """Compute both rewards of one response, with the arguments that verl passes.

    Args:
      data_source: ignored, as are `kwargs`.
      solution_str: the assistant's turn.
      ground_truth: LaTeX, or a text whose last box contains it.
      extra_info: contains `response_length` in tokens, which the manager `gdpo_components`
        adds. It may contain `question`, the problem; a copy of its formulas is not accepted then.
      strict: the box must follow the thought, and `math_worker` asks for more than equality.
      limit: the longest response that earns the length reward, in tokens.
      deadline: the time for the comparison, in seconds.

    Returns:
      correctness and length, 0.0 or 1.0; score, their sum; parse_error, a `ParseError`. The
      keys are the same for any text. Without a result within the deadline correctness is 0. With a
      malformed ground truth both are 0.

    Raises:
      ValueError: `response_length` is missing, or the limit or the deadline is not positive.

    >>> answer = "Halved: \\\\boxed{0.5}"
    >>> compute_score("math", answer, "\\\\frac{1}{2}", {"response_length": 7}, limit=100)
    {'score': 2.0, 'correctness': 1.0, 'length': 1.0, 'parse_error': 0}
    """
    length = length_reward(extra_info, limit)
    check_positive("deadline", deadline, "seconds")
    question = str((extra_info or {}).get("question") or "")
    try:
        correct, error = _judge(solution_str, ground_truth, deadline, question if strict else None)
    except ValueError as fault:
        warn_of_ground_truth("math_length", fault)
        return with_score({"correctness": 0.0, "length": 0.0}, ParseError.GROUND_TRUTH)
    return with_score({"correctness": float(correct), "length": length}, error)


def parse_ground_truth(ground_truth: str, *, deadline: float = DEADLINE) -> str:
    """Return the formula of a ground truth: the content of its last box, or the whole text.

    Raises ValueError where math-verify does not find it equal to itself.

    >>> parse_ground_truth("We get $x = 3$, so \\\\boxed{3}.")
    '3'
    """
    wanted = _formula(ground_truth)
    # No answer could equal a ground truth that does not equal itself.
    correct, error = _compare(wanted, wanted, None, deadline)
    if not correct:
        raise ValueError(
            "ground_truth: expected LaTeX that math-verify finds equal to itself, or a text whose "
            f"last \\boxed{{...}} contains it, found {ground_truth[-200:]!a} "
            f"(parse_error: {error.name})"
        )
    return wanted


def _formula(ground_truth: str) -> str:
    check_is_text(ground_truth)
    boxed, error = _last_box(ground_truth)
    # Data sets give the formula alone, or a solution that boxes it.
    wanted = ground_truth.strip() if error is ParseError.NO_ANSWER else boxed
    if not 0 < len(wanted) <= LONGEST:
        raise ValueError(
            f"ground_truth: expected LaTeX of 1 to {LONGEST} characters, or a text whose last "
            f"\\boxed{{...}} contains it, found {ground_truth[-200:]!a} (parse_error: {error.name})"
        )
    return wanted


def _judge(
    text: str, ground_truth: str, deadline: float, question: str | None
) -> tuple[bool, ParseError]:
    """Judge an answer, and say what is wrong with it; not strictly without a question."""
    wanted = _formula(ground_truth)
    behind = text if question is None else behind_thought(text)  # math-verify knows no thought
    answer, error = ("", ParseError.UNCLOSED) if behind is None else _last_box(behind)
    if error:
        return False, error
    correct, error = _compare(wanted, answer, question, deadline)
    if error is ParseError.GROUND_TRUTH:
        raise ValueError(f"ground_truth: math-verify cannot read {wanted!a}")
    return correct, error


def _last_box(text: str) -> tuple[str, ParseError]:
    """The content of the last box, up to the brace that closes it. Linear in the text."""
    box = None
    for match in _BOX.finditer(text):  # a list could hold a million
        box = match
    if box is None:
        return "", ParseError.NO_ANSWER
    if box[1]:
        return box[1], ParseError.NONE
    start = box.end()
    depth = 1  # counted up to the longest box: nothing is read after it
    for brace in _BRACE.finditer(text, start, start + LONGEST + 1):
        if brace[0] == "{":
            depth += 1
        elif brace[0] == "}":
            depth -= 1
        if depth == 0:
            answer = text[start : brace.start()].strip()
            return answer, ParseError.NONE if answer else ParseError.UNREADABLE
    return "", ParseError.UNCLOSED if len(text) <= start + LONGEST else ParseError.TOO_LONG


def _compare(
    wanted: str, answer: str, question: str | None, deadline: float
) -> tuple[bool, ParseError]:
    result, error = ask("gdpo_verl.rewards.math_worker", (wanted, answer, question), deadline)
    correct, code = result or (False, error)
    return correct, ParseError(code)
