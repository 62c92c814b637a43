"""Why a reward could not read an answer: the codes of the numeric diagnostic `parse_error`.

`tool_text.ParseError` has the codes of tool calls. A number that stands in both means the
same in both, so that a run on several tasks may count them together.
"""

from __future__ import annotations

import logging
from enum import IntEnum

logger = logging.getLogger(__name__)

_warned: set[str] = set()


class ParseError(IntEnum):
    """Why a number or a formula could not be read."""

    NONE = 0
    """Nothing wrong."""
    NO_ANSWER = 1
    """No answer tags outside the thought; no box."""
    UNCLOSED = 3
    """The thought, the answer or the last box has no end."""
    GROUND_TRUTH = 9
    """The row's ground truth is at fault, not the answer."""
    UNREADABLE = 10
    """What stands in the answer's place is no number, no formula, or nothing."""
    TOO_LONG = 11
    """The box holds more characters than any formula asked for."""
    DEADLINE = 12
    """There was no verdict within the deadline."""
    CRASHED = 13
    """The process that judged the answer died of it, as of memory."""
    DATA_SOURCE = 15
    """No reward is known for the row's data source."""


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
