"""Read the program of a response, and the tests of a row.

The policy writes the response, and may learn to exploit a slow reader. Therefore reading takes
linear time.
"""

from __future__ import annotations

import ast
import json
import re
import reprlib
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from keyword import iskeyword
from typing import Any

from gdpo_verl.rewards.code_defines import defines
from gdpo_verl.rewards.thought import assistant_text
from gdpo_verl.sandbox.child import encode

# A closing tag in quotes or in a code span is only mentioned, and does not end the thought.
_END_OF_THOUGHT = re.compile(r"""(?<!["'`])</think>(?!["'`])""")
_THOUGHT = re.compile(r"^[ \t]*<think>", re.MULTILINE)
_LIST_MARKS = " \t-+*.)0123456789"
_FENCE = re.compile(r"(?<!`)(`{3,})([^`]*)$")
_CLOSING = re.compile(r"([ \t]*)(`{3,})(?![\w`])")
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
"""The code that verl's rewards run before every program (verl/utils/reward_score/prime_code)."""


@dataclass(frozen=True)
class Tests:
    """The tests of a row."""

    kind: str  # 'script' (standard input and output), 'call' or 'assert'
    inputs: list[Any]  # for each test a text, a list of arguments, or the source of the test
    # For each test a text or a JSON value; empty for 'assert'.
    outputs: list[Any] = field(default_factory=list)
    name: str = ""  # the name of the function that the tests call
    setup: str = ""  # code that runs before the program, such as the imports of a prompt


def find_code(text: str, name: str = "", *, strict: bool = True) -> str:
    """Return the program of a response.

    The program is the last fenced block with a label for Python. If there is none, it is the last
    block without a label. If the tests call a function, blocks that define the function come first,
    because a model may show in a further block how to use the function, or only its signature.
    Without a block, the result is empty.

    Blocks in the thought do not count. The thought ends at the last `</think>` that is not in
    quotes. A `<think>` at the beginning of a later line is a thought without an end, and the result
    is empty.

    Args:
      text: the assistant's turn.
      name: the name of the function that the tests call; empty for a script.
      strict: False to read like verl's code rewards. They read from the last "```python" to the
        next fence. Without such a label they read the text up to any fence.

    >>> find_code("First:\\n```python\\nprint(1)\\n```\\nBetter:\\n```python\\nprint(2)\\n```\\n")
    'print(2)'
    """
    if not strict:
        return text.rpartition("```python")[2].partition("```")[0]
    answer = _END_OF_THOUGHT.split(assistant_text(text))[-1]
    if _THOUGHT.search(answer):
        return ""
    blocks = list(reversed(_blocks(answer)))
    python = [source for label, source in blocks if _PYTHON.match(label)]
    plain = [source for label, source in blocks if not label]
    sources = python + plain
    if name:
        sources = [source for source in sources if defines(source, name)] or sources
    return sources[0] if sources else ""


def _blocks(text: str) -> list[tuple[str, str]]:
    """Return the label and the source of each fenced block of a text, without empty blocks.

    A fence opens a block if it is at the beginning of a line or of a list item. After other text,
    a fence may be only mentioned. It then opens a block only if its label is one for Python, or if
    the text before it ends in `:` or `>`.

    The block ends at a line that begins with a fence of at least the same length and without a
    label. This fence may be indented by at most three spaces more than the opening one. Without
    such a line, the block ends at any fence in it, at `</answer>`, or at the end of the text.
    """
    blocks = []
    lines = iter(text.split("\n"))
    for line in lines:
        opening = _FENCE.search(line)
        if opening is None:
            continue
        before = line[: opening.start()].strip(_LIST_MARKS)
        label = opening[2].strip()
        if not before or _PYTHON.fullmatch(label) or before.endswith((":", ">")):
            source = _up_to_fence(lines, opening[1], opening.start())
            # A byte order mark is not part of the program.
            source = textwrap.dedent(source.lstrip("\ufeff"))
            if source.strip():
                blocks.append((label, source))
    return blocks


def _up_to_fence(lines: Iterator[str], fence: str, margin: int) -> str:
    """Consume the lines of a block and its closing fence, and return the source."""
    block: list[str] = []
    for line in lines:
        closing = _CLOSING.match(line)
        indent = len(closing[1].expandtabs(4)) if closing else 0
        if closing and closing[2].startswith(fence) and indent < margin + 4:
            return "\n".join(block)
        block.append(line)
    return "\n".join(block).partition("```")[0].partition("</answer>")[0]


def parse_ground_truth(ground_truth: str | dict[str, Any]) -> Tests:
    """Read the tests of a row.

    The ground truth is a JSON object, as text or parsed, in one of these layouts:

    * `{"inputs": [...], "outputs": [...]}`: standard input and standard output. Each entry is a
      text or a list of lines.
    * The same with `"fn_name"`: the arguments of a call, and its value. The arguments are a list,
      and the value is a JSON value. Or both are texts: the arguments as JSON, one in each line, and
      the value as JSON.
    * `{"entry_point", "test", "prompt"}`: `test` is a source text or a list of source texts. Each
      of them is one test, which defines `check(candidate)` or has asserts. The optional `prompt`
      runs first.

    Raises ValueError if the object has none of these layouts, or no test.
    """
    try:
        return _parse(ground_truth)
    # Python's own parser raises MemoryError or RecursionError for a deeply nested text.
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError) as error:
        shown = reprlib.repr(ground_truth)
        why = str(error) or "nested too deep"
        raise ValueError(f"ground_truth: expected tests, found {shown}: {why}") from error


def _parse(truth: Any) -> Tests:
    if isinstance(truth, str):
        truth = _loads(truth)
    if not isinstance(truth, dict):
        raise ValueError("expected an object")
    name: Any = truth.get("entry_point", truth.get("fn_name"))
    is_name = isinstance(name, str) and name.isidentifier() and not iskeyword(name)
    if name is not None and not is_name:
        raise ValueError(f"expected a function's name, found {name!a:.200}")
    tests = truth.get("test")
    if isinstance(tests, str):
        tests = [tests]
    if truth.get("entry_point") and tests and isinstance(tests, list):
        setup = truth.get("prompt") or ""
        for source in (setup, *tests):
            ast.parse(source, "prompt or test")
        return Tests("assert", tests, name=name, setup=setup)
    inputs: Any = truth.get("inputs")
    outputs: Any = truth.get("outputs")
    lists = isinstance(inputs, list) and isinstance(outputs, list)
    if not lists or not inputs or len(inputs) != len(outputs):
        raise ValueError(
            "expected 'inputs' and 'outputs', two lists of one length that are not empty, or "
            "'entry_point' and 'test'"
        )
    if name is None:
        return Tests("script", list(map(_as_text, inputs)), list(map(_as_text, outputs)))
    cases = [_as_call(*case) for case in zip(inputs, outputs, strict=True)]
    return Tests("call", [case[0] for case in cases], [case[1] for case in cases], name)


def _loads(text: Any) -> Any:
    """Parse JSON, also with integers of more than 4,300 digits, which int() rejects."""
    return json.loads(text, parse_int=lambda digits: int(Decimal(digits)))


def _as_text(lines: Any) -> str:
    if isinstance(lines, list) and all(isinstance(line, str) for line in lines):
        return "\n".join(lines)
    if not isinstance(lines, str):
        raise ValueError(f"expected a text or a list of lines, found {lines!a:.200}")
    return lines


def _as_call(arguments: Any, value: Any) -> tuple[list[Any], Any]:
    if isinstance(arguments, str):
        arguments = [_loads(line) for line in arguments.split("\n") if line.strip()]
        value = _loads(value)
    if not isinstance(arguments, list):
        raise ValueError(f"expected a list of arguments, found {arguments!a:.200}")
    # The data will be sent to the sandbox in this way, which fails if it is nested too deeply.
    json.dumps(encode([arguments, value]))
    return arguments, value
