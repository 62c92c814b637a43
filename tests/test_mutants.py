"""The mutation run: which mutants there are, how they are judged, and when it fails."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml

SCRIPT = Path(__file__).parents[1] / "scripts" / "mutants.py"

SOURCE = '''
import math

def f(x, n=2, *, strict: bool = True):
    """Not 3 of them."""
    if x < n and not x.any():
        raise ValueError(f"{n + 1}", n + 1)
    x.total = g(x, key=-n)
    assert math.isfinite(x + 1)
    x = math.hypot(*zip(x, strict=True))
    return x.abs().clamp(min=0.5)
'''
CHANGES = {
    ("def f(x, n=2, *, strict: bool=True):", "def f(x, n=3, *, strict: bool=True):"),
    ("def f(x, n=2, *, strict: bool=True):", "def f(x, n=2, *, strict: bool=False):"),
    ("if x < n and (not x.any()):", "if False:"),
    ("if x < n and (not x.any()):", "if x < n or not x.any():"),
    ("if x < n and (not x.any()):", "if x <= n and (not x.any()):"),
    ("if x < n and (not x.any()):", "if x < n and x.any():"),
    ("if x < n and (not x.any()):", "if x < n and (not x):"),
    ("if x < n and (not x.any()):", "if x < n and (not x.all()):"),
    ("x.total = g(x, key=-n)", "pass"),
    ("x.total = g(x, key=-n)", "x.total = g(x)"),
    ("x.total = g(x, key=-n)", "x.total = g(x, key=n)"),
    ("x = math.hypot(*zip(x, strict=True))", "x = math"),
    ("return x.abs().clamp(min=0.5)", "return x.abs().clamp()"),
    ("return x.abs().clamp(min=0.5)", "return x.abs().clamp(min=5.0)"),
    ("return x.abs().clamp(min=0.5)", "return x.abs()"),
    ("return x.abs().clamp(min=0.5)", "return x.clamp(min=0.5)"),
}


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script on a package of one small module, in which no test notices anything."""
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    module = importlib.import_module("mutants")
    (tmp_path / "small.py").write_text(SOURCE)
    monkeypatch.setattr(module, "PACKAGE", tmp_path)
    monkeypatch.setattr(module, "EQUIVALENT", tmp_path / "equivalent_mutants.yaml")
    monkeypatch.setattr(module, "TESTS", {"small": ([], [])})
    monkeypatch.setattr(module, "import_what_is_heavy", lambda: None)
    monkeypatch.setattr(sys, "argv", ["mutants.py", "-n", "100"])
    return module


def test_each_mutant_changes_one_thing_that_runs(script: ModuleType) -> None:
    mutants = script.mutants_of_module("small")
    assert sorted((mutant.before, mutant.after) for mutant in mutants) == sorted(CHANGES)
    for mutant in mutants:
        assert mutant.key[:2] == ("small.py", "f")
        compile(mutant.source, "small.py", "exec")


def test_a_survivor_fails_the_run_unless_it_is_explained(script: ModuleType) -> None:
    known = [list(mutant.key) for mutant in script.mutants_of_module("small")]
    stale = ["small.py", "f", "x", "y"]
    for explained, status in ((known, 0), (known[1:], 1), ([*known, stale], 1)):
        script.EQUIVALENT.write_text(yaml.safe_dump({"nobody looks": explained}))
        assert script.main() == status


# The script as `main` runs it, on a package without what verl and its plug-ins import.
RUN = """
import sys, mutants
mutants.import_what_is_heavy = lambda: None
mutants.TESTS = {"small": (["test_small.py"], [])}
sys.exit(mutants.main())
"""


# Of the six mutants two are killed: nothing that is below 1 is looked at.
@pytest.mark.parametrize(("value", "found"), [(4, "small 6 2 0 4"), (5, "fail without a mutant")])
def test_the_tests_of_a_module_are_asked_about_each_mutant(
    tmp_path: Path, value: int, found: str
) -> None:
    files = {
        "gdpo_verl/__init__.py": "",
        "gdpo_verl/plugin.py": "",
        "gdpo_verl/cpu.py": "",
        "gdpo_verl/small.py": "def f(x):\n    if x < 1:\n        return 5\n    return x * 2\n",
        "tests/test_small.py": "from gdpo_verl.small import f\n\ndef test_small():\n"
        f"    assert f(2) == {value}\n",
        "scripts/mutants.py": SCRIPT.read_text(encoding="utf-8"),
        "scripts/equivalent_mutants.yaml": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    process = subprocess.run(
        [sys.executable, "-c", RUN],
        env=os.environ | {"PYTHONPATH": str(tmp_path / "scripts")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 1
    assert found in " ".join((process.stdout + process.stderr).split())
