"""The codes of the diagnostic `parse_error`: reasons why a response could not be scored.

All reward functions share these codes, so that a run on several tasks can count them together.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from enum import IntEnum
from typing import Any

from gdpo_verl.names import PARSE_ERROR_CODE

logger = logging.getLogger(__name__)

_warned: set[tuple[str, ParseError]] = set()


class ParseError(IntEnum):
    """The reason why a response could not be parsed or scored; 0 if nothing is wrong."""

    NONE = 0
    # There are no tags, no box, no call or no block of Python outside the thought.
    NO_ANSWER = NO_CALL = NO_CODE = 1
    OUT_OF_ORDER = 2  # a tag is in the wrong place, such as a closing tag before the opening tag
    UNCLOSED = 3  # the thought, the answer, the last box or a block of calls has no end
    NOT_JSON = 4  # the text between the call tags is not JSON
    NOT_A_CALL = 5  # the JSON has no valid name and parameters, or no call
    DUPLICATE_KEY = 6  # an object has a key twice, so that its value is not clear
    NOT_FINITE = 7  # a number is NaN, Infinity, or beyond the range of a double
    TOO_DEEP = 8  # the JSON is nested deeper than the interpreter's recursion limit
    GROUND_TRUTH = 9  # the fault is in the row, not in the response
    UNREADABLE = 10  # the answer is empty, or neither a number nor a formula
    TOO_LONG = 11  # the box or the calls are longer than any expected answer
    DEADLINE = 12  # there was no result within the deadline
    CRASHED = 13  # the judging process crashed on the response, for example for lack of memory
    NOT_EVALUATED = 16  # the answer is equal but not evaluated, or is a formula of the question
    SYNTAX = 20  # the program does not compile
    EXCEPTION = 21  # the program raised, crashed, or ended with a status other than 0
    TIMEOUT = 22  # a test or a tool call took longer than allowed
    MEMORY = 23  # the program needed more memory than allowed
    OUTPUT = 24  # a program or a tool wrote more than allowed
    NO_FUNCTION = 25  # the function that the tests call is not defined
    NOT_PLAIN = 26  # a returned value is not plain data
    NO_OUTCOME = 27  # a tool returned only a text, so it is not known whether its call ran


def with_score(rewards: Mapping[str, float | None], error: float) -> dict[str, Any]:
    """Return the dict that verl expects: the score, the rewards, and the parse error."""
    score = sum(reward for reward in rewards.values() if reward is not None)
    return {"score": score, **rewards, "parse_error": int(error)}


def check_is_text(ground_truth: Any) -> None:
    """Raise ValueError if a ground truth is not a text."""
    if not isinstance(ground_truth, str):
        raise ValueError(f"ground_truth: expected text, found {ground_truth!a:.200}")


def warn_of_ground_truth(reward: str, error: Exception) -> None:
    """Log the first faulty ground truth of a reward function in this process."""
    fault = f"a row gets the lowest rewards, because its ground truth is not valid: {error}"
    warn_once(reward, ParseError.GROUND_TRUTH, fault)


def warn_once(reward: str, code: ParseError, fault: str) -> None:
    """Log the first fault of each kind of a reward function in this process.

    The metrics of `parse_error` count all of them.
    """
    if (reward, code) not in _warned:
        _warned.add((reward, code))
        text = "%s: %s. Further cases are counted in %s and not logged."
        logger.warning(text, reward, fault, PARSE_ERROR_CODE.of(int(code)))
