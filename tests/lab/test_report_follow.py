"""The console's line during a training."""

from __future__ import annotations

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
    """No waiting between two looks, and a clock that stands."""
    monkeypatch.setattr(progress, "time", SimpleNamespace(sleep=id, monotonic=lambda: 0.0))


def launch(run, records, log_line=""):
    """A training as `follow` meets it, one thing between two looks."""
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


def follow_launch(
    run,
    records,
    total_steps=12,
    log_line="",
):
    process, stream = launch(run, records, log_line), io.StringIO()

    def is_alive():
        return next(process, "ended") != "ended"

    with contextlib.redirect_stderr(stream):
        follow(run, total_steps=total_steps, is_alive=is_alive, label="gdpo")
    return stream.getvalue()


def test_progress_is_a_line_a_step(tmp_path):
    records = [training(step, step / 4, 1.0) for step in range(1, 5)]
    first = {"step": 0, "data": validation(0.5, 0.0)}
    lines = follow_launch(tmp_path / "run", [first, *records], total_steps=4).splitlines()
    rewards = "(25% constant), correctness 1.000 (50% constant)"
    assert lines == [
        "gdpo: starting Ray, vLLM and FSDP… 0 s",
        "gdpo: validating or taking the first step… 0 s",
        f"gdpo: step 1/4: format 0.250 {rewards}, 2.0 s a step, about 6 s left",
        f"gdpo: step 2/4: format 0.500 {rewards}, 2.0 s a step, about 4 s left",
        f"gdpo: step 3/4: format 0.750 {rewards}, 2.0 s a step, about 2 s left",
        f"gdpo: step 4/4: format 1.000 {rewards}, 2.0 s a step",
        f"gdpo: step 4/4: done in 0 s: format 1.000 {rewards}, 2.0 s a step",
    ]


def test_a_measurement_takes_no_step(tmp_path):
    answered = {"step": 0, "data": validation(0.5, 0.0)}
    lines = follow_launch(tmp_path / "run", [answered]).splitlines()
    assert lines[-1] == "gdpo: ended after 0 s (validating or taking the first step)"


def test_a_warning_of_the_plug_in_is_shown_once(tmp_path):
    import gdpo_verl.plugin.entry  # noqa: F401  its handler writes the line

    handlers = logging.getLogger("gdpo_verl").handlers
    handler = next(each for each in handlers if "gdpo-verl" in str(each.formatter._fmt))
    record = logging.LogRecord("gdpo_verl.x", logging.WARNING, "", 0, "9 of 32 failed.", None, None)
    line = f"\x1b[36m(TaskRunnerV1 pid=7)\x1b[0m {handler.format(record)}\n"
    again = line.replace("pid=7", "pid=8")
    lines = follow_launch(tmp_path / "run", [training(1, 0.5, 1.0)], log_line=line + again)
    assert [text for text in lines.splitlines() if "32" in text] == [
        "gdpo: warning: 9 of 32 failed."
    ]


def test_number_of_steps_that_is_not_set_is_taken_from_the_log(tmp_path):
    lines = follow_launch(tmp_path / "run", [training(1, 0.5, 1.0)], total_steps=0).splitlines()
    assert lines[2].endswith("2.0 s a step")
    assert lines[3].startswith("gdpo: step 1: ended after 0 s: format 0.500")
    log_line = "(TaskRunnerV1 pid=20716) INFO:2026-11-20 12:01:34,350:Total training steps: 40\n"
    lines = follow_launch(tmp_path / "other", [training(1, 0.5, 1.0)], 0, log_line).splitlines()
    assert lines[2].startswith("gdpo: step 1/40: ")
    assert lines[2].endswith("2.0 s a step, about 1 min 18 s left")


def test_a_constant_component_is_announced_once(tmp_path):
    records = [
        training(step, 0.5, 1.0, **{"gdpo/correctness/constant_groups": 0.9})
        for step in range(1, 24)
    ]
    lines = follow_launch(tmp_path / "run", records, total_steps=30).splitlines()
    alerts = [i for i, line in enumerate(lines) if "alert" in line]
    assert len(alerts) == 1
    assert lines[alerts[0] - 1].startswith("gdpo: step 20/30")
    assert lines[alerts[0]].startswith(
        "gdpo: alert: correctness is constant in 90% of the groups (mean 1), since step 1. "
    )


def test_training_that_ends_before_its_last_step_is_not_called_done(tmp_path):
    lines = follow_launch(tmp_path / "run", [training(1, 0.5, 1.0)]).splitlines()
    assert lines[-1].startswith("gdpo: step 1/12: ended early after 0 s: format 0.500")
    # What an earlier launch printed is not shown again.
    write_lines(tmp_path / "none" / "train.log", ["Initial validation metrics"])
    text = follow_launch(tmp_path / "none", [])
    assert "validated" not in text
    assert text.endswith("gdpo: ended after 0 s (validating or taking the first step)\n")
