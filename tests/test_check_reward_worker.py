"""`gdpo-verl check-reward`: the process in which answers are scored."""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from reward_checks import check as check
from reward_checks import scores
from reward_checks import work as work
from waiting import wait_for

from gdpo_verl.check_reward.worker import Outcome, _receive


def test_what_a_reward_prints_is_no_part_of_the_report(check: Callable) -> None:
    status, shown, _ = check("prints", "--rows", "1")
    assert (status, "a reward that prints" in shown) == (0, False)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        pytest.param(
            "raises_on_empty",
            "it raised ZeroDivisionError: division by zero (",
            id="raises",
        ),
        pytest.param(
            "sleeps_on_empty",
            "it did not end within 1 s of processor time",
            id="hangs in a thread",
        ),
        pytest.param(
            "holds_the_interpreter_on_empty",
            "it did not end within 1 s of processor time",
            id="holds the interpreter",
        ),
        pytest.param("dies_on_empty", "it ended its process with status 7", id="crashes"),
    ],
)
def test_one_bad_answer_is_named_and_the_others_are_scored(
    check: Callable, function: str, expected: str
) -> None:
    status, shown, report = check(function, "--rows", "2", "--timeout", "1")
    assert status == 1
    assert f"PROBLEM  row 0 (empty): {expected}" in shown
    assert "(and 1 more)" in shown
    assert scores(report) == {
        "ground truth": [2.0, 2.0],
        "as an answer": [0.0, 0.0],
        "another row's": [1.0, 1.0],
        "another row's, as an answer": [0.0, 0.0],
        "in a box": [0.0, 0.0],
        "another row's, in a box": [0.0, 0.0],
        "cut in half": [1.0, 1.0],
        "random text": [0.0, 0.0],
        "empty": [None, None],
    }


def test_too_many_lost_answers_end_the_check(check: Callable, work: Path) -> None:
    lines = [json.dumps({"index": 0, "answer": text}) for text in [""] * 5 + ["22"]]
    (work / "answers.jsonl").write_text("\n".join(lines))
    status, shown, report = check("dies_on_empty", "--answers", "answers.jsonl")
    assert status == 1
    assert len(report["answers"]) == 5
    assert "PROBLEM  1 answers were left out" in shown


def test_killed_command_leaves_no_process(work: Path) -> None:
    (work / "hangs.py").write_text(
        "import os, pathlib\n"
        "def compute_score(*args, **kwargs):\n"
        "    pathlib.Path('pid').write_text(str(os.getpid()))\n"
        "    sum(range(10 ** 12))\n"
    )
    command = [sys.executable, "-m", "gdpo_verl.cli", "check-reward", "--function", "hangs.py"]
    process = subprocess.Popen([*command, "--data", "data.parquet", "--timeout", "500"])
    try:
        wait_for(lambda: (work / "pid").exists() and bool((work / "pid").read_text()))
    finally:
        process.kill()
        process.wait()
    worker = int((work / "pid").read_text())
    wait_for(lambda: not runs(worker))


def runs(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_what_a_process_sent_before_it_ended_is_received() -> None:
    process = multiprocessing.get_context("fork").Process(target=int)
    process.start()
    process.join()
    ours, its = multiprocessing.Pipe()
    its.send(Outcome(score=0.5))
    its.close()
    assert _receive(process, ours, 60).score == 0.5
    assert _receive(process, ours, 60).error == "ended its process with status 0"
