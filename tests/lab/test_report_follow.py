"""The lines on the console during a run."""

import contextlib
import io
import json
import logging
from types import SimpleNamespace

import pytest
from fake_runs import training, validation, write_lines

from gdpo_verl.lab.run import progress
from gdpo_verl.lab.run.progress import follow


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """Remove the waiting between two looks, and stop the clock."""
    monkeypatch.setattr(progress, "time", SimpleNamespace(sleep=id, monotonic=lambda: 0.0))


ONE = [training(1, 0.5, 1.0)]
BEFORE = [{"step": 0, "data": validation(0.5, 0.0)}]
TOTAL = "(TaskRunnerV1 pid=20716) INFO:2026-11-20 12:01:34,350:Total training steps: 40\n"


def launch(run, records, log_line):
    """Simulate a run for `follow`, which does one thing between two looks."""
    run.mkdir(exist_ok=True)
    yield
    with (run / "train.log").open("a") as log:
        log.write(f"{log_line}(TaskRunner pid=7) Creating file logger at metrics.jsonl\n")
    yield
    with (run / "metrics.jsonl").open("wb", buffering=0) as file:
        for record in records:
            line = json.dumps(record).encode() + b"\n"
            file.write(line[:20])
            yield
            file.write(line[20:])
            yield


def followed(run, records, total_steps=12, log_line=""):
    """Return the lines that are shown of a run."""
    process = launch(run, records, log_line)
    stream = io.StringIO()

    def is_alive():
        return next(process, "ended") != "ended"

    with contextlib.redirect_stderr(stream):
        follow(run, total_steps=total_steps, is_alive=is_alive, label="gdpo")
    return stream.getvalue().splitlines()


def test_progress_is_one_line_per_step(tmp_path):
    records = [training(step, step / 4, 1.0) for step in range(1, 5)]
    rewards = "(25% constant), correctness 1.000 (50% constant)"
    assert followed(tmp_path / "run", BEFORE + records, total_steps=4) == [
        "gdpo: starting Ray, vLLM and FSDP… 0 s",
        "gdpo: validating or taking the first step… 0 s",
        f"gdpo: step 1/4: format 0.250 {rewards}, 2.0 s a step, about 6 s left",
        f"gdpo: step 2/4: format 0.500 {rewards}, 2.0 s a step, about 4 s left",
        f"gdpo: step 3/4: format 0.750 {rewards}, 2.0 s a step, about 2 s left",
        f"gdpo: step 4/4: format 1.000 {rewards}, 2.0 s a step",
        f"gdpo: step 4/4: done in 0 s: format 1.000 {rewards}, 2.0 s a step",
    ]


@pytest.mark.parametrize(
    ("records", "steps", "log_line", "last"),
    [
        (ONE, 0, "", "step 1: ended after 0 s: format 0.500"),
        # If the number of steps is not set, it is read from the log.
        (ONE, 0, TOTAL, "step 1/40: ended early after 0 s: format 0.500"),
        ([], 12, "", "ended after 0 s (validating or taking the first step)"),
        # A validation is no step.
        (BEFORE, 12, "", "ended after 0 s (validating or taking the first step)"),
    ],
)
def test_the_last_line_describes_how_the_run_ended(tmp_path, records, steps, log_line, last):
    # The output of an earlier start is not shown again.
    write_lines(tmp_path / "train.log", ["Initial validation metrics"])
    lines = followed(tmp_path, records, steps, log_line)
    assert lines[-1].startswith(f"gdpo: {last}")
    assert "validated" not in "".join(lines)
    if log_line:
        assert lines[2].endswith("2.0 s a step, about 1 min 18 s left")


def test_a_warning_of_the_plug_in_is_shown_once(tmp_path):
    import gdpo_verl.plugin.entry  # noqa: F401  its handler writes the line

    handlers = logging.getLogger("gdpo_verl").handlers
    handler = next(each for each in handlers if "gdpo-verl" in str(each.formatter._fmt))
    record = logging.LogRecord("gdpo_verl.x", logging.WARNING, "", 0, "9 of 32 failed.", None, None)
    line = f"\x1b[36m(TaskRunnerV1 pid=7)\x1b[0m {handler.format(record)}\n"
    again = line.replace("pid=7", "pid=8")
    lines = followed(tmp_path / "run", ONE, log_line=line + again)
    assert [text for text in lines if "32" in text] == ["gdpo: warning: 9 of 32 failed."]


def test_a_constant_component_is_announced_once(tmp_path):
    dead = {"gdpo/correctness/constant_groups": 0.9}
    records = [training(step, 0.5, 1.0, **dead) for step in range(1, 24)]
    lines = followed(tmp_path / "run", records, total_steps=30)
    (place,) = [place for place, line in enumerate(lines) if "alert" in line]
    assert lines[place - 1].startswith("gdpo: step 20/30")
    assert lines[place].startswith(
        "gdpo: alert: correctness is constant in 90% of the groups (mean 1), since step 1. "
    )
