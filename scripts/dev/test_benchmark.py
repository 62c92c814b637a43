"""Figures of the benchmark that would not be noticed if they were wrong."""

from __future__ import annotations

import subprocess
import sys

import benchmark
import pytest
import torch
from waiting import HANGS

pytestmark = pytest.mark.slow


def test_a_positive_share_of_bad_answers_is_one_at_least():
    for answers, share, expected in ((24, 0.01, 1), (512, 0.05, 26), (8, 0.0, 0)):
        asked = benchmark.questions("slow-answers", answers, share)
        assert sum(answer in benchmark.BAD["slow-answers"] for answer, _ in asked) == expected
        assert len(asked) == answers


def test_memory_of_a_result_counts_although_its_pages_were_used_before():
    benchmark.keep_pages()
    for _ in range(3):
        torch.ones(2048, 1024)  # freed, and kept by the allocator
    # 2048 x 1024 float32 are 8 MiB.
    assert 7.5 < benchmark.peak_mib(lambda: torch.ones(2048, 1024), "cpu") < 12


@pytest.mark.real
def test_the_seam_is_timed_on_a_real_queue():
    process = subprocess.run(
        [sys.executable, benchmark.__file__, "seam", "--size", "16x8", "--turns", "2"],
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
