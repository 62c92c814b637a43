"""The rows of other implementations on the page about conformance."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import conformance
import pytest

ROOT = Path(__file__).parents[2]
TRL = Path(sys.prefix) / "trl"
pytestmark = pytest.mark.slow
PAGE = (ROOT / "docs/conformance.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "name",
    [
        "verl 0.9.1",
        pytest.param(
            "TRL 1.16.0",
            marks=pytest.mark.skipif(not TRL.is_dir(), reason="test_trl.py says how to get TRL"),
        ),
        "ms-swift 4.6.0",
    ],
)
def test_the_pages_row_is_what_the_implementation_gives(name, tmp_path):
    wheel = None
    if name.startswith("ms-swift"):
        project = name.replace(" ", "==")
        pip = [sys.executable, "-m", "pip", "download", "--no-deps", "-d", tmp_path, project]
        if subprocess.run(pip, capture_output=True, check=False).returncode:
            pytest.skip(f"pip cannot download {project}")
        (wheel,) = tmp_path.glob("*.whl")
    row = conformance.table_row(name, wheel)
    cancelling = 2 + list(conformance.COLUMNS).index("cancelling")
    # The float32 error is 0 there if the processor rounds square roots correctly.
    if name.startswith("ms-swift") and row[cancelling] == "✔":
        row[cancelling] = "0.792 for 0"
    assert f"\n| {' | '.join(row)} |\n" in PAGE
