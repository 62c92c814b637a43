"""Find the definition of a function in a program, which may be cut off, or may not be Python.

The program comes from an adversary. It is read as tokens, in linear time: Python's own parser can
take exponential time or exhaust the stack, and reads no program that was cut off.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

# Every alternative matches wherever its first character does, so nothing is read twice.
_TOKEN = re.compile(
    r"""
    (?P<line> \n [ \t]* )
  | (?P<space> \\\n | [^\S\n]+ | \#[^\n]* )
  | [rRuU]? \"\"\" (?: [^"\\] | \\. | "(?!"") )* (?: \"\"\" )?
  | [rRuU]? ''' (?: [^'\\] | \\. | '(?!'') )* (?: ''' )?
  | [rRuU]? " (?: [^"\\\n] | \\. )* "?
  | [rRuU]? ' (?: [^'\\\n] | \\. )* '?
  | \w+
  | \.\.\. | [=!<>:+*/%&|^@-]=
  | .
    """,
    re.VERBOSE | re.DOTALL,
)
_DEFINITIONS = ("def", "class", "async")  # what begins one
_STUBS = ("...", "…", "pass", "return", "return None")


def defines(source: str, name: str) -> bool:
    """Return whether a program defines a function: with more than a head, not by its result.

    >>> defines("def f(x):\\n    return x", "f"), defines("f = lambda x: x", "f")
    (True, True)
    >>> defines("def f(x): ...", "f"), defines("f = f(3)", "f")
    (False, False)
    """
    head: int | None = None  # the indentation of a head, while its body is read
    for indent, statement in _statements(source):
        if head is not None and indent <= head:
            head = None
        if head is not None and not _is_stub(statement):
            return True
        begins = statement.removeprefix("async ").startswith((f"def {name} (", f"def {name} ["))
        if begins and statement.endswith(":"):
            head = indent
        if indent == 0 and _assigns_function(statement, name):
            return True
    return False


def _statements(source: str) -> Iterator[tuple[int, str]]:
    """The indentation of each statement and its tokens, with a space between two.

    The head of a function is a statement.
    """
    tokens: list[str] = []
    indent = 0  # of the statement
    margin = 0  # of the line; one more after the head of a function
    depth = 0  # of brackets
    line_begins = True
    for match in _TOKEN.finditer("\n" + source):
        token = match[0]
        if match.lastgroup == "space":
            continue
        is_line = match.lastgroup == "line"
        ends = depth == 0 and (is_line or token == ";")
        # No definition is within brackets: one of them was never closed.
        if ends or (line_begins and token in _DEFINITIONS):
            if tokens:
                yield indent, " ".join(tokens)
            tokens = []
            depth = 0
        line_begins = is_line
        if is_line:
            margin = len(token.expandtabs(8)) - 1
        if is_line or token == ";":
            continue
        if not tokens:
            indent = margin
        tokens.append(token)
        if token in "([{":
            depth += 1
        elif token in ")]}":
            depth = max(0, depth - 1)
        elif token == ":" and depth == 0 and tokens[0] in ("def", "async"):
            yield indent, " ".join(tokens)
            tokens = []
            margin += 1
    if tokens:
        yield indent, " ".join(tokens)


def _is_stub(statement: str) -> bool:
    """Return whether a statement of a body does nothing, as `...` or a docstring."""
    return (
        statement in _STUBS or statement.startswith("raise NotImplemented") or _is_text(statement)
    )


def _is_text(value: str) -> bool:
    return value.lstrip("rRuU").startswith(("'", '"'))


def _assigns_function(statement: str, name: str) -> bool:
    """Return whether a statement gives the name a value that may be a function.

    A number, a text, a list or a dict is none, and what was computed with the name is its result.
    """
    target, equals, value = statement.partition(" = ")
    if not equals or target.split(" ")[0] != name or target.split(" ")[1:2] not in ([], [":"]):
        return False
    if _is_text(value) or value[0] in "[{0123456789":
        return False
    words = value.replace(" . ", ".").split(" ")
    return words[0] == "lambda" or name not in words
