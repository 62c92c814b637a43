"""Rewards for tool calling: format, 0 or 1, and correctness, from -3 to 3.

Use them where the calls that are right are known, and none is executed.
Assumes: the prompt asks for thought, calls and response, each in its tags.

The two rewards of ToolRL (https://arxiv.org/abs/2504.13958), with which GDPO's paper
(https://arxiv.org/abs/2601.05242) trains its tool-calling task. `strict=False` gives the
published rules' verdicts, defects included. `tool_text` says how an answer is read.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any

from gdpo_verl.config.components import Component, declares
from gdpo_verl.rewards.parse_error import ParseError, warn_of_ground_truth, with_score
from gdpo_verl.rewards.thought import assistant_text
from gdpo_verl.rewards.tool_match import HIGHEST, LOWEST, match
from gdpo_verl.rewards.tool_text import (
    CLOSE,
    END_RESPONSE,
    LONGEST,
    OPEN,
    RESPONSE,
    Reading,
    Unreadable,
    read,
)

__all__ = ["ParseError", "compute_score", "correctness_reward", "format_reward"]
__all__ += ["HIGHEST", "LOWEST", "parse_ground_truth"]

MOST_ASKED = 50
"""Calls of a ground truth; matching them takes the square of their number for each call made."""

Verdict = tuple[float, float, ParseError]


@declares(Component("format", 0, 1), Component("correctness", LOWEST, HIGHEST))
def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: dict[str, Any] | None = None,
    *,
    strict: bool = True,
    **kwargs: Any,
) -> dict[str, float]:
    """Both rewards of one answer, in the form in which verl calls a reward function.

    Args:
      data_source: ignored, as are `extra_info` and `kwargs`.
      solution_str: the assistant's turn; special tokens at its end are dropped.
      ground_truth: a right answer in the same form, with or without its thought.
      strict: False for the published rules' verdicts.

    Returns:
      format in {0, 1}; correctness in [-3, 3]; score, their sum; parse_error, a `ParseError`.
      The same keys for any text; a malformed ground truth gives correctness -3.

    >>> call = '<tool_call>\\n{"name": "add", "parameters": {"a": 1}}\\n</tool_call>'
    >>> compute_score("toolbox", "<think>Add.</think>\\n" + call + "<|im_end|>", call)
    {'score': 4.0, 'format': 1.0, 'correctness': 3.0, 'parse_error': 0}
    """
    if not isinstance(ground_truth, str):  # it may have no hash
        warn_of_ground_truth("tool_call", TypeError(f"expected text, found {ground_truth!a:.200}"))
        return with_score({"format": 0.0, "correctness": LOWEST}, ParseError.GROUND_TRUTH)
    judge = _judge_strictly if strict else _judge_as_published
    form, correctness, error = judge(assistant_text(solution_str), ground_truth)
    return with_score({"format": form, "correctness": correctness}, error)


def format_reward(response: str, ground_truth: str, *, strict: bool = True) -> float:
    """1 when the whole answer has the shape that the ground truth has, else 0.

    A thought, then the calls if the ground truth holds any, then the response if it holds one,
    a newline between each two. Strict: every part holds something, and calls stand between the
    call tags, in any layout and any number of blocks. Published: tags alone.
    """
    return compute_score("", response, ground_truth, strict=strict)["format"]


def correctness_reward(response: str, ground_truth: str, *, strict: bool = True) -> float:
    """Score the match of the calls with those of the ground truth, from -3 to 3.

    6 S / M - 3, where S begins with J(names) and M with 1, J being the multiset Jaccard
    similarity. For every call asked for, M grows by 1 + its number of parameters, and S by
    J(parameter names) + the number of equal parameters of the call of its name that it is
    matched with. Published: each call asked for takes the best that is left. Strict: they are
    matched for the largest S; each unmatched call beyond the number asked for adds 1 + its number
    of parameters to M, and a match each parameter beyond twice the number asked for, so that
    spraying does not pay; and true differs from 1.

    -3.0 for calls that cannot be read, 0.0 when no call was asked for.
    """
    return compute_score("", response, ground_truth, strict=strict)["correctness"]


def parse_ground_truth(ground_truth: str) -> Reading:
    """Read a ground truth: calls, a response, or both, with or without a thought; or that alone.

    Raises ValueError where it is none, or has more than `MOST_ASKED` calls.
    """
    if not isinstance(ground_truth, str):
        raise ValueError(f"ground_truth: expected text, found {type(ground_truth).__name__}")
    text = assistant_text(ground_truth)
    reading = read(text)
    unclosed = reading.has_response and END_RESPONSE not in text.rpartition(RESPONSE)[2]
    # Tidy without calls and a response is a thought alone.
    something = reading.calls or reading.has_response or reading.tidy
    if reading.error or unclosed or not something:
        raise ValueError(
            f'ground_truth: expected {{"name": ..., "parameters": {{...}}}}, one a line between '
            f"{OPEN} and {CLOSE}, a response between {RESPONSE} and {END_RESPONSE}, or a thought "
            f"alone, found {ground_truth[-200:]!a} (parse_error: {reading.error.name})"
        )
    if len(reading.calls) > MOST_ASKED:
        raise ValueError(
            f"ground_truth: expected at most {MOST_ASKED} calls, found {len(reading.calls)}"
        )
    return reading


# The answers of a group share a ground truth. What it returns is shared, too: only read it.
_remembered = lru_cache(maxsize=1024)(parse_ground_truth)


def _judge_strictly(text: str, ground_truth: str) -> Verdict:
    try:
        wanted = _remembered(ground_truth)
    except ValueError as fault:
        warn_of_ground_truth("tool_call", fault)
        return 0.0, LOWEST, ParseError.GROUND_TRUTH
    found = read(text)
    # The format pays for the shape: how many calls there are is a matter of correctness.
    form = float(
        found.tidy
        and bool(found.calls) == bool(wanted.calls)
        and found.has_response == wanted.has_response
    )
    if not wanted.calls:
        return form, 0.0, found.error
    if not found.calls:
        return form, LOWEST, found.error or ParseError.NO_CALL
    try:
        return form, match(wanted.calls, found.calls, strict=True), found.error
    except RecursionError:
        return form, LOWEST, ParseError.TOO_DEEP


def _judge_as_published(text: str, ground_truth: str) -> Verdict:
    return _published_format(text, ground_truth), *_published_correctness(text, ground_truth)


def _published_format(text: str, ground_truth: str) -> float:
    shape = "<think>.*?</think>"
    tags: list[str] = []
    if OPEN in ground_truth:
        shape += f"\n{OPEN}\n.*?\n{CLOSE}"
        tags += [OPEN, CLOSE]
    if RESPONSE in ground_truth:
        shape += f"\n{RESPONSE}.*?{END_RESPONSE}"
        tags += [RESPONSE, END_RESPONSE]
    # Counted first: where a tag stands once, the expression finds its place or fails in one pass.
    once = all(text.count(tag) == 1 for tag in tags)
    return float(once and re.fullmatch(shape, text, re.DOTALL) is not None)


def _published_correctness(text: str, ground_truth: str) -> tuple[float, ParseError]:
    if OPEN not in ground_truth:
        return 0.0, ParseError.NONE
    try:
        wanted = _published_calls(ground_truth)
    except (ValueError, RecursionError) as fault:
        warn_of_ground_truth("tool_call", fault)
        return LOWEST, ParseError.GROUND_TRUTH
    if OPEN not in text or CLOSE not in text:
        return LOWEST, ParseError.NO_CALL
    try:
        return match(wanted, _published_calls(text), strict=False), ParseError.NONE
    except RecursionError:
        return LOWEST, ParseError.TOO_DEEP
    except Unreadable as failure:
        return LOWEST, failure.code
    except ValueError:
        return LOWEST, ParseError.NOT_JSON
    except (TypeError, KeyError, AttributeError):  # which the published code catches, too
        return LOWEST, ParseError.NOT_A_CALL


def _published_calls(text: str) -> list[Any]:
    """One JSON value a line, from the first opening tag to the next tag of either kind."""
    body = text.partition(OPEN)[2].partition(CLOSE)[0].partition(OPEN)[0].strip()
    if len(body) > LONGEST:
        raise Unreadable(ParseError.TOO_LONG)
    return [json.loads(line.strip(" \t\r\n")) for line in body.split("\n")]
