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

MAX_BRACKETS = 80_000
"""So many objects and lists may stand in an answer's calls; more are not read, and counted.

Python's collector walks the whole heap again and again while one JSON value makes more of them
than that, and takes several times as long as the decoder in a worker that has imported verl.
"""

_TAG = re.compile(r"</?(?:think|tool_call|response)>")
_THOUGHT_END = re.compile(r"</think>(?=\n+<(?:tool_call|response)>)")
_SPACE = re.compile(r"\s*")


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
    TOO_LARGE = 14
    """More than `MAX_BRACKETS` opening brackets in the calls."""


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
    error: ParseError


def assistant_text(text: str) -> str:
    """The text without the white space around it and the special tokens at its end."""
    text = text.strip()
    end = len(text)
    while True:
        # A short window: slicing the whole text for each token would take quadratic time.
        window = text[max(0, end - 64) : end]
        blank = len(window) - len(window.rstrip())
        if not blank and not window.endswith(END_TOKENS):
            return text[:end]
        end -= blank or len(window) - window.rindex("<")


def read(text: str) -> Reading:
    """Read an answer that went through `assistant_text`. Never raises for any text."""
    try:
        thought, answer = _split_thought(text)
        calls, texts, tidy_calls = _split_calls(answer)
        _check_order(texts)
    except Unreadable as failure:
        return Reading([], False, False, failure.code)
    has_response, tidy = _read_tail(texts.pop())
    tidy = tidy and tidy_calls and all(map(_is_gap, texts)) and _is_tidy_thought(thought)
    return Reading(calls, has_response, tidy, ParseError.NONE)


def _split_thought(text: str) -> tuple[str, str]:
    if not text.startswith("<think>"):
        first = _TAG.search(text)
        if first is None or first.group() not in ("<think>", "</think>"):
            return "", text
    boundary = _THOUGHT_END.search(text)
    start = boundary.start() if boundary else text.rfind("</think>")
    if start < 0:
        raise Unreadable(ParseError.UNCLOSED)
    end = start + len("</think>")
    return text[:end], text[end:]


def _is_tidy_thought(thought: str) -> bool:
    inner = thought.removeprefix("<think>").removesuffix("</think>")
    return thought.startswith("<think>") and bool(inner.strip())


def _split_calls(answer: str) -> tuple[list[Call], list[str], bool]:
    """The calls of all blocks, the texts around the blocks, and whether each block is tidy."""
    calls: list[Call] = []
    texts: list[str] = []
    position, tidy = 0, True
    if len(answer) > MAX_BRACKETS:
        check_size(answer[answer.find(OPEN) :])
    while (start := answer.find(OPEN, position)) >= 0:
        texts.append(answer[position:start])
        block, position = _read_block(answer, start + len(OPEN))
        calls += block
        tidy = tidy and answer.startswith("\n", start + len(OPEN))
        tidy = tidy and answer.endswith("\n", 0, position - len(CLOSE))
    texts.append(answer[position:])
    return calls, texts, tidy


def check_size(calls: str) -> None:
    """Refuse text with more than `MAX_BRACKETS` opening brackets, those in strings included.

    Raises:
      Unreadable: with `ParseError.TOO_LARGE`.
    """
    if calls.count("{") + calls.count("[") > MAX_BRACKETS:
        raise Unreadable(ParseError.TOO_LARGE)


def _read_block(answer: str, position: int) -> tuple[list[Call], int]:
    """The calls from `position` to the closing tag, and the position behind that tag.

    A JSON decoder walks the block, so a tag inside a string argument closes nothing.
    """
    calls: list[Call] = []
    position = _skip_space(answer, position)
    while not answer.startswith(CLOSE, position):
        value, position = _decode(answer, position)
        if isinstance(value, list):
            calls += map(_as_call, value)
        else:
            calls.append(_as_call(value))
        position = _skip_space(answer, position)
    if not calls:
        raise Unreadable(ParseError.NOT_A_CALL)
    return calls, position + len(CLOSE)


def _skip_space(text: str, position: int) -> int:
    return _SPACE.match(text, position).end()  # type: ignore[union-attr]


def _decode(text: str, position: int) -> tuple[Any, int]:
    if position == len(text):
        raise Unreadable(ParseError.UNCLOSED)
    try:
        return _DECODER.raw_decode(text, position)
    except json.JSONDecodeError:
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


def _check_order(texts: list[str]) -> None:
    before, _, rest = texts[-1].partition(RESPONSE)
    response, _, after = rest.rpartition(END_RESPONSE)
    for text in (*texts[:-1], before, after):
        if "<" in text and _TAG.search(text):
            raise Unreadable(ParseError.OUT_OF_ORDER)
    if CLOSE in response:
        raise Unreadable(ParseError.OUT_OF_ORDER)


def _read_tail(tail: str) -> tuple[bool, bool]:
    """Whether the text behind the last call holds a response, and whether it is tidy."""
    gap, tag, rest = tail.partition(RESPONSE)
    if not tag:
        return False, not tail
    inner = rest.removesuffix(END_RESPONSE)
    closed = len(inner) < len(rest) and END_RESPONSE not in inner
    return True, closed and _is_gap(gap) and RESPONSE not in inner and bool(inner.strip())


def _is_gap(text: str) -> bool:
    return bool(text) and not text.strip("\n")


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
