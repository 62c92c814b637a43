"""Check that a test fails when one thing changes in the modules that compute advantages.

    python scripts/dev/mutants.py                       # every module, 30 mutants each
    python scripts/dev/mutants.py trainer -n 100 --fast # one module, no tests that start Ray

A mutant is a copy of the package with one changed expression or statement. It survives when all
tests of its module pass. Tests that start Ray run only on mutants that survive the other tests. The
exit status is 1 when a mutant survives that equivalent_mutants.yaml (next to this script) does not
explain, or when that file names a mutant that the code no longer has.

Each mutant needs a start of pytest. The choice of mutants depends only on their text, so a change
elsewhere does not affect it.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import yaml

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "gdpo_verl"
EQUIVALENT = Path(__file__).with_name("equivalent_mutants.yaml")
OPTIONS = ("-p", "no:cacheprovider", "--hypothesis-seed=0")
JOBS, LIMIT = 2, 600  # seconds, after which a mutant counts as failed

# The tests of each module (or package), test_NAME.py below tests/: those without Ray, and those
# with Ray.
TESTS: dict[str, tuple[str, str]] = {
    "advantage": ("advantage* diagnostics* conformance* variants* config", ""),
    "aggregation": ("step diagnostics*", "seam*"),
    "batch": ("batch step judge", "seam*"),
    "config": ("config* estimator judge", ""),
    "diagnostics": ("diagnostics* step", "seam*"),
    "estimator": ("estimator legacy step trainer", "seam*"),
    "plugin/dumps": ("dumps step", "seam*"),
    "reward_dicts": ("batch reward_dicts reward_manager", ""),
    "replay_buffer": ("", "seam_buffer"),
    "trainer": ("trainer step diagnostics*", "seam*"),
}

PAIRS = [
    (ast.Lt, ast.LtE),
    (ast.Gt, ast.GtE),
    (ast.Eq, ast.NotEq),
    (ast.Is, ast.IsNot),
    (ast.In, ast.NotIn),
    (ast.And, ast.Or),
    (ast.Add, ast.Sub),
    (ast.Mult, ast.Div),
    (ast.BitAnd, ast.BitOr),
]
SWAPPED: dict[type, type] = dict(PAIRS) | {second: first for first, second in PAIRS}
RENAMED = {"any": "all", "all": "any", "min": "max", "max": "min", "amin": "amax", "amax": "amin"}
RENAMED |= {"raw": "rewards", "rewards": "raw"}  # before and after conditions
# Mutants of these would change texts for people (errors, types), or are not code, or concern what
# cannot happen (assertions, zip(strict=True)).
SKIPPED = (ast.Raise, ast.JoinedStr, ast.Import, ast.ImportFrom, ast.arg, ast.Assert)
SKIPPED_FIELDS = {"annotation", "returns", "decorator_list", "ctx"}


class Mutant(NamedTuple):
    """One change: the line `before` of the file became `after`."""

    file: str
    before: str
    after: str
    line: int
    source: str

    @property
    def key(self) -> tuple[str, str, str]:
        return self[:3]

    def __str__(self) -> str:
        return f"gdpo_verl/{self.file}:{self.line}\n    - {self.before}\n    + {self.after}"


def replacements(node: ast.AST) -> Iterator[ast.AST | None]:
    """Return the wrong versions of one node; None deletes a statement."""
    match node:
        case ast.Compare(left, [operator, *rest], values) if type(operator) in SWAPPED:
            yield ast.Compare(left, [SWAPPED[type(operator)](), *rest], values)
        case ast.BinOp(left, operator, right) if type(operator) in SWAPPED:
            yield ast.BinOp(left, SWAPPED[type(operator)](), right)
        case ast.BoolOp(operator, values):
            yield ast.BoolOp(SWAPPED[type(operator)](), values)
        case ast.UnaryOp(ast.Not() | ast.USub() | ast.Invert(), operand):
            yield operand
        case ast.IfExp(test, body, orelse):
            yield ast.IfExp(test, orelse, body)
        case ast.Constant(bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(int(value)):
            yield ast.Constant(1 - value if value in (0, 1) else value + 1)
        case ast.Constant(float(value)):
            yield ast.Constant(value * 10 or 1.0)
        case ast.Constant(str(value)) if value in RENAMED:
            yield ast.Constant(RENAMED[value])
        case ast.Attribute(value, name, context) if name in RENAMED:
            yield ast.Attribute(value, RENAMED[name], context)
        case ast.Call(function, arguments, keywords):
            for keyword in keywords:
                if keyword.arg != "strict":
                    yield ast.Call(function, arguments, [k for k in keywords if k != keyword])
            if isinstance(function, ast.Attribute):
                yield function.value
        case ast.If(test, body, orelse):
            yield ast.If(ast.Constant(False), body, orelse)
        case ast.Expr(ast.Call()) | ast.AugAssign() | ast.Delete():
            yield None
        case ast.Assign([ast.Attribute() | ast.Subscript()], _):
            yield None


def sites(node: ast.AST) -> Iterator[tuple[Any, Any, ast.AST]]:
    """Yield each node with its place: a list and an index, or a node's fields and a name."""
    for field, value in ast.iter_fields(node):
        if field in SKIPPED_FIELDS:
            continue
        # A node has its fields as attributes, which are restored and replaced as in a list.
        owner: Any = vars(node)
        children: Iterable[tuple[Any, Any]] = [(field, value)]
        if isinstance(value, list):
            owner = value
            children = enumerate(value)
        for place, child in children:
            if not isinstance(child, ast.AST) or isinstance(child, SKIPPED):
                continue
            if isinstance(child, ast.keyword) and child.arg == "strict":
                continue
            yield owner, place, child
            yield from sites(child)


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Return every mutant of a file."""
    tree = ast.parse(path.read_text())
    original = ast.unparse(tree).splitlines()
    # Find all places first, because the tree changes below.
    for owner, place, node in list(sites(tree)):
        for replacement in replacements(node):
            owner[place] = replacement or ast.Pass()
            source = ast.unparse(tree)
            owner[place] = node
            # Named by their text and not by their place, so that equivalent_mutants.yaml stays
            # valid.
            pairs = zip(original, source.splitlines(), strict=False)
            changed = next(((old, new) for old, new in pairs if old != new), None)
            if changed is not None:
                before, after = (line.strip() for line in changed)
                file = path.relative_to(PACKAGE).as_posix()
                yield Mutant(file, before, after, getattr(node, "lineno", 0), source)


def mutants_of_module(module: str) -> list[Mutant]:
    """Return every mutant of a module or of a package's files, in an order that looks random."""
    files = [*PACKAGE.rglob(f"{module}.py"), *PACKAGE.rglob(f"{module}/*.py")]
    mutants = [mutant for path in files for mutant in mutants_of(path)]
    # Sorted by a hash: the first 30 are spread over the files, and always the same.
    return sorted(mutants, key=lambda m: hashlib.sha256(repr(m.key).encode()).digest())


def tests_pass(mutant: Mutant | None, tests: str, marker: str) -> bool:
    """Run these tests on a copy of the package with this change; return whether they pass."""
    found = [sorted((ROOT / "tests").rglob(f"test_{name}.py")) for name in tests.split()]
    if not all(found):  # renamed; pytest without a file would run them all
        sys.exit(
            f"TESTS: expected a file test_NAME.py below tests/ for each of {tests!r}, found {found}"
        )
    files = [str(file.relative_to(ROOT)) for file in chain(*found)]
    with tempfile.TemporaryDirectory(prefix="mutant-") as directory:
        copy = Path(directory)
        # Links, except for the package: a mutant changes nothing else, and a copy takes long.
        for name in ("recipes", "tests", "scripts", "docs", "pyproject.toml"):
            (copy / name).symlink_to(ROOT / name)
        shutil.copytree(PACKAGE, copy / "gdpo_verl", ignore=shutil.ignore_patterns("__pycache__"))
        if mutant is not None:
            (copy / "gdpo_verl" / mutant.file).write_text(mutant.source)
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-x", "-q", "-m", marker, *OPTIONS, *files],
            cwd=copy,
            env=os.environ | {"PYTHONPATH": directory},  # for the processes of a test, too
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            output = "no end"
        # Also after its end, because Ray or a sandbox of a test may still run.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if mutant is None and process.returncode:
            sys.exit(f"{output[-6000:]}\n{tests} fail without a mutant")
        return process.returncode == 0


def survivors_of(module: str, mutants: Sequence[Mutant], fast_only: bool) -> list[Mutant]:
    """Return the mutants on which no test of the module fails."""

    def left(mutants: Sequence[Mutant], tests: str, marker: str, jobs: int) -> list[Mutant]:
        if not tests or not mutants:
            return list(mutants)
        tests_pass(None, tests, marker)  # or every mutant would count as killed
        with ThreadPoolExecutor(jobs) as pool:
            alive = pool.map(lambda mutant: tests_pass(mutant, tests, marker), mutants)
            return [mutant for mutant, lives in zip(mutants, alive, strict=True) if lives]

    fast, real = TESTS[module]
    survivors = left(mutants, fast, "not real", JOBS)
    return survivors if fast_only else left(survivors, real, "real", 1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("modules", nargs="*", default=list(TESTS), metavar="MODULE")
    parser.add_argument(
        "-n", type=int, default=30, help="the number of mutants per module (default: %(default)s)"
    )
    parser.add_argument("--fast", action="store_true", help="do not run tests that start Ray")
    options = parser.parse_args()
    reasons = yaml.safe_load(EQUIVALENT.read_text()) or {}
    explained = {tuple(change) for changes in reasons.values() for change in changes}

    status = 0
    table = ["module        mutants  killed  equivalent  survived"]
    for module in options.modules:
        chosen = mutants_of_module(module)[: options.n]
        survivors = survivors_of(module, chosen, options.fast)
        unexplained = [mutant for mutant in survivors if mutant.key not in explained]
        killed = len(chosen) - len(survivors)
        known = len(survivors) - len(unexplained)
        table.append(f"{module:12}{len(chosen):9}{killed:8}{known:12}{len(unexplained):10}")
        print(table[-1], *unexplained, sep="\n", flush=True)
        status |= bool(unexplained)
    for key in explained - {m.key for module in TESTS for m in mutants_of_module(module)}:
        print(f"{EQUIVALENT.name} names a mutant that the code does not have: {key}")
        status = 1
    print(*table, sep="\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
