"""`gdpo-verl check-reward`: the process in which answers are scored."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from reward_checks import check as check
from reward_checks import scores
from reward_checks import work as work
from waiting import wait_for


def test_what_a_reward_prints_is_no_part_of_the_report(check: Callable) -> None:
    status, shown, _ = check("prints", "--rows", "1")
    assert (status, "a reward that prints" in shown) == (0, False)


def test_an_answer_that_raises_is_named_and_the_others_are_scored(check: Callable) -> None:
    status, shown, report = check("raises", "--rows", "2")
    assert status == 1
    assert "PROBLEM  row 0 (empty): it raised ZeroDivisionError: division by zero (" in shown
    assert "(and 1 more)" in shown
    assert scores(report)["ground truth"] == [2.0, 2.0]
    assert scores(report)["empty"] == [None, None]


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        pytest.param("sleeps", "did not end within 1 s", id="hangs in a thread"),
        pytest.param("holds_the_interpreter", "did not end within 1 s", id="holds the interpreter"),
        pytest.param("exits", "ended its process with status 7", id="exits"),
        pytest.param("crashes", "ended its process with signal 11, Segm", id="segmentation fault"),
    ],
)
def test_the_first_hang_or_crash_is_named_and_ends_the_check(
    check: Callable, work: Path, function: str, expected: str
) -> None:
    lines = [json.dumps({"index": 0, "answer": text}) for text in ("22", "", "22")]
    (work / "answers.jsonl").write_text("\n".join(lines))
    seconds = "1" if "1 s" in expected else "60"  # a busy machine takes its time over a crash
    status, shown, report = check(function, "--answers", "answers.jsonl", "--timeout", seconds)
    assert status == 1
    (problem,) = [line for line in report["problems"] if "row 0 (answers.jsonl): it " in line]
    assert expected in problem
    (line,) = [
        number
        for number, text in enumerate((work / "rewards.py").read_text().splitlines(), start=1)
        if text.startswith(f"{function} = ")
    ]
    if function != "exits":  # of which nothing tells the place
        assert problem.endswith(f"rewards.py:{line})")
    assert scores(report) == {"answers.jsonl": [2.0, None]}
    assert "note     1 answers were not scored" in shown


def test_a_crash_has_its_place_where_a_library_took_the_signal(check: Callable, work: Path) -> None:
    taking = "import signal\nsignal.signal(signal.SIGSEGV, signal.SIG_DFL)\n"
    (work / "late.py").write_text(f"{taking}from rewards import crashes as reward\n")
    _, shown, _ = check(None, "--function", "late.py:reward", "--timeout", "60")
    assert re.search(r"signal 11, Segm.*rewards\.py:\d+\)", shown)


def test_a_module_that_crashes_when_it_is_loaded_is_named(check: Callable, work: Path) -> None:
    (work / "exits.py").write_text("import os\nos._exit(3)\n")
    status, shown, _ = check(None, "--function", "exits.py")
    assert (status, "reward: loading it ended its process with status 3" in shown) == (1, True)


def test_a_gpu_that_the_command_has_used_is_not_handed_on(
    check: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
    status, _, report = check("good", "--rows", "1")
    assert (status, scores(report)["ground truth"]) == (0, [2.0])


def test_killed_command_leaves_no_process(work: Path) -> None:
    (work / "hangs.py").write_text(
        "import os, pathlib\n"
        "def compute_score(*args, **kwargs):\n"
        "    pathlib.Path('pid').write_text(str(os.getpid()))\n"
        "    sum(range(10 ** 12))\n"
    )
    command = [sys.executable, "-m", "gdpo_verl.cli", "check-reward", "--function", "hangs.py"]
    process = subprocess.Popen([*command, "--data", "data.parquet", "--timeout", "5000"])
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


def test_an_event_loop_that_the_command_has_used_keeps_no_answer_waiting(check: Callable) -> None:
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    loop.run_until_complete(loop.run_in_executor(None, int))  # its thread now waits for work
    try:
        assert check("good", "--rows", "1", "--timeout", "60")[0] == 0
    finally:
        asyncio.set_event_loop(None)
        loop.close()
