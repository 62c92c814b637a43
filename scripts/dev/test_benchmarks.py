"""Counts of the benchmark scripts, where a wrong figure would not be seen."""

from __future__ import annotations

import json
import subprocess
import sys

import benchmark
import benchmark_training
import pytest
import torch
from waiting import HANGS

pytestmark = pytest.mark.slow


def test_a_positive_share_of_bad_answers_is_one_at_least() -> None:
    for answers, share, expected in ((24, 0.01, 1), (512, 0.05, 26), (8, 0.0, 0)):
        asked = benchmark.questions("slow-answers", answers, share)
        assert sum(answer in benchmark.BAD["slow-answers"] for answer, _ in asked) == expected
        assert len(asked) == answers


def test_memory_of_a_result_counts_although_its_pages_were_used_before() -> None:
    benchmark.keep_pages()
    for _ in range(3):
        torch.ones(2048, 1024)  # freed, and kept by the allocator
    # 2048 x 1024 float32 are 8 MiB.
    assert 7.5 < benchmark.peak_mib(lambda: torch.ones(2048, 1024), "cpu") < 12


@pytest.mark.real
def test_the_seam_is_timed_on_a_real_queue() -> None:
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
        assert len(lines) == 5
        assert "grpo_vectorized" in lines[0]
        assert "x  1.00 (1.00 to 1.00, 2 turns)" in lines[0]


def test_a_step_of_verl_is_counted_under_the_names_of_trls() -> None:
    # Four rows: 10 tokens of prompt each, and 3, 5, 6 and 6 of answers.
    data = {"perf/total_num_tokens": 60, "prompt_length/mean": 10.0, "response_length/mean": 5.0}
    data |= {"timing_s/gen": 2.0, "timing_s/old_log_prob": 0.5, "timing_s/update_actor": 3.0}
    data |= {"timing_s/update_weights": 0.25, "timing_s/step": 6.0}
    parts = {"generation": 2.0, "old log-probs": 0.5, "update": 3.0, "weight sync": 0.25}
    counts = {"rollouts": 4, "generated tokens": 20, "trained tokens": 60}
    line = json.dumps({"step": 1, "data": data})
    assert benchmark_training.parts_of_a_step(line) == counts | parts
    trls = counts | {"update": 3.0}
    assert benchmark_training.parts_of_a_step(json.dumps(trls)) == trls


def test_the_first_step_of_each_turn_is_left_out_of_the_medians() -> None:
    def turn(*seconds: float) -> list[dict[str, float]]:
        tokens = {"generated tokens": 20, "trained tokens": 60, "generation": 2.0}
        return [{"step": step, "update": step - 2, **tokens} for step in seconds]

    found = benchmark_training.summary([turn(90, 4, 6), turn(80, 5)])
    assert (found["start and first step"], found["step"]) == (85, 5)
    assert (found["generated tokens a second"], found["trained tokens a second"]) == (10, 20)


def test_sides_that_trained_on_other_prompts_are_not_compared() -> None:
    def side(*counts: int) -> list[list[dict[str, float]]]:
        return [[dict(zip(benchmark_training.COUNTS, counts, strict=True))]]

    benchmark_training.same_work({"ours": side(4, 20, 60), "TRL": side(4, 25, 65)})
    with pytest.raises(SystemExit, match="same rollouts and prompt tokens"):
        benchmark_training.same_work({"ours": side(4, 20, 60), "TRL": side(4, 20, 61)})
