"""Find the definition of a function in a program, which may be cut off or no Python at all.

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
_STUBS = (["..."], ["…"], ["pass"], ["return"], ["return", "None"])


def defines(source: str, name: str) -> bool:
    """Return whether a program defines a function: with more than a head, not by its result.

    >>> defines("def f(x):\\n    return x", "f"), defines("f = lambda x: x", "f")
    (True, True)
    >>> defines("def f(x): ...", "f"), defines("f = f(3)", "f")
    (False, False)
    """
    head: int | None = None  # the indentation of a head, while its body is read
    for indent, tokens in _statements(source):
        if head is not None and indent <= head:
            head = None
        if head is not None and not _is_stub(tokens):
            return True
        if _is_head(tokens, name):
            head = indent
        if indent == 0 and _assigns_function(tokens, name):
            return True
    return False


def _statements(source: str) -> Iterator[tuple[int, list[str]]]:
    """The indentation and the tokens of each statement; the head of a function is one."""
    tokens: list[str] = []
    indent = 0  # of the statement
    margin = 0  # of the line; one more behind the head of a function
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
                yield indent, tokens
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
            yield indent, tokens
            tokens = []
            margin += 1
    if tokens:
        yield indent, tokens


def _is_head(tokens: list[str], name: str) -> bool:
    """Return whether a statement is the whole head of the function."""
    if tokens[0] == "async":
        tokens = tokens[1:]
    return tokens[:2] == ["def", name] and tokens[2:3] in (["("], ["["]) and tokens[-1] == ":"


def _is_stub(tokens: list[str]) -> bool:
    """Return whether a statement of a body does nothing, as a docstring or `...`."""
    if tokens[0] == "raise":
        return len(tokens) > 1 and tokens[1].startswith("NotImplemented")
    return tokens in _STUBS or all(map(_is_string, tokens))


def _is_string(token: str) -> bool:
    return token.lstrip("rRuU").startswith(("'", '"'))


def _assigns_function(tokens: list[str], name: str) -> bool:
    """Return whether a statement gives the name a lambda, or a value that may be a function.

    A number, a text, a list or a dict is none, and what was computed with the name is its result.
    """
    if tokens[0] != name or tokens[1:2] not in (["="], [":"]) or "=" not in tokens:
        return False
    value = tokens[tokens.index("=") + 1 :]
    if not value:
        return False
    if value[0] == "lambda":
        return True
    if value[0] in ("[", "{") or value[0][0].isdigit() or _is_string(value[0]):
        return False
    before = ["", *value]
    return all(
        token != name or previous == "." for previous, token in zip(before, value, strict=False)
    )
