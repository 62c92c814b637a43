"""Code is plain: one thing on a line, and nothing that must be read twice (CONTRIBUTING.md)."""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("gdpo_verl", "recipes", "scripts", "examples")

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
LITERALS = (ast.Tuple, ast.List, ast.Set, ast.IfExp)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
RISING = (ast.Lt, ast.LtE)
FALLING = (ast.Gt, ast.GtE)
LOOPS = (ast.For, ast.AsyncFor, ast.comprehension)
BRANCHES = (*LOOPS, ast.If, ast.IfExp, ast.While, ast.ExceptHandler, ast.Assert)


def inside(node, apart):
    """Yield everything inside a node, except nodes of a type that are checked separately."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, apart):
            yield child
            yield from inside(child, apart)


def is_condition(node):
    if isinstance(node, ast.Call):
        return ast.unparse(node.func) in ("all", "any", "bool", "isinstance")
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.Not)
    return isinstance(node, (ast.BoolOp, ast.Compare))


def size(function):
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


def faults(node):
    """Yield a description of each fault of one node."""
    if isinstance(node, ast.Starred) and isinstance(node.value, LITERALS):
        yield "a starred literal"
    if isinstance(node, LOOPS) and isinstance(node.iter, ast.IfExp):
        yield "a loop over a conditional expression"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        factors = (node.left, node.right)
        if any(is_condition(factor) for factor in factors):
            yield "a condition as a factor"
    if isinstance(node, FUNCTIONS):
        lines, branches = size(node)
        if lines > 60 or branches > 20:
            yield f"{lines} lines (at most 60) and {branches} branches (at most 20)"


def is_range(comparison):
    """Return whether a comparison has two sides, or orders its values as in 0 <= x < 1."""
    operators = comparison.ops
    rises = all(isinstance(operator, RISING) for operator in operators)
    falls = all(isinstance(operator, FALLING) for operator in operators)
    return len(operators) == 1 or rises or falls


def contains(node, kinds):
    return any(isinstance(part, kinds) for part in inside(node, ()))


def idioms(node):
    """Name the expressions in one node for which there is a plainer statement."""
    if isinstance(node, ast.NamedExpr):
        yield "a value is named within an expression (:=)"
    if isinstance(node, COMPREHENSIONS) and contains(node, COMPREHENSIONS):
        yield "a comprehension in a comprehension"
    if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        starred = [item.value for item in node.elts if isinstance(item, ast.Starred)]
        if any(isinstance(value, COMPREHENSIONS) for value in starred):
            yield "a starred comprehension in a literal"
    if isinstance(node, ast.JoinedStr) and contains(node, ast.IfExp):
        yield "a conditional expression in an f-string"
    if isinstance(node, ast.Compare) and not is_range(node):
        yield "a chained comparison of values that do not rise or fall"


def files_in(*folders):
    for folder in folders:
        yield from sorted((ROOT / folder).rglob("*.py"))


def places(path, check):
    """Yield the faults that a check finds in a file, each with its function and line."""
    name = path.relative_to(ROOT).as_posix()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        place = f"{name}:{node.name}" if isinstance(node, FUNCTIONS) else name
        for fault in check(node):
            line = getattr(node, "iter", node).lineno
            yield f"{place}, line {line}: {fault}"


def test_code_is_plain():
    wrong = []
    for path in files_in(*FOLDERS):
        wrong += places(path, faults)
    assert not wrong


def test_code_has_no_idioms():
    wrong = []
    for path in files_in(*FOLDERS, "tests"):
        wrong += places(path, idioms)
    assert not wrong
