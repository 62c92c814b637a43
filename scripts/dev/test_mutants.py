"""The script for mutants: which mutants exist, how they are judged, and when it fails."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import mutants
import pytest
import yaml

pytestmark = pytest.mark.slow

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
    """Run the script on a package with one small module, whose tests never fail."""
    for name in ("gdpo_verl", "tests"):
        (tmp_path / name).mkdir()
    (tmp_path / "gdpo_verl/small.py").write_text(SOURCE)
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    monkeypatch.setattr(mutants, "PACKAGE", tmp_path / "gdpo_verl")
    monkeypatch.setattr(mutants, "EQUIVALENT", tmp_path / "equivalent_mutants.yaml")
    monkeypatch.setattr(mutants, "TESTS", {"small": ("", "")})
    monkeypatch.setattr(sys, "argv", ["mutants.py", "-n", "100"])
    return mutants


def test_each_mutant_changes_one_thing_that_runs(script):
    made = script.mutants_of_module("small")
    assert sorted((mutant.before, mutant.after) for mutant in made) == sorted(CHANGES)
    for mutant in made:
        compile(mutant.source, "small.py", "exec")


def test_a_survivor_fails_the_run_unless_it_is_explained(script):
    known = [list(mutant.key) for mutant in script.mutants_of_module("small")]
    stale = ["small.py", "x", "y"]
    for explained, status in ((known, 0), (known[1:], 1), ([*known, stale], 1)):
        script.EQUIVALENT.write_text(yaml.safe_dump({"nobody looks": explained}))
        assert script.main() == status


def test_the_tests_of_a_module_are_asked_about_each_mutant(script, capsys):
    code = "def f(x):\n    if x < 1:\n        return 5\n    return x * 2\n"
    (script.PACKAGE / "small.py").write_text(code)
    script.EQUIVALENT.touch()
    script.TESTS["small"] = ("small", "")
    test = "from gdpo_verl.small import f\n\ndef test_small():\n    assert f(2) == "
    (script.ROOT / "tests/test_small.py").write_text(f"{test}4\n")
    assert script.main() == 1
    # Two of the six mutants are killed, because no value below 1 is tested.
    assert capsys.readouterr().out.splitlines()[-1].split() == ["small", "6", "2", "0", "4"]
    (script.ROOT / "tests/test_small.py").write_text(f"{test}5\n")
    with pytest.raises(SystemExit, match="fail without a mutant"):
        script.main()
