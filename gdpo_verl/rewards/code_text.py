"""Read what a code reward is given: the program of an answer, and the tests of a row.

The answer comes from an adversary, the policy itself. Whatever it is, reading takes time
linear in its length and never raises.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from gdpo_verl.sandbox.child import encode

# The line is looked through ahead: what follows overlaps, and would take quadratic time to fail.
_FENCE = re.compile(r"^([ \t]*)```+(?=[^`\n]*$)[ \t]*([^\s`]*)[^`\n]*$", re.MULTILINE)
_LABELS = ("python", "py", "python3")

PUBLISHED_IMPORTS = (
    *("string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random"),
    *("statistics", "itertools", "functools", "operator", "io", "sys", "json", "builtins"),
    "typing",
)
PUBLISHED_SETUP = (
    "".join(f"from {module} import *\n" for module in PUBLISHED_IMPORTS)
    + "".join(f"import {module}\n" for module in PUBLISHED_IMPORTS[:-2])
    + "sys.setrecursionlimit(600_000)\n"
)
"""Run ahead of every program by verl's code rewards (verl/utils/reward_score/prime_code)."""


@dataclass(frozen=True)
class Tests:
    """The tests of an answer.

    Attributes:
      kind: 'script' (standard input and output), 'call' or 'assert'.
      inputs: what goes in: a text, a list of arguments, or the source of a test.
      outputs: what must come out: a text or a JSON value; empty for 'assert'.
      name: the function to call; empty for 'script'.
      setup: runs before the answer, as a prompt's imports.
    """

    kind: str
    inputs: list[Any]
    outputs: list[Any] = field(default_factory=list)
    name: str = ""
    setup: str = ""


def find_code(text: str, name: str = "", *, strict: bool = True) -> str:
    """The program of an answer: its last block fenced as Python, else its last unlabelled one.

    Where a function is asked for, it is the last of them that defines it, if one does: models
    show in a further block how it is used. What stands before the first `</think>` is thought and
    no answer, and neither is a thought without an end. A block that is not closed reaches to the
    end of the text.

    Args:
      text: the assistant's turn.
      name: the function that the tests call; empty for a script.
      strict: False to read as verl's code rewards do: from the last "```python" to the next
        fence, and without one, the text up to any fence.

    Returns:
      The source, '' when there is none.

    >>> find_code("First:\\n```python\\nprint(1)\\n```\\nBetter:\\n```python\\nprint(2)\\n```\\n")
    'print(2)\\n'
    """
    if not strict:
        return text.rpartition("```python")[2].partition("```")[0]
    thought, closed, answer = text.partition("</think>")
    if not closed:
        answer = "" if "<think>" in thought else thought
    python: list[str] = []
    plain: list[str] = []
    for fence, end in _blocks(answer):
        # Within a list the whole block is indented as its fence is.
        source = answer[fence.end() : end].replace("\n" + fence[1], "\n")[1:]
        label = fence[2].lower()
        if label in _LABELS:
            python.append(source)
        elif not label:
            plain.append(source)
    blocks = python or plain or [""]
    defining = [b for b in blocks if name and re.search(rf"\bdef[ \t]+{name}\b", b)]
    return (defining or blocks)[-1]


def _blocks(text: str) -> Iterator[tuple[re.Match[str], int]]:
    """The opening fence of each block, and where the block ends."""
    opened = None
    for fence in _FENCE.finditer(text):
        if opened is None:
            opened = fence
        elif not fence[2]:
            yield opened, fence.start()
            opened = None
    if opened is not None:
        yield opened, len(text)


def parse_ground_truth(ground_truth: str | dict[str, Any]) -> Tests:
    """Read a row's tests, at data preparation, where malformed ones are an error.

    A JSON object, as text or parsed, of one of these forms:

    * `{"inputs": [...], "outputs": [...]}`: standard input and output, texts or lists of lines.
    * the same with `"fn_name"`: the arguments as a list with the value as JSON, or both as
      text: the arguments as JSON, one a line, the value as JSON.
    * `{"entry_point", "test", "prompt"}`: `test` is a source text, or a list of them, each one
      test; it defines `check(candidate)` or asserts by itself. `prompt`, optional, runs first.

    Raises:
      ValueError: it is none of these, or has no test.
    """
    try:
        return _parse(ground_truth)
    except (RecursionError, MemoryError) as error:  # MemoryError: of Python's own parser
        raise ValueError("ground_truth: nested too deep to be sent") from error


def _parse(ground_truth: Any) -> Tests:
    if isinstance(ground_truth, str):
        try:
            ground_truth = json.loads(ground_truth)
        except ValueError as error:
            raise ValueError(f"ground_truth: expected a JSON object: {error}") from error
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


def _is_name(name: Any) -> bool:
    return isinstance(name, str) and name.isidentifier()


def _as_text(lines: Any) -> str:
    if isinstance(lines, list) and all(isinstance(line, str) for line in lines):
        return "\n".join(lines)
    if not isinstance(lines, str):
        raise ValueError(f"ground_truth: expected a text or a list of lines, found {lines!a:.200}")
    return lines


def _as_call(arguments: Any, value: Any) -> tuple[list[Any], Any]:
    if isinstance(arguments, str):
        try:
            arguments = [json.loads(line) for line in arguments.split("\n") if line.strip()]
            value = json.loads(value)
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"ground_truth: expected JSON in the input and output of a call: {error}"
            ) from error
    if not isinstance(arguments, list):
        raise ValueError(f"ground_truth: expected a list of arguments, found {arguments!a:.200}")
    try:
        json.dumps(encode([arguments, value]))  # as it will be sent, at no greater depth
    except (ValueError, TypeError) as error:
        raise ValueError(f"ground_truth: no plain data that can be sent: {error}") from error
    return arguments, value
