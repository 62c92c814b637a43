"""Rewards for tool calling: format, 0 or 1, and correctness, from -3 to 3.

Use them where the correct calls are known, and no call is executed.
Assumes: the prompt asks for a thought, calls and a response, each in its tags.

These are the two rewards of ToolRL (https://arxiv.org/abs/2504.13958). GDPO's paper
(https://arxiv.org/abs/2601.05242) trains its tool-calling task with them. The strict rules are
ours; `strict=False` applies the published rules with their defects. `tool_text` describes how a
response is parsed.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any

from gdpo_verl.config.components import Component, declares
from gdpo_verl.rewards.parse_error import (
    ParseError,
    check_is_text,
    warn_of_ground_truth,
    with_score,
)
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
"""The largest number of calls of a ground truth. The time of matching grows with its square."""

CallVerdict = tuple[float, float, ParseError]


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
    """Compute both rewards of one response, with the signature of verl's reward functions.

    Args:
      data_source: ignored, as are `extra_info` and `kwargs`.
      solution_str: the response. Special tokens at its end are dropped.
      ground_truth: a correct response in the same format, with or without its thought.
      strict: False for the published rules.

    Returns:
      A dict with format (0 or 1), correctness (from -3 to 3), score (their sum) and parse_error (a
      `ParseError`). The keys are the same for every text. With a malformed ground truth,
      correctness is -3.

    >>> call = '<tool_call>\\n{"name": "add", "parameters": {"a": 1}}\\n</tool_call>'
    >>> compute_score("toolbox", "<think>Add.</think>\\n" + call + "<|im_end|>", call)
    {'score': 4.0, 'format': 1.0, 'correctness': 3.0, 'parse_error': 0}
    """
    judge = _judge_strictly if strict else _judge_as_published
    try:
        check_is_text(ground_truth)  # a value that is not a text may not be hashable
        has_format, correctness, error = judge(assistant_text(solution_str), ground_truth)
    except ValueError as fault:
        warn_of_ground_truth("tool_call", fault)
        has_format, correctness, error = 0.0, LOWEST, ParseError.GROUND_TRUTH
    return with_score({"format": has_format, "correctness": correctness}, error)


def format_reward(response: str, ground_truth: str, *, strict: bool = True) -> float:
    """Return 1 if the response has the same parts as the ground truth, else 0.

    The parts are a thought, and then calls and a `<response>` if the ground truth has them. There
    must be a newline between two parts. With the strict rules, every part must have content, and
    calls must be between the call tags, in any layout and in any number of blocks. The published
    rules check only the tags.
    """
    return compute_score("", response, ground_truth, strict=strict)["format"]


def correctness_reward(response: str, ground_truth: str, *, strict: bool = True) -> float:
    """Score how well the calls match the calls of the ground truth, from -3 to 3.

    The reward is 6 S / M - 3, where S is the similarity that was reached, and M is the largest
    possible similarity. Each expected call is matched with at most one call of the same name.

    S = J(names) + sum of (J(parameter names) + number of equal parameters) over the matched calls

    M = 1 + sum of (1 + number of parameters) over the expected calls

    J is the Jaccard similarity of multisets.

    With the published rules, each expected call in turn takes the best call that is left. The
    strict rules differ in three points:

    - The matching is the one with the largest S.
    - Surplus calls and parameters lower the reward. Each unmatched call beyond the expected number
      adds 1 + its number of parameters to M. Each parameter of a matched call beyond twice the
      expected number adds 1 to M.
    - true is not equal to 1.

    The result is -3.0 if the calls cannot be parsed, and 0.0 if no call was expected.
    """
    return compute_score("", response, ground_truth, strict=strict)["correctness"]


def parse_ground_truth(ground_truth: str) -> Reading:
    """Parse a ground truth.

    It has calls, a response, or both, with or without a thought; or it is only a thought. Raises
    ValueError if it is not valid, or has more than `MOST_ASKED` calls.
    """
    check_is_text(ground_truth)
    text = assistant_text(ground_truth)
    reading = read(text)
    unclosed = reading.has_response and END_RESPONSE not in text.rpartition(RESPONSE)[2]
    # A text without calls and without a response is `tidy` only if it is a thought.
    something = reading.calls or reading.has_response or reading.tidy
    if reading.error or unclosed or not something:
        raise ValueError(
            f'ground_truth: expected {{"name": ..., "parameters": {{...}}}}, one per line, between '
            f"{OPEN} and {CLOSE}, a response between {RESPONSE} and {END_RESPONSE}, or only a "
            f"thought, found {ground_truth[-200:]!a} (parse_error: {reading.error.name})"
        )
    if len(reading.calls) > MOST_ASKED:
        raise ValueError(
            f"ground_truth: expected at most {MOST_ASKED} calls, found {len(reading.calls)}"
        )
    return reading


# The responses of a group share a ground truth, so the parsed ground truth is cached. It is shared,
# too, and must not be modified.
_remembered = lru_cache(maxsize=1024)(parse_ground_truth)


def _judge_strictly(text: str, ground_truth: str) -> CallVerdict:
    wanted = _remembered(ground_truth)
    reading = read(text)
    # The format is only about the layout. The number of calls is part of correctness.
    has_format = float(
        reading.tidy
        and bool(reading.calls) == bool(wanted.calls)
        and reading.has_response == wanted.has_response
    )
    if not wanted.calls:
        return has_format, 0.0, reading.error
    if not reading.calls:
        return has_format, LOWEST, reading.error or ParseError.NO_CALL
    try:
        return has_format, match(wanted.calls, reading.calls, strict=True), reading.error
    except RecursionError:
        return has_format, LOWEST, ParseError.TOO_DEEP


def _judge_as_published(text: str, ground_truth: str) -> CallVerdict:
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
    # The tags are counted first. If each of them occurs once, the expression needs a single pass
    # over the text.
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
    except (TypeError, KeyError, AttributeError):  # the published code catches this, too
        return LOWEST, ParseError.NOT_A_CALL


def _published_calls(text: str) -> list[Any]:
    """Parse one JSON value per line, from the first opening tag to the next tag of either kind."""
    body = text.partition(OPEN)[2].partition(CLOSE)[0].partition(OPEN)[0].strip()
    if len(body) > LONGEST:
        raise Unreadable(ParseError.TOO_LONG)
    return [json.loads(line.strip(" \t\r\n")) for line in body.split("\n")]
