"""Figures of the benchmark that would not be noticed if they were wrong."""

from __future__ import annotations

import subprocess
import sys

import benchmark
import pytest
from waiting import HANGS

pytestmark = pytest.mark.slow


@pytest.mark.real
def test_the_trainer_step_is_timed_on_a_real_queue():
    process = subprocess.run(
        [sys.executable, benchmark.__file__, "step", "--size", "16x8", "--turns", "2"],
        capture_output=True,
        text=True,
        check=False,
        timeout=HANGS,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    assert "advantage: 16 rows of at most 8 tokens" in process.stdout
    for clock in ("wall", "CPU"):
        lines = [line for line in process.stdout.splitlines() if line.startswith(f"  {clock}")]
        assert len(lines) == 6
        assert "grpo_vectorized" in lines[0]
        assert "x  1.00 (1.00 to 1.00, 2 turns)" in lines[0]
