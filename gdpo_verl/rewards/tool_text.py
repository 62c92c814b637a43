"""Read an assistant's tool-calling answer: thought, calls, response, each in its place.

    <think>why</think>
    <tool_call>
    {"name": "add", "parameters": {"a": 1}}
    </tool_call>
    <response>done</response>

The text comes from an adversary, the policy itself. Whatever it is, reading takes time
linear in its length and ends in a `Reading`, never in an exception.

**Where the thought ends.** At the first `</think>` that newlines and then `<tool_call>` or
`<response>` follow; without one, at the last `</think>`. So a thought may mention any
tag, its own included, and all of it stays thought.

**Order.** Outside the thought and the JSON of the calls, a tag that is not in its place
(thought, calls, response) makes the answer out of order, and none of its calls count. A
response may mention the tags of thought, but no call.
"""

from __future__ import annotations

import json
import math
import re
from enum import IntEnum
from json.scanner import make_scanner
from typing import Any, NamedTuple, NoReturn

Call = dict[str, Any]

OPEN, CLOSE = "<tool_call>", "</tool_call>"
RESPONSE, END_RESPONSE = "<response>", "</response>"
END_TOKENS = (
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|end|>",
    "</s>",
)

_TAG = re.compile(r"</?(?:think|tool_call|response)>")
_THOUGHT_END = re.compile(r"</think>(?=\n+<(?:tool_call|response)>)")
_SPACE = re.compile(r"\s*")
_LAST_TOKEN = re.compile(r"\s*(?:" + "|".join(re.escape(t[::-1]) for t in END_TOKENS) + ")")
_STRING_OR_GAP = re.compile(r'"[^"]*"?|</tool_call>.*?(?:<tool_call>|\Z)', re.DOTALL)

MOST_VALUES = 30_000
"""How many strings, lists, objects and commas all calls of an answer may hold together.

A closing call tag counts as well; what stands in a string does not."""


class ParseError(IntEnum):
    """Why the calls of an answer could not be read; the numeric diagnostic `parse_error`."""

    NONE = 0
    """Nothing wrong."""
    NO_CALL = 1
    """Calls were asked for, and none stands outside the thought."""
    OUT_OF_ORDER = 2
    """A tag stands outside its place, as a closing before an opening one."""
    UNCLOSED = 3
    """The thought or a block of calls has no end."""
    NOT_JSON = 4
    """What stands between the call tags is not JSON."""
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
    TOO_MANY = 14
    """The calls hold more than `MOST_VALUES` strings, lists, objects and commas."""


class Unreadable(ValueError):
    """Calls that cannot be read, with the code that says why."""

    def __init__(self, code: ParseError) -> None:
        super().__init__(code.name)
        self.code = code


class Reading(NamedTuple):
    """What an answer says.

    Attributes:
      calls: dicts of exactly `name` (str) and `parameters` (dict), in order of appearance;
        empty when they could not be read.
      has_response: a `<response>` stands outside the thought and the calls.
      tidy: every part is in its exact place and none is empty.
      error: why the calls could not be read. NONE also when there are none.
    """

    calls: list[Call]
    has_response: bool
    tidy: bool
    error: ParseError = ParseError.NONE


def assistant_text(text: str) -> str:
    """The text without the white space around it and the special tokens at its end."""
    text = text.strip()
    end = len(text)
    while text.endswith(END_TOKENS, 0, end):
        # By windows: a copy of the whole text takes long where it is large.
        backwards, dropped = text[max(0, end - 1024) : end][::-1], 0
        while token := _LAST_TOKEN.match(backwards, dropped):
            dropped = token.end()
        end = _visible_end(text, end - dropped)
    return text[:end]


def _visible_end(text: str, end: int) -> int:
    """Where `text[:end]` would end without the white space at its end."""
    visible = 0
    while end and not visible:
        start = max(0, end - 1024)
        visible = len(text[start:end].rstrip())
        end = start + visible
    return end


def read(text: str) -> Reading:
    """Read an answer that went through `assistant_text`. Never raises for any text."""
    try:
        thought_end = _find_thought_end(text)
        calls, position, tidy = _read_calls(text, thought_end)
        has_response, tidy_tail = _read_tail(text[position:])
    except Unreadable as failure:
        return Reading([], False, False, failure.code)
    tidy = tidy and tidy_tail and _is_tidy_thought(text, thought_end)
    return Reading(calls, has_response, tidy)


def refuse_too_many(text: str, start: int = 0) -> None:
    """Keep JSON from becoming more Python objects than are made in linear time.

    The memory of many more is taken from the system and given back for each answer.

    Args:
      text: an answer.
      start: where its calls begin; negative when there are none.

    Raises:
      Unreadable: more than `MOST_VALUES` strings, lists, objects and commas stand in them.
    """
    if start < 0 or len(text) - start <= MOST_VALUES:  # a shorter text cannot hold too many
        return
    # Without escapes, every quotation mark begins or ends a string.
    calls = text[start:].replace("\\\\", "..").replace('\\"', "..")
    rest, strings = _STRING_OR_GAP.subn("", calls, count=MOST_VALUES + 1)
    if strings + sum(map(rest.count, "[{,")) > MOST_VALUES:
        raise Unreadable(ParseError.TOO_MANY)


def _find_thought_end(text: str) -> int:
    """The position behind the thought's closing tag, 0 when there is no thought."""
    if not text.startswith("<think>"):
        first = _TAG.search(text)
        if first is None or first.group() not in ("<think>", "</think>"):
            return 0
    boundary = _THOUGHT_END.search(text)
    start = boundary.start() if boundary else text.rfind("</think>")
    if start < 0:
        raise Unreadable(ParseError.UNCLOSED)
    return start + len("</think>")


def _is_tidy_thought(text: str, end: int) -> bool:
    if not text.startswith("<think>"):
        return False
    inner = text[len("<think>") : end - len("</think>")]
    return bool(inner) and not inner.isspace()


def _read_calls(text: str, position: int) -> tuple[list[Call], int, bool]:
    """The calls of all blocks from `position`, where they end, and whether they are tidy."""
    start = text.find(OPEN, position)
    refuse_too_many(text, start)
    calls: list[Call] = []
    tidy, in_order = True, True
    while start >= 0:
        gap = text[position:start]
        if not gap or gap.strip("\n"):
            tidy = False
            in_order = in_order and not _has_tag(gap)
        start += len(OPEN)
        position = _read_block(text, start, calls)
        tidy = tidy and text[start] == "\n" == text[position - len(CLOSE) - 1]
        start = text.find(OPEN, position)
    if not in_order:
        raise Unreadable(ParseError.OUT_OF_ORDER)
    return calls, position, tidy


def _read_block(text: str, position: int, calls: list[Call]) -> int:
    """Add the calls from `position` to the closing tag; return the position behind that tag.

    A JSON decoder walks the block, so a tag inside a string argument closes nothing.
    """
    before = len(calls)
    position = _skip_space(text, position)
    while not text.startswith(CLOSE, position):
        value, position = _decode(text, position)
        if isinstance(value, list):
            calls += map(_as_call, value)
        else:
            calls.append(_as_call(value))
        position = _skip_space(text, position)
    if len(calls) == before:
        raise Unreadable(ParseError.NOT_A_CALL)
    return position + len(CLOSE)


def _skip_space(text: str, position: int) -> int:
    return _SPACE.match(text, position).end()  # type: ignore[union-attr]


def _decode(text: str, position: int) -> tuple[Any, int]:
    if position == len(text):
        raise Unreadable(ParseError.UNCLOSED)
    try:
        return _SCAN(text, position)
    except (json.JSONDecodeError, StopIteration):
        raise Unreadable(ParseError.NOT_JSON) from None
    except RecursionError:
        raise Unreadable(ParseError.TOO_DEEP) from None


def _as_call(value: Any) -> Call:
    if not isinstance(value, dict):
        raise Unreadable(ParseError.NOT_A_CALL)
    name = value.get("name")
    parameters = value["parameters"] if "parameters" in value else value.get("arguments")
    if not isinstance(name, str) or not isinstance(parameters, dict):
        raise Unreadable(ParseError.NOT_A_CALL)
    return {"name": name, "parameters": parameters}


def _read_tail(tail: str) -> tuple[bool, bool]:
    """Whether the text behind the last call holds a response, and whether it is tidy."""
    if not tail:
        return False, True
    gap, opened, rest = tail.partition(RESPONSE)
    inner, closed, after = rest.rpartition(END_RESPONSE)
    if _has_tag(gap) or _has_tag(after) or CLOSE in inner:
        raise Unreadable(ParseError.OUT_OF_ORDER)
    once = RESPONSE not in inner and END_RESPONSE not in inner
    apart = bool(gap) and not gap.strip("\n")
    return bool(opened), bool(closed) and not after and once and apart and bool(inner.strip())


def _has_tag(text: str) -> bool:
    return "<" in text and _TAG.search(text) is not None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        raise Unreadable(ParseError.DUPLICATE_KEY)
    return mapping


def _integer(digits: str) -> int:
    # int() takes quadratic time, and refuses long digit strings only on some Pythons.
    if len(digits) > 308:
        raise Unreadable(ParseError.NOT_FINITE)
    return int(digits)


def _real(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise Unreadable(ParseError.NOT_FINITE)
    return number


def _refuse(_constant: str) -> NoReturn:
    raise Unreadable(ParseError.NOT_FINITE)


_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique, parse_int=_integer, parse_float=_real, parse_constant=_refuse
)
_SCAN = make_scanner(_DECODER)  # type: ignore[arg-type]  # typeshed asks for a scanner
