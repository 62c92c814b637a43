"""Change one thing at a time in the modules that compute advantages: does a test notice?

    python scripts/mutants.py                       # every module, 30 mutants each
    python scripts/mutants.py trainer -n 100 --fast # one module, no tests that start Ray

A mutant is a copy of the package with one expression or statement changed. It survives when all
tests of its module pass on it; those that start Ray are asked only about what the others let
pass. Status 1 when a mutant survives that equivalent_mutants.yaml, beside this script, does not
explain, or when that file names one that the code no longer has.

The heavy packages are imported once and each mutant gets a fork, so that most are judged in
seconds. Which mutants are chosen depends on their text alone: a change elsewhere leaves them be.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import hashlib
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "gdpo_verl"
EQUIVALENT = Path(__file__).with_name("equivalent_mutants.yaml")
FORK = multiprocessing.get_context("fork")


def named(start: str) -> list[str]:
    return sorted(path.name for path in (ROOT / "tests").glob(f"{start}*.py"))


DIAGNOSTICS, SEAM = named("test_diagnostics"), named("test_seam")
# The tests of each module (or package): those without Ray, and those with it.
TESTS: dict[str, tuple[list[str], list[str]]] = {
    "advantage": (
        [
            *named("test_advantage"),
            *DIAGNOSTICS,
            *("test_conformance.py", "test_variants.py", "test_variants_own.py"),
            "test_config_variants.py",
        ],
        [],
    ),
    "aggregation": (["test_step.py", *DIAGNOSTICS], SEAM),
    "batch": (["test_batch.py", "test_step.py", "test_judge.py"], SEAM),
    "config": ([*named("test_config"), "test_estimator.py"], []),
    "diagnostics": ([*DIAGNOSTICS, "test_step.py"], SEAM),
    "estimator": (["test_estimator.py", "test_legacy.py", "test_step.py"], SEAM),
    "plugin/dumps": (["test_dumps.py", "test_step.py"], SEAM),
    "reward_dicts": (["test_batch.py", "test_reward_dicts.py", "test_reward_manager.py"], []),
    "replay_buffer": ([], ["test_seam_buffer.py"]),
    "trainer": (["test_trainer.py", "test_step.py", *DIAGNOSTICS], SEAM),
}

SWAPPED: dict[type, type] = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt},
    **{ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is},
    **{ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And},
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult},
    **{ast.FloorDiv: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd},
}
RENAMED = {"any": "all", "all": "any", "min": "max", "max": "min", "amin": "amax", "amax": "amin"}
RENAMED |= {"raw": "rewards", "rewards": "raw"}  # before and after conditions
# Functions whose arguments nobody swaps without an exception, or to no effect.
ORDERED = {"isinstance", "getattr", "hasattr", "max", "min"}
# What a mutant of it would change is read by people (errors, types), or is no code, or is about
# what cannot happen (assertions, zip(strict=True)).
SKIPPED = (ast.Raise, ast.JoinedStr, ast.Import, ast.ImportFrom, ast.arg, ast.Assert)
SKIPPED_FIELDS = {"annotation", "returns", "decorator_list", "ctx"}


@dataclass(frozen=True)
class Mutant:
    """One change: in `where` of the file, the line `before` became `after`."""

    file: str
    where: str
    before: str
    after: str
    line: int
    source: str

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.file, self.where, self.before, self.after

    def __str__(self) -> str:
        place = f"gdpo_verl/{self.file}:{self.line} {self.where}"
        return f"{place}\n    - {self.before}\n    + {self.after}"


def replacements(node: ast.AST) -> Iterator[ast.AST | None]:
    """The wrong versions of one node; None deletes a statement."""
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
            if len(arguments) > 1 and getattr(function, "id", None) not in ORDERED:
                *first, one, other = arguments
                yield ast.Call(function, [*first, other, one], keywords)
            if isinstance(function, ast.Attribute):
                yield function.value
        case ast.If(test, body, orelse):
            yield ast.If(ast.Constant(False), body, orelse)
        case ast.Expr(ast.Call()) | ast.AugAssign() | ast.Delete():
            yield None
        case ast.Assign([ast.Attribute() | ast.Subscript()], _):
            yield None


def sites(node: ast.AST, where: str = "") -> Iterator[tuple[Any, Any, ast.AST, str]]:
    """Each node with its place, a list and an index or a node and a field, and its function."""
    for field, value in ast.iter_fields(node):
        if field in SKIPPED_FIELDS:
            continue
        places: Any = enumerate(value) if isinstance(value, list) else [(field, value)]
        for place, child in places:
            if not isinstance(child, ast.AST) or isinstance(child, SKIPPED):
                continue
            if isinstance(child, ast.keyword) and child.arg == "strict":
                continue
            name = getattr(child, "name", None) if isinstance(child, ast.stmt) else None
            inner = f"{where}.{name}".lstrip(".") if name else where
            yield (value if isinstance(value, list) else node), place, child, inner
            yield from sites(child, inner)


def put(owner: Any, place: Any, node: ast.AST) -> None:
    if isinstance(owner, list):
        owner[place] = node
    else:
        setattr(owner, place, node)


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Every mutant of a file."""
    tree = ast.parse(path.read_text())
    original = ast.unparse(tree).splitlines()
    imports = (node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom))
    imported = {name.asname or name.name for node in imports for name in node.names}
    for owner, place, node, where in list(sites(tree)):
        for replacement in replacements(node):
            if getattr(replacement, "id", None) in imported:
                continue  # torch.stack(rows) without .stack(rows)
            put(owner, place, replacement or ast.Pass())
            source = ast.unparse(tree)
            put(owner, place, node)
            pairs = zip(original, source.splitlines(), strict=False)
            changed = next(((old, new) for old, new in pairs if old != new), None)
            if changed is not None:
                before, after = (line.strip() for line in changed)
                file = path.relative_to(PACKAGE).as_posix()
                line = getattr(node, "lineno", 0)
                yield Mutant(file, where, before, after, line, source)


def mutants_of_module(module: str) -> list[Mutant]:
    """Every mutant of a module or of a package's files, in an order that looks random."""
    files = [*PACKAGE.rglob(f"{module}.py"), *PACKAGE.rglob(f"{module}/*.py")]
    mutants = [mutant for path in sorted(files) for mutant in mutants_of(path)]
    return sorted(mutants, key=lambda m: hashlib.sha256(repr(m.key).encode()).digest())


def tests_pass(mutant: Mutant | None, tests: Sequence[str], marker: str, limit: float) -> bool:
    """Run these tests on a copy of the package with this change; true when they pass."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as directory:
        copy = Path(directory)
        for name in ("recipes", "tests", "scripts", "docs", "pyproject.toml"):
            (copy / name).symlink_to(ROOT / name)
        shutil.copytree(PACKAGE, copy / "gdpo_verl", ignore=shutil.ignore_patterns("__pycache__"))
        if mutant is not None:
            (copy / "gdpo_verl" / mutant.file).write_text(mutant.source)
        process = FORK.Process(target=_run_tests, args=(copy, tests, marker))
        process.start()
        assert process.pid is not None
        process.join(limit)
        with contextlib.suppress(ProcessLookupError):  # nothing is left of it
            os.killpg(process.pid, signal.SIGKILL)
        process.join()
        if mutant is None and process.exitcode:
            sys.exit(f"{(copy / 'log').read_text()[-6000:]}\n{tests} fail without a mutant")
        return process.exitcode == 0


def _run_tests(copy: Path, tests: Sequence[str], marker: str) -> None:
    os.setsid()
    os.chdir(copy)
    log = os.open("log", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1), os.dup2(log, 2)
    # Processes that a test starts find the copy, too.
    sys.path.insert(0, str(copy))
    os.environ["PYTHONPATH"] = str(copy)
    for name in [name for name in os.environ if name.startswith(("PYTEST_", "VERL_USE_EXTERNAL"))]:
        del os.environ[name]
    for plugin in entry_points(group="verl.plugins"):
        plugin.load()

    import pytest

    options = ["-x", "-q", "-m", marker, "-p", "no:cacheprovider"]
    os._exit(pytest.main([*options, *(f"tests/{name}" for name in tests)]))


def import_what_is_heavy() -> None:
    """All that the tests import and no mutant changes; verl without our plug-in."""
    os.environ["VERL_USE_EXTERNAL_PLUGINS"] = "none"
    warnings.simplefilter("ignore")
    import hypothesis
    import torch
    import verl.experimental.reward_loop.reward_manager
    import verl.trainer.ppo.ray_trainer
    import verl.trainer.ppo.v1.agent_loop_tq  # noqa: F401

    torch.set_num_threads(1)  # a pool of threads does not outlive a fork
    phases = [hypothesis.Phase.explicit, hypothesis.Phase.generate]
    hypothesis.settings.register_profile(
        "mutants", derandomize=True, database=None, deadline=None, phases=phases
    )
    hypothesis.settings.load_profile("mutants")
    assert not [name for name in sys.modules if name.startswith("gdpo_verl")]


def survivors_of(
    module: str, mutants: Sequence[Mutant], explained: set[tuple[str, ...]], options: Any
) -> list[Mutant]:
    """The mutants that no test of the module notices; those explained are not tried with Ray."""
    fast, real = TESTS[module]

    def left(mutants: Sequence[Mutant], tests: list[str], marker: str, jobs: int) -> list[Mutant]:
        if not tests or not mutants:
            return list(mutants)
        tests_pass(None, tests, marker, options.limit)
        with ThreadPoolExecutor(jobs) as pool:
            alive = pool.map(lambda m: tests_pass(m, tests, marker, options.limit), mutants)
            return [mutant for mutant, lives in zip(mutants, alive, strict=True) if lives]

    mutants = left(mutants, fast, "not real", options.jobs)
    if options.fast:
        return mutants
    known = [mutant for mutant in mutants if mutant.key in explained]
    return known + left([m for m in mutants if m not in known], real, "real", 1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("modules", nargs="*", default=list(TESTS), metavar="MODULE")
    parser.add_argument("-n", type=int, default=30, help="mutants a module")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--fast", action="store_true", help="no tests that start Ray")
    parser.add_argument("--limit", type=float, default=600, help="seconds; a mutant fails beyond")
    options = parser.parse_args()
    import_what_is_heavy()
    explained = {
        tuple(entry[key] for key in ("file", "where", "before", "after"))
        for entry in yaml.safe_load(EQUIVALENT.read_text()) or []
    }

    status, table = 0, ["module        mutants  killed  equivalent  survived"]
    for module in options.modules:
        chosen = mutants_of_module(module)[: options.n]
        survivors = survivors_of(module, chosen, explained, options)
        unexplained = [mutant for mutant in survivors if mutant.key not in explained]
        killed, known = len(chosen) - len(survivors), len(survivors) - len(unexplained)
        table.append(f"{module:12}{len(chosen):9}{killed:8}{known:12}{len(unexplained):10}")
        print(table[-1], *unexplained, sep="\n", flush=True)
        status |= bool(unexplained)
    for key in explained - {m.key for module in TESTS for m in mutants_of_module(module)}:
        print(f"{EQUIVALENT.name} names what the code does not have: {key}")
        status = 1
    print(*table, sep="\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
