"""Parse a tool-calling response: a thought, calls and a `<response>`, each in its place.

    <think>why</think>
    <tool_call>
    {"name": "add", "parameters": {"a": 1}}
    </tool_call>
    <response>done</response>

The policy may try to exploit the parser. Therefore parsing takes linear time, and returns a
`Reading` for any text.

**The end of the thought.** A thought or an argument may mention any tag, so there may be several
places at which the thought could end. These places are tried in the following order, and the first
one is used after which the rest of the text can be parsed:

1. a `</think>` that is followed by a newline and then `<tool_call>` or `<response>`,
2. a `</think>` that is followed by one of these tags after other text,
3. the last `</think>`.

**The order of the parts.** After the thought, a tag that is not in its place makes the response out
of order, and none of its calls count. The order is thought, calls, response. A `<response>` may
mention the tags of the thought, but no call.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from gdpo_verl.rewards.parse_error import ParseError
from gdpo_verl.rewards.thought import END_THINK, THINK, apart, has_thought

Call = dict[str, Any]

OPEN, CLOSE = "<tool_call>", "</tool_call>"
RESPONSE, END_RESPONSE = "<response>", "</response>"
LONGEST = 100_000  # the largest number of characters from the first call tag on
MOST_ENDS = 5  # the number of ends of a thought that are tried, in addition to the last one

_TAG = re.compile(r"</?(?:think|tool_call|response)>")
_GAP = re.compile(rf"\s*({CLOSE})?")  # between two calls, or after the last one


@dataclass(eq=False)
class Unreadable(ValueError):
    """Calls that cannot be parsed, with the code that says why."""

    code: ParseError


class Reading(NamedTuple):
    """A response after parsing."""

    calls: list[Call]  # valid calls, with exactly `name` (str) and `parameters` (dict)
    has_response: bool  # whether there is a `<response>` outside the thought and the calls
    tidy: bool  # whether every part is in its exact place and none is empty
    error: ParseError = ParseError.NONE  # why the calls could not be parsed


def read(text: str) -> Reading:
    """Parse a response, after `assistant_text`. This does not raise an error for any text."""
    text = text.replace("\r\n", "\n")
    error = ParseError.NONE
    for likely, end in _thought_ends(text):
        try:
            calls, position, tidy = _read_calls(text, end)
            has_response, tidy_tail = _read_tail(text[position:])
            tidy = tidy and tidy_tail and has_thought(text, end)
            return Reading(calls, has_response, tidy)
        except Unreadable as failure:
            # The error after the most likely end is reported. The other ends are only guesses.
            error = error or failure.code
            if likely and failure.code is ParseError.OUT_OF_ORDER:
                break
    return Reading([], False, False, error or ParseError.UNCLOSED)


def _thought_ends(text: str) -> list[tuple[bool, int]]:
    """List the positions at which the thought may end, with the most likely one first.

    Each position comes with whether the text goes on with a newline and a call or a response. The
    position 0 means that there is no thought.
    """
    tags = list(_TAG.finditer(text))
    thoughts = [tag for tag in tags if "think" in tag[0]]
    # If the first tag is not a tag of a thought, there may be no thought.
    none = [(False, 0)] if tags[:1] != thoughts[:1] or not tags else []
    if none and (not thoughts or thoughts[0][0] == THINK):
        return none
    ends = [
        (apart(text[tag.end() : after.start()]), tag.end())
        for tag, after in pairwise(tags)
        if tag[0] == END_THINK and after[0] in (OPEN, RESPONSE)
    ]
    ends.sort(key=lambda end: not end[0])
    # The rest of the text is parsed again after each end. Trying all ends would take quadratic
    # time.
    ends = none + ends[:MOST_ENDS]
    last = text.rfind(END_THINK)
    if last >= 0:
        ends.append((False, last + len(END_THINK)))
    return ends


def _read_calls(text: str, position: int) -> tuple[list[Call], int, bool]:
    """Parse the calls of all blocks from `position` on.

    Returns the calls, the position after them, and whether they are tidy.
    """
    start = text.find(OPEN, position)
    if start >= 0 and len(text) - start > LONGEST:
        raise Unreadable(ParseError.TOO_LONG)
    calls: list[Call] = []
    tidy = True
    while start >= 0:
        gap = text[position:start]
        if _TAG.search(gap):
            raise Unreadable(ParseError.OUT_OF_ORDER)
        tidy = tidy and apart(gap)
        start += len(OPEN)
        position = _read_block(text, start, calls)
        starts_line = text[start] == "\n"
        ends_line = text[position - len(CLOSE) - 1] == "\n"
        tidy = tidy and starts_line and ends_line
        start = text.find(OPEN, position)
    return calls, position, tidy


def _read_block(text: str, position: int, calls: list[Call]) -> int:
    """Append the calls of a block to `calls`, and return the position after its closing tag.

    A JSON decoder reads the block, so a tag inside a string argument does not close the block.
    """
    before = len(calls)
    gap = next(_GAP.finditer(text, position))
    while not gap[1]:
        value, position = _decode(text, gap.end())
        values = value if isinstance(value, list) else [value]
        calls += map(_as_call, values)
        gap = next(_GAP.finditer(text, position))
    if len(calls) == before:
        raise Unreadable(ParseError.NOT_A_CALL)
    return gap.end()


def _decode(text: str, position: int) -> tuple[Any, int]:
    """Decode one JSON value, and return it with the position after it."""
    if position == len(text):
        raise Unreadable(ParseError.UNCLOSED)
    try:
        return _DECODER.raw_decode(text, position)
    except json.JSONDecodeError:
        raise Unreadable(ParseError.NOT_JSON) from None
    except RecursionError:
        raise Unreadable(ParseError.TOO_DEEP) from None


def _as_call(value: Any) -> Call:
    """Return a JSON value as a call. The layout of OpenAI's API is accepted, too."""
    if isinstance(value, dict) and "name" not in value:
        value = value.get("function")  # OpenAI's API nests a call in this key
    if not isinstance(value, dict):
        raise Unreadable(ParseError.NOT_A_CALL)
    name = value.get("name")
    parameters = value["parameters"] if "parameters" in value else value.get("arguments")
    if isinstance(parameters, str):  # OpenAI's API writes the arguments as JSON text
        written = parameters.strip()
        parameters, end = _decode(written, 0)
        if end < len(written):
            raise Unreadable(ParseError.NOT_JSON)
    if not isinstance(name, str) or not isinstance(parameters, dict):
        raise Unreadable(ParseError.NOT_A_CALL)
    return {"name": name, "parameters": parameters}


def _read_tail(tail: str) -> tuple[bool, bool]:
    """Return whether the text after the last call has a `<response>`, and whether it is tidy."""
    if not tail:
        return False, True
    gap, opened, rest = tail.partition(RESPONSE)
    inner, closed, after = rest.rpartition(END_RESPONSE)
    if _TAG.search(gap) or _TAG.search(after) or CLOSE in inner:
        raise Unreadable(ParseError.OUT_OF_ORDER)
    # A `<response>` that mentions its own tags counts as a response. It is not tidy, because it is
    # not clear which tag ends it.
    once = RESPONSE not in inner and END_RESPONSE not in inner
    tidy = bool(closed) and not after and once and apart(gap) and bool(inner.strip())
    return bool(opened), tidy


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        raise Unreadable(ParseError.DUPLICATE_KEY)
    return mapping


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise Unreadable(ParseError.NOT_FINITE)
    return number


def _integer(digits: str) -> int:
    _finite(digits)  # this comes first, because int() raises a different error for too many digits
    return int(digits)


_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique,
    parse_int=_integer,
    parse_float=_finite,
    parse_constant=_finite,
)
