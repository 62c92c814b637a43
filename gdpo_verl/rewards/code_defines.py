"""Find the definition of a function in a program, which may be cut off, or may not be Python.

The policy writes the program, so it must be read in linear time. Python's own parser is not used,
because it can take exponential time or exhaust the stack, and cannot read a program that is cut
off.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

# An alternative always matches if its first characters match, so that no character is read twice.
_TEXT_OR_COMMENT = re.compile(
    r"""
    \#[^\n]*
  | [rRuU]? \"\"\" (?: [^"\\] | \\. | "(?!"") )* (?: \"\"\" )?
  | [rRuU]? ''' (?: [^'\\] | \\. | '(?!'') )* (?: ''' )?
  | [rRuU]? " (?: [^"\\\n] | \\. )* "?
  | [rRuU]? ' (?: [^'\\\n] | \\. )* '?
    """,
    re.VERBOSE | re.DOTALL,
)
_BEGINS_DEFINITION = re.compile(r"\s*(?:def|class|async)\b")
_BRACKET = re.compile(r"([(\[{])|[)\]}]")
# Statements that do nothing, such as a docstring.
_STUB = re.compile(r'\s*(?:\.\.\.|…|pass|return(?: None)?|raise NotImplemented.*|"".*|)\s*')


def defines(source: str, name: str) -> bool:
    """Return whether a program defines a function, with more than a signature.

    >>> defines("def f(x):\\n    return x", "f"), defines("f = lambda x: x", "f")
    (True, True)
    >>> defines("def f(x): ...", "f"), defines("f = f(3)", "f")
    (False, False)
    """
    head = re.compile(rf"(?:async\s+)?def\s+{name}\s*[(\[].*?\)\s*(?:->[^:)]*)?:(.*)")
    # An assignment may define a function, as with lambda. It does not define one if its value
    # begins like a number, a text, a list or a dict, or if it uses the name itself, as in f = f(3).
    assignment = re.compile(
        rf'{name}\s*(?::[^=]*)?=(?:\s*lambda\b|(?!\s*["=\d\[{{]|.*(?<![.\w]){name}(?![.\w])))'
    )
    margin: int | None = None  # the indentation of the signature, while the body is read
    for line in _lines(source):
        statement = line.lstrip()
        indent = len(line.removesuffix(statement).expandtabs(8))
        if margin is not None and indent <= margin:
            margin = None
        begins = head.match(statement)
        if begins:
            margin = indent
            statement = begins[1]
        if margin is not None and not all(map(_STUB.fullmatch, statement.split(";"))):
            return True
        if assignment.match(line):
            return True
    return False


def _lines(source: str) -> Iterator[str]:
    """Yield the lines of a program without comments and with empty string literals.

    Lines within brackets are joined.
    """
    source = _TEXT_OR_COMMENT.sub(_blank, source).replace("\\\n", " ")
    parts: list[str] = []
    depth = 0
    for line in source.split("\n"):
        # A definition cannot be within brackets. If one begins here, a bracket was never closed.
        if parts and (depth <= 0 or _BEGINS_DEFINITION.match(line)):
            yield " ".join(parts)
            parts = []
            depth = 0
        if line.strip():
            parts.append(line)
        for opening in _BRACKET.findall(line):
            depth += 1 if opening else -1
    yield " ".join(parts)


def _blank(match: re.Match[str]) -> str:
    """Remove a comment, and empty a string literal."""
    return "" if match[0].startswith("#") else '""'
