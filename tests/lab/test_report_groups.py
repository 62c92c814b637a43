"""The dumps of a run: collapsed and dead groups, and the page's rollout browser."""

import json

import pandas as pd
import pytest
from fake_runs import (
    COLLAPSED,
    COMPONENTS,
    answer,
    page_of,
    rollout,
    write_lines,
    write_run,
)

from gdpo_verl.lab.report import groups
from gdpo_verl.lab.report import survey as module_survey
from gdpo_verl.lab.report.groups import read_step
from gdpo_verl.lab.report.survey import browser_data, read_dumps
from gdpo_verl.lab.rundir import dumps as rows
from gdpo_verl.lab.rundir.run import read_run


def test_a_collapsed_group_comes_first(tmp_path):
    write_lines(tmp_path / "rollouts/2.jsonl", COLLAPSED[3:] + COLLAPSED[:3])
    shown = read_step(tmp_path / "rollouts/2.jsonl", COMPONENTS).shown
    for group, expected in zip(shown, ([True, True, False], [False, False]), strict=True):
        assert [row["collapsed"] for row in group["rows"]] == expected


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (COLLAPSED, "In 1 of 2 groups (50.0%) GRPO gives one advantage to responses "
         "with different advantages in GDPO; in 0 GDPO gives one to"),
        # Each half of the group has one of two rewards, so that GDPO's terms cancel.
        ([rollout("a_0_0", 1.0, 0.0, 0.0, -1.0), rollout("a_1_0", 0.0, 3.0, 0.0, 1.0)],
         "In 0 of 1 groups (0.0%) GRPO gives one advantage to responses with different "
         "advantages in GDPO; in 1 GDPO gives one to"),
        # One component is not scored.
        ([row | {"format": None} for row in COLLAPSED[:2]], "In 1 of 1 groups"),
    ],
)  # fmt: skip
def test_the_page_counts_the_groups_that_collapse(rows, said, tmp_path):
    run = write_run(tmp_path / "gdpo")
    write_lines(run / "rollouts/2.jsonl", rows)
    assert said in page_of(tmp_path, run).text


def test_only_the_beginning_of_an_enormous_dump_is_read_and_a_note_says_so(tmp_path, monkeypatch):
    path = tmp_path / "rollouts/1.jsonl"
    write_lines(path, COLLAPSED)
    sizes = [len(line) for line in path.read_bytes().splitlines(keepends=True)]
    for module in (rows, groups):
        monkeypatch.setattr(module, "DUMP_BYTES", sum(sizes[:3]) + 10)
    step = read_step(path, COMPONENTS)
    assert (step.responses, step.groups) == (3, 1)
    (note,) = step.notes
    assert "only its first" in note


def test_a_large_table_is_read_completely(tmp_path, monkeypatch):
    path = tmp_path / "1.parquet"
    pd.DataFrame(COLLAPSED).to_parquet(path)
    monkeypatch.setattr(groups, "DUMP_BYTES", 10)
    step = read_step(path, COMPONENTS)
    assert (step.responses, step.notes) == (5, ())  # the sixth row is padding


def test_only_evenly_spaced_dumps_are_read_if_there_are_too_many_and_a_note_says_so(
    tmp_path, monkeypatch
):
    run = write_run(tmp_path / "gdpo")
    for step in range(1, 12):
        write_lines(run / f"rollouts/{step}.jsonl", COLLAPSED)
    size = (run / "rollouts/1.jsonl").stat().st_size
    monkeypatch.setattr(module_survey, "REPORT_BYTES", 3 * size)
    (found,) = read_dumps([read_run(run)])
    assert list(found.training) == [1, 6, 11]
    assert "The dumps in rollouts are large: 3 evenly spaced ones of 11 were read" in found.notes[0]


def test_the_page_contains_a_sample_of_a_step_and_says_so(tmp_path):
    text = "x" * 3000
    rows = []
    for place in range(400):
        group, session = divmod(place, 20)
        row = rollout(f"{group}_{session}_0", 1.0, 0.0, session / 10, 0.0)
        rows.append(row | {"input": str(group), "output": text})
    write_lines(tmp_path / "rollouts/1.jsonl", rows)
    step = read_step(tmp_path / "rollouts/1.jsonl", COMPONENTS)
    assert (len(step.shown), step.shown_of) == (1, 20)
    (group,) = step.shown
    # 16 of 20 responses are kept, evenly spaced from GDPO's largest advantage to the smallest.
    assert (len(group["rows"]), group["size"]) == (16, 20)
    assert [group["rows"][i]["gdpo"] for i in (0, -1)] == [1.9, 0.0]
    half = "x" * 750
    assert group["rows"][0]["text"] == f"{half}\n[… 1500 characters left out …]\n{half}"


def test_with_many_runs_fewer_steps_of_each_are_kept(tmp_path, monkeypatch):
    run = write_run(tmp_path / "gdpo")
    for step in range(1, 8):
        write_lines(run / f"rollouts/{step}.jsonl", COLLAPSED)
    monkeypatch.setattr(module_survey, "PAGE_STEPS", 6)
    data = browser_data(read_dumps([read_run(run)] * 2))
    assert json.loads(data["index"])[1]["kinds"] == {"training": [1, 4, 7], "held-out": [0, 3]}
    shown = [id for id in data if "r1-training" in id]
    assert shown == ["r1-training-1", "r1-training-4", "r1-training-7"]


def test_a_run_without_components_shows_its_held_out_rollouts(tmp_path):
    line = {"step": 1, "data": {"critic/score/mean": 0.5}}
    write_lines(tmp_path / "run/metrics.jsonl", [line])
    write_lines(tmp_path / "run/validation/0.jsonl", [answer("add 1", "x", 1.0, 3.0)])
    data = browser_data(read_dumps([read_run(tmp_path / "run")]))
    assert json.loads(data["index"]) == [{"name": "run", "kinds": {"held-out": [0]}}]
    (group,) = json.loads(data["r0-held-out-0"])["groups"]
    assert group["keys"] == ["score", "reward", "format", "correctness"]
    (row,) = group["rows"]
    assert (row["scores"], row["gdpo"]) == ([4.0, 4.0, 1.0, 3.0], None)
