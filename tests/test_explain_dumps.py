"""The user's own rollouts in the explorer: complete, incomplete, cut off, enormous."""

from __future__ import annotations

import json
import math

import pytest
from browser import browser as browser
from explain_pages import HOSTILE, WITH_ADVANTAGES, row, write_dump

from gdpo_verl.explain import conclusions, dumps
from gdpo_verl.rundir.dumps import DUMP_BYTES


def test_dumped_advantages_are_shown_as_they_are(tmp_path):
    dump = dumps.read_dump(write_dump(tmp_path, *WITH_ADVANTAGES))
    assert (dump.components, dump.notes) == (("style", "speed"), ())
    first, second = dump.groups
    assert [(r.name, r.grpo, r.gdpo, r.tie, r.split) for r in first.rollouts] == [
        ("1", 0.5, 0.7, "A", True),
        ("2", 0.5, 0.3, "A", True),
        ("3", -1.0, -1.0, "", False),
    ]
    assert first.texts == ("fast", "fast", HOSTILE)
    assert first.title == "How fast? (2 collapsed)"
    assert len(second.rollouts) == 1  # nothing collapses in it, so it comes last


def test_rows_that_fill_the_batch_are_left_out(tmp_path):
    filler = row("padding_0_0", 0.0, 0.0, grpo_advantage=None, gdpo_advantage=None)
    padded = write_dump(tmp_path, *WITH_ADVANTAGES, filler)
    assert dumps.read_dump(padded) == dumps.read_dump(
        write_dump(tmp_path, *WITH_ADVANTAGES, step=2)
    )


def test_missing_advantages_are_computed_and_said_to_be(tmp_path):
    rows = [row("u_0_0", 1.0, 0.0), row("u_1_0", 0.0, 1.0), row("u_2_0", 0.0, 0.0)]
    mixed = [rows[0] | {"grpo_advantage": 9.0, "gdpo_advantage": 9.0}, *rows[1:]]
    for version in (rows, mixed):
        dump = dumps.read_dump(write_dump(tmp_path, *version))
        found = [each.grpo for each in dump.groups[0].rollouts]
        assert found == pytest.approx([1 / math.sqrt(3), 1 / math.sqrt(3), -2 / math.sqrt(3)], 1e-4)
        assert any("both are computed" in note for note in dump.notes)


def test_what_is_not_scored_is_not_a_zero(tmp_path):
    rows = [row("u_0_0", 1.0, None), row("u_1_0", 0.0, 0.0), row("u_2_0", None, None)]
    dump = dumps.read_dump(write_dump(tmp_path, *rows))
    assert [conclusions.vector(r.rewards) for r in dump.groups[0].rollouts] == ["[1, –]", "[0, 0]"]
    assert "Rows without any reward component: 1; left out." in dump.notes


def test_a_dump_cut_off_in_mid_line_shows_its_whole_lines(tmp_path):
    dump = dumps.read_dump(write_dump(tmp_path, *WITH_ADVANTAGES, end='{"input": "us'))
    assert sum(len(group.rollouts) for group in dump.groups) == 4
    assert dump.notes == ("Lines of 1.jsonl that are no whole rows: 1; left out.",)


def test_the_metrics_say_which_numbers_are_components(tmp_path):
    rows = [each | {"extra_number": 3.0} for each in WITH_ADVANTAGES]
    path = write_dump(tmp_path, *rows)
    assert "extra_number" in dumps.read_dump(path).components
    assert dumps.known_components(tmp_path) == ()
    line = {"step": 1, "data": {"rewards/style/mean": 0.5, "rewards/length/mean": 1.0}}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(line))
    dump = dumps.read_dump(path, dumps.known_components(tmp_path))
    assert dump.components == ("style",)
    assert dump.notes == ("1.jsonl lacks what the run's metrics name: length.",)


def test_components_of_any_name_are_the_run_s(tmp_path):
    names = ("acc", "style/tone", "style_advantage")
    rows = [
        row(f"u_{i}_0", 0.0, 0.0) | dict.fromkeys(names, float(i)) | {"gdpo_advantage": i}
        | {"grpo_advantage": i, "dvao_advantage": i / 2}
        for i in range(2)
    ]  # fmt: skip
    (tmp_path / "gdpo").mkdir()
    path = write_dump(tmp_path / "gdpo", *rows)
    line = {"step": 1, "data": {f"gdpo/{name}/mean": 0.5 for name in names}}  # an older run
    (tmp_path / "gdpo.jsonl").write_text(json.dumps(line))  # where verl itself keeps it
    dump = dumps.read_dump(path, dumps.known_components(tmp_path / "gdpo"))
    assert (dump.components, dump.variant, dump.notes) == (names, "dvao", ())


def test_a_dump_without_components_says_so(tmp_path):
    dump = dumps.read_dump(write_dump(tmp_path, {"input": "a", "output": "b", "score": 1.0}))
    assert dump.groups == ()
    assert "has no reward components (input, output, score)" in dump.notes[0]
    assert "no whole row" in dumps.read_dump(write_dump(tmp_path)).notes[0]


def test_of_an_enormous_dump_only_the_beginning_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(dumps, "MAX_ROWS", 3)
    dump = dumps.read_dump(write_dump(tmp_path, *WITH_ADVANTAGES))
    assert sum(len(group.rollouts) for group in dump.groups) == 3
    assert "only its first 3 rows were read" in dump.notes[0]
    monkeypatch.undo()
    heavy = [each | {"input": "a" * (DUMP_BYTES // 3)} for each in WITH_ADVANTAGES]
    dump = dumps.read_dump(write_dump(tmp_path, *heavy))
    assert "only its first 2 rows were read" in dump.notes[0]


@pytest.mark.parametrize("inside", ["", "rollouts"], ids=["run", "its dumps"])
def test_dumps_are_found_by_step(tmp_path, inside):
    paths = {step: write_dump(tmp_path, step=step) for step in (10, 2)}
    assert dumps.find_dumps(tmp_path / inside) == dict(sorted(paths.items()))
    assert list(dumps.find_dumps(tmp_path / inside)) == [2, 10]


def test_a_folder_without_dumps_is_refused_with_what_it_holds(tmp_path):
    with pytest.raises(ValueError, match="found nothing"):
        dumps.find_dumps(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="found it empty"):
        dumps.find_dumps(tmp_path)
    write_dump(tmp_path / "gdpo")
    write_dump(tmp_path / "grpo")
    with pytest.raises(ValueError, match=r"several runs\. Give one of them: gdpo, grpo"):
        dumps.find_dumps(tmp_path)


def test_a_variant_s_advantages_are_a_third_bar_and_no_component(tmp_path):
    rows = [each | {"dvao_advantage": i / 4} for i, each in enumerate(WITH_ADVANTAGES)]
    dump = dumps.read_dump(write_dump(tmp_path, *rows))
    assert (dump.components, dump.variant) == (("style", "speed"), "dvao")
    assert [group.variant for group in dump.groups] == [(0.0, 0.25, 0.5), (0.75,)]
