"""Rewards for mathematics under a length limit: correctness and length, each 0 or 1.

Use them where the answer is a formula or a number, and the response should be short.
Assumes: the prompt asks for \\boxed{}; the reward manager passes the number of tokens.

These are the rewards of GDPO's mathematics task (https://arxiv.org/abs/2601.05242). The answer is
the content of the last \\boxed{...}. The library math-verify compares it with the ground truth. A
few characters of LaTeX can make its computer algebra hang, or take any amount of memory. Therefore
it runs in worker processes with a deadline.
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

# Only the worker imports these packages. They are checked here, so that a missing package is
# reported before the first rollout.
for _package in ("math_verify", "pint"):
    if importlib.util.find_spec(_package) is None:
        raise ModuleNotFoundError(
            f"gdpo_verl.rewards.math_length: expected the package {_package}, found none. "
            "Run in a clone of gdpo-verl: pip install '.[rewards]'"
        )

LIMIT = 4000  # the largest number of tokens in the paper
DEADLINE = 5.0  # seconds for one response; most responses take milliseconds
LONGEST = 10_000  # the largest number of characters in a box

# Without braces, TeX boxes only the next token. Here a complete number without braces is read, or a
# letter at the end of the formula.
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
      extra_info: contains `response_length` in tokens, which the manager `gdpo_components` adds.
        If it contains the problem as `question`, a copy of a formula of the question is not
        accepted as an answer.
      strict: if True, the box must come after the thought, and the answer must meet further rules
        than equality (`math_worker`).
      limit: the largest number of tokens of a response that earns the length reward.
      deadline: the time for the comparison, in seconds.

    Returns:
      A dict with correctness and length (0.0 or 1.0), score (their sum) and parse_error (a
      `ParseError`). The keys are the same for any text. If there is no result within the deadline,
      correctness is 0. With a malformed ground truth, both rewards are 0.

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

    Raises ValueError if math-verify does not find the formula equal to itself.

    >>> parse_ground_truth("We get $x = 3$, so \\\\boxed{3}.")
    '3'
    """
    wanted = _formula(ground_truth)
    # If the ground truth does not equal itself, no answer could be correct.
    correct, error = _compare(wanted, wanted, None, deadline)
    if not correct:
        raise ValueError(
            "ground_truth: expected LaTeX that math-verify finds equal to itself, or a text whose "
            f"last \\boxed{{...}} contains it, found {ground_truth[-200:]!a} "
            f"(parse_error: {error.name})"
        )
    return wanted


def _formula(ground_truth: str) -> str:
    """Return the formula of a ground truth, without asking math-verify."""
    check_is_text(ground_truth)
    boxed, error = _last_box(ground_truth)
    # Some data sets have only the formula, and others have a solution in which it is boxed.
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
    """Return whether a response is correct, and the error.

    The strict rules apply unless `question` is None. An empty question is not known.
    """
    wanted = _formula(ground_truth)
    behind = text if question is None else behind_thought(text)
    answer, error = ("", ParseError.UNCLOSED) if behind is None else _last_box(behind)
    if error:
        return False, error
    correct, error = _compare(wanted, answer, question, deadline)
    if error is ParseError.GROUND_TRUTH:
        raise ValueError(f"ground_truth: math-verify cannot read {wanted!a}")
    return correct, error


def _last_box(text: str) -> tuple[str, ParseError]:
    """Return the content of the last box, up to the brace that closes it, and the error.

    This takes linear time.
    """
    box = None
    for match in _BOX.finditer(text):  # not as a list, because a text may have a million boxes
        box = match
    if box is None:
        return "", ParseError.NO_ANSWER
    if box[1]:
        return box[1], ParseError.NONE
    start = box.end()
    depth = 1  # nothing after the longest allowed box is read
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
    """Ask the worker whether an answer is correct."""
    result, error = ask("gdpo_verl.rewards.math_worker", (wanted, answer, question), deadline)
    correct, code = result or (False, error)
    return correct, ParseError(code)
