"""Read what a code reward is given: the program of an answer, and the tests of a row.

The answer comes from an adversary, the policy itself: reading any takes linear time.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import takewhile
from keyword import iskeyword
from typing import Any

from gdpo_verl.rewards.code_defines import defines
from gdpo_verl.rewards.thought import END_THINK, THINK, assistant_text
from gdpo_verl.sandbox.child import encode

_TAG = re.compile(r"</?think>")
_SPAN = re.compile(r"`{1,2}[^`]+`{1,2}")
# Marker of a list, text, fence and label.
_OPENING = re.compile(
    r"([ \t]*(?:(?:[-*+]|\d+[.)])[ \t]+)?)(|(?!```|~~~)\S(?:(?!```).)*(?=```))"
    r"(`{3,}(?=[^`]*$)|~{3,})(.*)"
)
_CLOSING = re.compile(r"([ \t]*)(`{3,}|~{3,})(?:[ \t\r]*(?=<|$)|(?=[.,;:)]| +[A-Z(]))")
_UNQUOTED_END = re.compile(r"(?<!`)</think>(?!`)")
_BEHIND_CODE = re.compile(r"(?<=[^\s`])[ \t]*```+[ \t\r]*(?=<|$)|</answer>\s*\Z", re.MULTILINE)
_PYTHON = re.compile(
    r"[\s{#]*\.?(?:[\w./-]+\.|x-|language-|i)?py(?:py|thon)?(?:[-_]code)?-?[\d.]*(?![\w-])",
    re.IGNORECASE,
)
PUBLISHED_IMPORTS = (
    "string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random",
    "statistics", "itertools", "functools", "operator", "io", "sys", "json", "builtins", "typing",
)  # fmt: skip
PUBLISHED_SETUP = (
    "".join(f"from {module} import *\n" for module in PUBLISHED_IMPORTS)
    + "".join(f"import {module}\n" for module in PUBLISHED_IMPORTS[:-2])
    + "sys.setrecursionlimit(600_000)\n"
)
"""Run ahead of every program by verl's code rewards (verl/utils/reward_score/prime_code)."""


Block = tuple[str, list[str]]
"""The label and the lines of a fenced block."""


@dataclass(frozen=True)
class Tests:
    """The tests of an answer."""

    kind: str  # 'script' (standard input and output), 'call' or 'assert'
    inputs: list[Any]  # a text, a list of arguments, or the source of a test
    outputs: list[Any] = field(default_factory=list)  # a text or a JSON value; none for 'assert'
    name: str = ""  # the function to call
    setup: str = ""  # runs before the answer, as a prompt's imports


def find_code(text: str, name: str = "", *, strict: bool = True) -> str:
    """The program of an answer: its last block fenced as Python, else its last unlabelled; or ''.

    Where a function is asked for, it is the last of them that defines it, if one does: models
    show in a further block how it is used, or its head alone. Thoughts are no answer, in one
    without an end there is none, and tags in a block or a code span make none. Without `<think>`,
    one began in the prompt. A block that is not closed reaches to a fence behind code, to
    `</answer>` at the end, or to the end of the text.

    Args:
      text: the assistant's turn.
      name: the function that the tests call; empty for a script.
      strict: False to read as verl's code rewards do: from the last "```python" to the next
        fence, and without one, the text up to any fence.

    >>> find_code("First:\\n```python\\nprint(1)\\n```\\nBetter:\\n```python\\nprint(2)\\n```\\n")
    'print(2)\\n'
    """
    if not strict:
        return text.rpartition("```python")[2].partition("```")[0]
    text = assistant_text(text)
    blocks = _blocks(text)
    if blocks is None:  # the thought has no end, or a fence that was opened in it has none
        blocks = _blocks("".join(_UNQUOTED_END.split(text, maxsplit=1)[1:])) or []
    # A byte order mark in front of a program is no part of it.
    read = [(label, _dedented(lines).lstrip("\ufeff")) for label, lines in reversed(blocks)]
    python = [source for label, source in read if _PYTHON.match(label) and source.strip()]
    plain = [source for label, source in read if not label and source.strip()]
    readable = python + plain
    if name:
        readable = [source for source in readable if defines(source, name)] or readable
    return readable[0] if readable else ""


def _blocks(text: str) -> list[Block] | None:
    """The fenced blocks behind the thought; None when that is open."""
    blocks: list[Block] = []
    before_thought = 0  # blocks, which are no part of it
    thinking = False
    for piece in _pieces(text):
        if isinstance(piece, tuple):
            blocks.append(piece)
            continue
        for tag in _TAG.findall(_SPAN.sub("", piece)):
            if tag == END_THINK:  # what was fenced in the thought is no answer
                del blocks[before_thought:]
            if not thinking:
                before_thought = len(blocks)
            thinking = tag == THINK
    return None if thinking else blocks


def _pieces(text: str) -> Iterator[str | Block]:
    """The fenced blocks of a text, and the lines with tags outside them.

    A fence closes a block by CommonMark's rules: it is at least as long as the opening one, and
    indented by less than four more. Tags may follow it, and text may stand before an opening one.
    """
    fence = ""  # of a block, while that is open
    label = ""
    margin = 0
    lines: list[str] = []
    thought_ended = False  # perhaps, within the block
    for line in text.split("\n"):
        if fence:
            again = line.startswith("```") and _PYTHON.match(line.lstrip("`"))
            closing = _CLOSING.match(line) if fence in line else None
            if again and thought_ended:  # behind a thought that left a fence open
                yield END_THINK
            elif again and not lines:
                pass  # opened twice
            elif closing and closing[2].startswith(fence) and _width(closing[1]) < margin + 4:
                yield label, [*lines, ""]
                line = line[closing.end() :]
            else:
                lines.append(line)
                thought_ended = thought_ended or line.rstrip().endswith(END_THINK)
                continue
            fence = ""
        if "think>" in line:
            yield line
            line = line.rpartition("think>")[2]
        opening = _OPENING.match(line) if "```" in line or "~~~" in line else None
        if opening:
            marker, before, run, label = opening.groups()
            label = label.strip()
            # Behind text, where a fence may be talked about, it is Python's or it is announced.
            if not before or _PYTHON.fullmatch(label) or before.rstrip()[-1] in ":>":
                fence = run
                margin = _width(marker)
                lines = []
                thought_ended = False
    if fence:
        yield label, _without_end(lines, fence)


def _without_end(lines: list[str], fence: str) -> list[str]:
    """A block that no proper fence closes, up to a shorter one or one where no line begins."""
    shorter = [fence[:length] for length in range(3, min(len(fence), 9))]
    inside = takewhile(lambda line: line.strip() not in shorter, lines)
    return _BEHIND_CODE.split("\n".join(inside), 1)[:1]


def _width(space: str) -> int:
    return len(space.expandtabs(4))


def _dedented(lines: list[str]) -> str:
    """The source without the indentation of its first line of code, which is that of a list."""
    first = next((line for line in lines if line.strip() and line.lstrip()[0] != "#"), "")
    indent = first[: len(first) - len(first.lstrip())]
    return ("\n" + "\n".join(lines)).replace("\n" + indent, "\n")[1:]


def parse_ground_truth(ground_truth: str | dict[str, Any]) -> Tests:
    """Read a row's tests, at data preparation, where malformed ones are an error.

    A JSON object, as text or parsed, of one of these forms:

    * `{"inputs": [...], "outputs": [...]}`: standard input and output, texts or lists of lines.
    * the same with `"fn_name"`: the arguments as a list with the value as JSON, or both as
      text: the arguments as JSON, one a line, the value as JSON.
    * `{"entry_point", "test", "prompt"}`: `test` is a source text, or a list of them, each one
      test; it defines `check(candidate)` or has asserts. `prompt`, optional, runs first.

    Raises ValueError where it is none of these, or has no test.
    """
    try:
        return _parse(ground_truth)
    except (RecursionError, MemoryError) as error:  # MemoryError: of Python's own parser
        raise ValueError("ground_truth: nested too deep to be sent") from error


def _parse(ground_truth: Any) -> Tests:
    if isinstance(ground_truth, str):
        ground_truth = _loads(ground_truth)
    if not isinstance(ground_truth, dict):
        raise ValueError(f"ground_truth: expected an object, found {ground_truth!a:.200}")
    if "entry_point" in ground_truth:
        return _asserting(ground_truth)
    inputs, outputs = ground_truth.get("inputs"), ground_truth.get("outputs")
    if not isinstance(inputs, list) or not isinstance(outputs, list):
        raise ValueError(
            "ground_truth: expected the lists 'inputs' and 'outputs', or 'entry_point' and "
            f"'test', found the keys {sorted(map(str, ground_truth))}"
        )
    if not inputs or len(inputs) != len(outputs):
        raise ValueError(
            f"ground_truth: expected as many inputs as outputs and at least one, found "
            f"{len(inputs)} and {len(outputs)}"
        )
    name = ground_truth.get("fn_name")
    if name is None:
        return Tests("script", list(map(_as_text, inputs)), list(map(_as_text, outputs)))
    if not _is_name(name):
        raise ValueError(f"ground_truth: expected a function's name as 'fn_name', found {name!a}")
    cases = [_as_call(*case) for case in zip(inputs, outputs, strict=True)]
    return Tests("call", [case[0] for case in cases], [case[1] for case in cases], name)


def _asserting(truth: dict[str, Any]) -> Tests:
    tests, name, setup = truth.get("test"), truth["entry_point"], truth.get("prompt") or ""
    tests = [tests] if isinstance(tests, str) else tests
    if not _is_name(name) or not isinstance(tests, list) or not tests:
        raise ValueError(
            "ground_truth: expected a function's name as 'entry_point' and a source text or a "
            f"list of them as 'test', found {name!a} and {truth.get('test')!a:.200}"
        )
    for source in (setup, *tests):
        try:
            ast.parse(source)
        except (SyntaxError, ValueError, TypeError) as error:
            raise ValueError(f"ground_truth: 'prompt' or 'test' is no Python: {error}") from error
    return Tests("assert", tests, name=name, setup=setup)


def _loads(text: Any) -> Any:
    try:
        return json.loads(text, parse_int=_integer)
    except (ValueError, TypeError) as error:
        raise ValueError(f"ground_truth: expected JSON: {error}, found {text!a:.200}") from error


def _integer(digits: str) -> int:
    """An integer of any size: int() itself takes no more than 4,300 digits."""
    return int(Decimal(digits))


def _is_name(name: Any) -> bool:
    return isinstance(name, str) and name.isidentifier() and not iskeyword(name)


def _as_text(lines: Any) -> str:
    if isinstance(lines, list) and all(isinstance(line, str) for line in lines):
        return "\n".join(lines)
    if not isinstance(lines, str):
        raise ValueError(f"ground_truth: expected a text or a list of lines, found {lines!a:.200}")
    return lines


def _as_call(arguments: Any, value: Any) -> tuple[list[Any], Any]:
    if isinstance(arguments, str):
        arguments = [_loads(line) for line in arguments.split("\n") if line.strip()]
        value = _loads(value)
    if not isinstance(arguments, list):
        raise ValueError(f"ground_truth: expected a list of arguments, found {arguments!a:.200}")
    try:
        json.dumps(encode([arguments, value]))  # as it will be sent, at no greater depth
    except (ValueError, TypeError) as error:
        raise ValueError(f"ground_truth: no plain data that can be sent: {error}") from error
    return arguments, value
