"""Plain code: one thing on a line, nothing that must be read twice (CONTRIBUTING.md)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FILES = [
    path
    for folder in ("gdpo_verl", "recipes", "scripts", "examples")
    for path in sorted((ROOT / folder).rglob("*.py"))
]

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
LITERALS = (ast.Tuple, ast.List, ast.Set, ast.IfExp)
LOOPS = (ast.For, ast.AsyncFor, ast.comprehension)
BRANCHES = (*LOOPS, ast.If, ast.IfExp, ast.While, ast.ExceptHandler, ast.Assert)


def inside(node: ast.AST, apart: type | tuple[type, ...]) -> Iterator[ast.AST]:
    """Yield everything inside a node, except nodes of a type that are checked separately."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, apart):
            yield child
            yield from inside(child, apart)


def is_condition(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return ast.unparse(node.func) in ("all", "any", "bool", "isinstance")
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.Not)
    return isinstance(node, (ast.BoolOp, ast.Compare))


def size(function: ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[int, int]:
    """Count lines without the docstring, and branches with further operands of `and` and `or`."""
    lines = function.end_lineno - function.lineno + 1
    if ast.get_docstring(function) is not None:
        docstring = function.body[0]
        lines -= docstring.end_lineno - docstring.lineno + 1
    branches = 0
    for node in inside(function, (*FUNCTIONS, ast.ClassDef)):
        if isinstance(node, BRANCHES):
            branches += 1
        if isinstance(node, ast.BoolOp):
            branches += len(node.values) - 1
    return lines, branches


def faults(node: ast.AST) -> Iterator[str]:
    """Say what is not plain about one node."""
    if isinstance(node, ast.Starred) and isinstance(node.value, LITERALS):
        yield "a starred literal"
    if isinstance(node, LOOPS) and isinstance(node.iter, ast.IfExp):
        yield "a loop over a conditional expression"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        factors = (node.left, node.right)
        if any(is_condition(factor) for factor in factors):
            yield "a condition as a factor"
    if isinstance(node, ast.stmt):
        walruses = [part for part in inside(node, ast.stmt) if isinstance(part, ast.NamedExpr)]
        if len(walruses) > 1:
            yield "more than one := in a statement"
    if isinstance(node, FUNCTIONS):
        lines, branches = size(node)
        if lines > 60 or branches > 20:
            yield f"{lines} lines (at most 60) and {branches} branches (at most 20)"


def faults_of(path: Path) -> Iterator[tuple[str, str]]:
    """Yield each fault of a file, with its file and function."""
    name = path.relative_to(ROOT).as_posix().removeprefix("gdpo_verl/")
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        place = f"{name}:{node.name}" if isinstance(node, FUNCTIONS) else name
        for fault in faults(node):
            line = getattr(node, "iter", node).lineno
            yield place, f"line {line}: {fault}"


def test_code_is_plain():
    found = [fault for path in FILES for fault in faults_of(path)]
    assert not found
