"""No regular expression of the package takes more than linear time: it reads hostile text."""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
FUNCTIONS = ["compile", "search", "match", "fullmatch", "split", "findall", "finditer", "sub"]
FILES = [
    path
    for folder in ("gdpo_verl", "recipes")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if "import re\n" in path.read_text(encoding="utf-8")
]


class Names(dict[str, Any]):
    """The constants of a module; what a function alone knows is a letter."""

    def __missing__(self, name: str) -> str:
        return "a"


def constants(tree: ast.Module) -> Names:
    """The texts of a module that expressions are made of."""
    names = Names(re=re)
    for node in tree.body:
        if isinstance(node, ast.Assign):
            with contextlib.suppress(Exception):  # made of something that is not here
                exec(compile(ast.Module([node], []), "constants", "exec"), {}, names)
    return names


def expressions(source: str) -> Iterator[tuple[str, int]]:
    """Each regular expression of a file, with its flags.

    Where a call is given a name, each text of the file may be the expression.
    """
    tree = ast.parse(source)
    names = constants(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if ast.unparse(node.func.value) != "re" or node.func.attr not in FUNCTIONS:
            continue
        words = [*node.args[1:], *(keyword.value for keyword in node.keywords)]
        texts = [ast.unparse(word) for word in words]
        flags = [text for text in texts if re.fullmatch(r"re\.[A-Z]+( \| re\.[A-Z]+)*", text)]
        flag = int(eval(flags[0], {"re": re})) if flags else 0
        if isinstance(node.args[0], ast.Constant | ast.JoinedStr | ast.BinOp):
            with contextlib.suppress(AttributeError):  # another module's constant
                yield eval(ast.unparse(node.args[0]), {}, names), flag
                continue
        for text in ast.walk(tree):
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                yield text.value, flag


def inner(parsed: Any) -> Iterator[Any]:
    """An expression and those in its lookaheads, which are searched by themselves."""
    yield parsed
    for operation, data in parsed:
        name = str(operation)
        if name == "BRANCH":
            parts = data[1]
        elif name in ("ASSERT", "ASSERT_NOT", "SUBPATTERN", "MAX_REPEAT", "MIN_REPEAT"):
            parts = [data[-1]]
        else:
            continue
        for part in parts:
            yield from inner(part)


def slow_parts(expression: str, flags: int) -> list[str]:
    """Texts that an expression reads in more than linear time."""
    from regexploit.ast.sre import SreOpParser, sre_parse
    from regexploit.redos import find

    try:
        parsed = sre_parse.parse(expression, flags)
    except re.error:  # a text that is no expression
        return []
    found = []
    for part in inner(parsed):
        sequence = SreOpParser().sequence_or_singleton(part)
        if sequence is not None:
            found += [redos.example() for redos in find(sequence)]
    return found


def test_every_expression_takes_linear_time() -> None:
    pytest.importorskip("regexploit")
    slow = []
    count = 0
    for path in FILES:
        for expression, flags in expressions(path.read_text(encoding="utf-8")):
            count += 1
            for text in slow_parts(expression, flags):
                slow.append((path.name, expression[:60], text))
    assert count > 100
    assert slow == []
