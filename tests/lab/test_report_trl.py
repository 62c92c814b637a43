"""Runs of TRL are found by their state, their checkpoints and their event files."""

import json
import os
import re
from pathlib import Path

import pytest
from fake_runs import page_of, training, write_lines

from gdpo_verl.lab.rundir.metrics import RunError
from gdpo_verl.lab.rundir.run import find_runs, read_run

STATE = "trainer_state.json"


def write_state(directory, steps, *, of=None):
    """Write TRL's state after a number of steps, each with an evaluation."""
    entries = []
    for step in range(1, steps + 1):
        trained = {"rewards/short/mean": step / 10, "completions/mean_length": 8.0}
        evaluated = {"eval_rewards/short/mean": step / 20, "eval_runtime": 0.1}
        entries += [trained | {"step": step}, evaluated | {"step": step}]
    state = {"global_step": steps, "max_steps": of or steps, "log_history": entries}
    directory.mkdir(parents=True, exist_ok=True)
    (directory / STATE).write_text(json.dumps(state))
    return directory


def write_events(directory, steps):
    """Write the same metrics as event files, as TRL's callback does."""
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    writer = tensorboard.SummaryWriter(str(directory))
    for step in range(1, steps + 1):
        writer.add_scalar("train/rewards/short/mean", step / 10, step)
        writer.add_scalar("train/completions/mean_length", 8.0, step)
        writer.add_scalar("eval/rewards/short/mean", step / 20, step)
    writer.close()


@pytest.fixture
def folder(tmp_path):
    """Write six runs of all kinds, and files that are no runs."""
    folder = tmp_path / "runs"
    write_state(folder / "at_the_end", 4)
    write_state(folder / "checkpoints/checkpoint-2", 2, of=4)
    write_state(folder / "checkpoints/checkpoint-4", 4)
    write_state(folder / "both/checkpoint-2", 2, of=4)
    write_state(folder / "both", 4)
    write_events(folder / "events/runs/Nov26_16-18-08_vm", 4)
    for file in ("verl/metrics.jsonl", "file.jsonl"):
        write_lines(folder / file, [training(step, 0.5, 0.0) for step in (1, 2)])
    write_lines(folder / "notes.jsonl", [{"no": "metrics"}])
    (folder / "empty").mkdir()
    return folder


TRLS = ["at_the_end", "both", "checkpoints", "events"]


def test_a_mixed_folder_names_each_run(folder):
    found = find_runs([folder])
    assert sorted(path.name for path in found) == sorted([*TRLS, "verl", "file.jsonl"])
    text = page_of(folder.parent / "out", folder).text
    assert "Left out" not in text
    assert "held-out short, before → after" in text


@pytest.mark.parametrize("name", TRLS)
def test_each_kind_of_run_is_read(folder, name):
    run = read_run(folder / name)
    assert run.components == ["short"]
    assert run.training_steps == [1, 2, 3, 4]
    trained = [(step, pytest.approx(step / 10)) for step in (1, 2, 3, 4)]
    evaluated = [(step, pytest.approx(step / 20)) for step in (1, 2, 3, 4)]
    assert run.series("rewards/short/mean") == trained
    assert run.validation_series("short") == {"eval": evaluated}
    assert run.series("response_length/mean")[0] == (1, 8.0)
    (note,) = run.notes
    assert note.startswith("Of TRL's run, ")


@pytest.mark.parametrize(
    ("part", "name", "steps"),
    [
        (f"at_the_end/{STATE}", "at_the_end", 4),
        (f"checkpoints/checkpoint-2/{STATE}", "checkpoint-2", 2),
        ("events", "events", 4),
        ("events/runs", "runs", 4),
        ("events/runs/Nov26_16-18-08_vm", "Nov26_16-18-08_vm", 4),
        ("verl/metrics.jsonl", "verl", 2),
    ],
)
def test_a_part_of_a_run_is_read_where_it_is_named(folder, monkeypatch, part, name, steps):
    path = folder / part
    monkeypatch.chdir(path.parent)
    (found,) = find_runs([Path(path.name)])
    run = read_run(found)
    assert (run.name, len(run.training_steps)) == (name, steps)


def test_runs_inside_of_a_run_directory_are_found_in_addition_to_the_run(tmp_path):
    runs = [write_state(tmp_path / "outer", 2), write_state(tmp_path / "outer/inner", 2)]
    assert find_runs(runs[:1]) == runs


def test_event_files_in_a_folder_of_their_own_belong_to_the_run(tmp_path):
    write_events(tmp_path / "run/tensorboard", 2)
    assert find_runs([tmp_path / "run"]) == [tmp_path / "run"]
    # In several folders they belong to several runs, as in verl's
    # tensorboard_log/PROJECT/EXPERIMENT.
    write_events(tmp_path / "run/another", 2)
    found = find_runs([tmp_path / "run"])
    assert found == [tmp_path / "run/another", tmp_path / "run/tensorboard"]


def test_a_copied_run_is_read_up_to_its_last_complete_checkpoint(tmp_path):
    run = tmp_path / "run"
    for step in (10, 9, 8):  # files of a copy have the times of copying, in any order
        state = write_state(run / f"checkpoint-{step}", step, of=20) / STATE
        os.utime(state, (2e9 - step, 2e9 - step))
    assert max(read_run(run).training_steps) == 10
    last = run / "checkpoint-10" / STATE
    last.write_text(last.read_text()[:-30])
    assert max(read_run(run).training_steps) == 9


@pytest.mark.parametrize("text", ["{", "[]", '{"log_history": 3}', "{}"])
def test_another_file_named_like_trls_state_is_no_run(tmp_path, text):
    (tmp_path / STATE).write_text(text)
    with pytest.raises(RunError, match=re.escape(STATE)):
        read_run(tmp_path / STATE)


def test_a_state_without_rewards_is_reported_in_trls_terms(tmp_path):
    state = {"log_history": [{"loss": 1.0, "step": 1}], "global_step": 1, "max_steps": 1}
    (tmp_path / STATE).write_text(json.dumps(state))
    notes = read_run(tmp_path).notes
    assert notes[1].startswith("No rewards/<name>/mean in it")
    assert not re.search(r"verl|algorithm\.", " ".join(notes))


def test_an_entry_of_trls_state_without_a_step_is_ignored(tmp_path):
    entries = [{"rewards/short/mean": 0.5, "step": 1}, "cut", {"loss": 1.0}, {"step": 2, "x": 1.0}]
    (tmp_path / STATE).write_text(json.dumps({"log_history": entries}))
    run = read_run(tmp_path)
    assert run.components == ["short"]
    assert run.notes[0].startswith("2 entries of trainer")
