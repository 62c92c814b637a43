"""Every regular expression of the package takes linear time, because it may read hostile text."""

import ast
import importlib
import re

import pytest
from documents import ROOT

FILES = [
    path
    for folder in ("gdpo_verl", "recipes")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if "import re\n" in path.read_text(encoding="utf-8")
]


def expressions(path):
    """Yield each string of a file, which may be a regular expression, and compiled expressions."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    docstrings = [node.value for node in nodes if isinstance(node, ast.Expr)]
    for node in nodes:
        if node in docstrings:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value, 0
        if isinstance(node, ast.JoinedStr):
            texts = [part.value if isinstance(part, ast.Constant) else "a" for part in node.values]
            yield "".join(texts), 0
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    module = importlib.import_module(f"gdpo_verl.{name.removeprefix('gdpo_verl.')}")
    for value in vars(module).values():
        if isinstance(value, re.Pattern):
            yield value.pattern, value.flags


def inner(parsed):
    """Yield an expression and its parts, such as lookaheads, which are examined separately."""
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


def slow_parts(expression, flags):
    """Return texts for which an expression takes more than linear time."""
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


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_expression_takes_linear_time(path):
    pytest.importorskip("regexploit")
    for expression, flags in expressions(path):
        assert slow_parts(expression, flags) == [], expression
