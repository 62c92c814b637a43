"""Find the definition of a function in a program, which may be cut off or no Python at all.

The program comes from an adversary. It is read as Python's tokens, in linear time: Python's own
parser can take exponential time or exhaust the stack, and reads no program that was cut off.
"""

from __future__ import annotations

import contextlib
import io
import math
import re
import tokenize
from collections.abc import Iterator

_HEAD_END = re.compile(r"\) (?:-> [^:()]+ )?:")
_STUBS = ("", "...", "…", "pass", "return", "return None")
_STUB_BEGINS = ("'", '"', "raise NotImplemented")


def defines(source: str, name: str) -> bool:
    """Return whether a program defines a function: with more than a head, not by its result.

    >>> defines("def f(x):\\n    return x", "f"), defines("f = lambda x: x", "f")
    (True, True)
    >>> defines("def f(x): ...", "f"), defines("f = f(3)", "f")
    (False, False)
    """
    head = math.inf  # the depth of the function's head, while its body is read
    for depth, statement in _statements(source):
        if depth > head:
            if not _is_stub(statement):
                return True
            continue
        head = math.inf
        parts = _HEAD_END.split(statement, maxsplit=1)
        if len(parts) == 2 and parts[0].removeprefix("async ").startswith(f"def {name} "):
            head = depth
            if not _is_stub(parts[1].strip()):
                return True
        if depth == 0 and _assigns_function(statement, name):
            return True
    return False


def _statements(source: str) -> Iterator[tuple[int, str]]:
    """The depth of each statement and its tokens, with a space between two, while it is Python."""
    depth = 0
    words: list[str] = []
    with contextlib.suppress(tokenize.TokenError, SyntaxError, ValueError):
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.INDENT:
                depth += 1
            elif token.type == tokenize.DEDENT:
                depth -= 1
            elif token.type == tokenize.NEWLINE:
                yield depth, " ".join(words)
                words = []
            elif token.type not in (tokenize.COMMENT, tokenize.NL):
                words.append(token.string)


def _is_stub(statement: str) -> bool:
    """Return whether a statement of a body does nothing, as `...` or a docstring."""
    return statement in _STUBS or statement.startswith(_STUB_BEGINS)


def _assigns_function(statement: str, name: str) -> bool:
    """Return whether a statement gives the name a value that may be a function.

    A number, a text, a list or a dict is none, and what was computed with the name is its result.
    """
    target, _, value = statement.partition(" = ")
    if target.partition(" :")[0] != name or not value[:1].isalpha():
        return False
    return value.startswith("lambda ") or name not in value.split(" ")
