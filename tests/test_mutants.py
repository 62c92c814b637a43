"""The mutation run: which mutants there are, how they are judged, and when it fails."""

from __future__ import annotations

import importlib.util
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
    ("return x.abs().clamp(min=0.5)", "return x.abs().clamp()"),
    ("return x.abs().clamp(min=0.5)", "return x.abs().clamp(min=5.0)"),
    ("return x.abs().clamp(min=0.5)", "return x.abs()"),
    ("return x.abs().clamp(min=0.5)", "return x.clamp(min=0.5)"),
}


ALL = len(CHANGES)


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script on a package of one small module, in which no test notices anything."""
    spec = importlib.util.spec_from_file_location("mutants", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "mutants", module)  # its dataclass looks itself up
    spec.loader.exec_module(module)
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "small.py").write_text(SOURCE)
    monkeypatch.setattr(module, "PACKAGE", tmp_path)
    monkeypatch.setattr(module, "EQUIVALENT", tmp_path / "equivalent_mutants.yaml")
    monkeypatch.setattr(module, "TESTS", {"small": ([], [])})
    monkeypatch.setattr(module, "import_what_is_heavy", lambda: None)
    monkeypatch.setattr(sys, "argv", ["mutants.py", "-n", "100"])
    return module


def test_each_mutant_changes_one_thing_that_runs(script: ModuleType) -> None:
    mutants = script.mutants_of_module("small")
    assert {(mutant.before, mutant.after) for mutant in mutants} == CHANGES
    assert len(mutants) == ALL
    assert {(mutant.file, mutant.where) for mutant in mutants} == {("deep/small.py", "f")}
    for mutant in mutants:
        assert mutant.after in mutant.source
        compile(mutant.source, "small.py", "exec")


def test_which_are_chosen_does_not_depend_on_the_code_beside_them(script: ModuleType) -> None:
    before = [mutant.key for mutant in script.mutants_of_module("small")]
    path = script.PACKAGE / "deep" / "small.py"
    path.write_text("def g(x):\n    return x + 1\n\n" + path.read_text())
    after = [mutant.key for mutant in script.mutants_of_module("small")]
    assert [key for key in after if key in before] == before
    assert len(after) == len(before) + 2


@pytest.mark.parametrize(
    ("explained", "stale", "status"),
    [(0, False, 1), (ALL - 1, False, 1), (ALL, False, 0), (ALL, True, 1)],
    ids=["none is explained", "one is not", "all are", "one that is not there any more"],
)
def test_a_survivor_fails_the_run_unless_it_is_explained(
    script: ModuleType,
    capsys: pytest.CaptureFixture[str],
    explained: int,
    stale: bool,
    status: int,
) -> None:
    fields = ("file", "where", "before", "after")
    entries = [
        dict(zip(fields, mutant.key, strict=True)) | {"reason": "nobody looks"}
        for mutant in script.mutants_of_module("small")[:explained]
    ]
    gone = {"file": "deep/small.py", "where": "f", "before": "x", "after": "y", "reason": "?"}
    script.EQUIVALENT.write_text(yaml.safe_dump(entries + [gone] * stale))
    assert script.main() == status
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].split() == [
        "small",
        *(str(n) for n in (ALL, 0, explained, ALL - explained)),
    ]
    assert sum(line.startswith("gdpo_verl/deep/small.py:") for line in lines) == ALL - explained


# The script as `main` runs it, on a package without what verl and its plug-ins import.
RUN = """
import sys, mutants
mutants.import_what_is_heavy = lambda: None
mutants.TESTS = {"small": (["test_small.py"], [])}
sys.exit(mutants.main())
"""


@pytest.mark.parametrize(
    ("test", "status", "counts"),
    [
        ("assert [f(x) for x in (0, 1, 2)] == [5, 2, 4]", 0, "6 6 0 0"),
        ("assert f(2) == 4", 1, "6 2 0 4"),  # nothing that is below 1 is looked at
        ("assert f(2) == 5", 1, ""),
    ],
    ids=["all killed", "some survive", "the tests fail without a mutant"],
)
def test_the_tests_of_a_module_are_asked_about_each_mutant(
    tmp_path: Path, test: str, status: int, counts: str
) -> None:
    files = {
        "gdpo_verl/__init__.py": "",
        "gdpo_verl/plugin.py": "",
        "gdpo_verl/cpu.py": "",
        "gdpo_verl/small.py": "def f(x):\n    if x < 1:\n        return 5\n    return x * 2\n",
        "tests/test_small.py": (
            f"from gdpo_verl.small import f\n\ndef test_small():\n    {test}\n"
        ),
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
    assert process.returncode == status, process.stdout + process.stderr
    if counts:
        assert process.stdout.splitlines()[-1].split() == ["small", *counts.split()]
    else:
        assert "fail without a mutant" in process.stderr
