"""The codes of the diagnostic `parse_error`: reasons why an answer could not be judged.

One table for all rewards, so that a run on several tasks may count them together.
"""

from __future__ import annotations

import logging
from enum import IntEnum

logger = logging.getLogger(__name__)

_warned: set[str] = set()


class ParseError(IntEnum):
    """The reason why an answer could not be read or judged; 0 when nothing is wrong."""

    NONE = 0
    """Nothing wrong."""
    NO_ANSWER = 1
    """No answer tags, box, call or block of Python outside the thought, where one is asked for."""
    NO_CALL = 1
    """The name of `NO_ANSWER` in tool calling."""
    NO_CODE = 1
    """The name of `NO_ANSWER` in code."""
    OUT_OF_ORDER = 2
    """A tag stands outside its place, as a closing before an opening one."""
    UNCLOSED = 3
    """The thought, the answer, the last box or a block of calls has no end."""
    NOT_JSON = 4
    """The text between the call tags is not JSON."""
    NOT_A_CALL = 5
    """JSON, but not calls: name or parameters missing or of the wrong type, or no call."""
    DUPLICATE_KEY = 6
    """A key stands twice in one object, so that its value is anyone's guess."""
    NOT_FINITE = 7
    """NaN, Infinity, or a number beyond the range of a double."""
    TOO_DEEP = 8
    """Nested deeper than the interpreter's recursion limit."""
    GROUND_TRUTH = 9
    """The row's ground truth is at fault, not the answer."""
    UNREADABLE = 10
    """The answer is no number and no formula, or missing."""
    TOO_LONG = 11
    """The box or the calls are longer than any answer asked for."""
    DEADLINE = 12
    """There was no verdict within the deadline."""
    CRASHED = 13
    """The process that judged the answer died of it, as of memory."""
    NOT_EVALUATED = 16
    """The box equals the ground truth, but still has to be evaluated, or repeats the question."""
    SYNTAX = 20
    """The program does not compile."""
    EXCEPTION = 21
    """The program raised, crashed, or left with a status other than 0."""
    TIMEOUT = 22
    """A test took longer than it may."""
    MEMORY = 23
    """The program needed more memory than allowed."""
    OUTPUT = 24
    """The program wrote more than allowed."""
    NO_FUNCTION = 25
    """The program does not define the function that the tests call."""
    NOT_PLAIN = 26
    """The function returned something that is not plain data."""


def warn_of_ground_truth(reward: str, error: Exception) -> None:
    """Log a ground truth at fault: the first that a reward meets in this process.

    The rows themselves are counted by `parse_error`.
    """
    if reward not in _warned:
        _warned.add(reward)
        logger.warning(
            "%s: a row gets the minimum, because its ground truth cannot be read, and so will "
            "others like it (metric gdpo/parse_error/code_%d). %s",
            reward,
            ParseError.GROUND_TRUTH,
            error,
        )
