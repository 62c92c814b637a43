"""Reports about runs that the tests write in verl's formats."""

import base64
import hashlib
import json
import re
import sys
from pathlib import Path

import pytest
from fake_runs import (
    COLLAPSED,
    COMPONENTS,
    HOSTILE,
    Page,
    answer,
    page_of,
    rollout,
    training,
    validation,
    write_lines,
    write_run,
)

from gdpo_verl.lab.report import write_report
from gdpo_verl.lab.report.groups import read_step
from gdpo_verl.lab.report.panels import recipe_colors
from gdpo_verl.lab.report.recipes import Recipe
from gdpo_verl.lab.rundir.metrics import RunError, set_aside_metrics
from gdpo_verl.lab.rundir.run import find_runs, read_run


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Write two runs for the tests that only read them."""
    place = tmp_path_factory.mktemp("runs")
    runs = [write_run(place / "gdpo"), write_run(place / "grpo", "grpo", gain=0.5)]
    for run in runs:
        with (run / "config.yaml").open("a") as config:
            config.write(f'hostile: {{"{HOSTILE}": "{HOSTILE} {run.name}"}}\n')
        (run / "launch.json").write_text(json.dumps({"version": HOSTILE}))
    return runs


@pytest.fixture(scope="module")
def written(runs):
    """Write the page of the two runs."""
    return write_report(runs, runs[0].parent / "new" / "report")


@pytest.fixture
def page(written):
    return Page(written.read_text(encoding="utf-8"))


def test_the_report_writes_a_page_with_pictures_and_tables_of_the_runs_numbers(written, page):
    out = written.parent
    assert {path.name for path in out.iterdir()} == {"index.html", "summary.md"}
    summary = (out / "summary.md").read_text(encoding="utf-8")
    assert summary.startswith("|  | gdpo | grpo |\n|---|---|---|\n")
    for text in (
        "| advantage estimator | gdpo | grpo |",
        "| training steps | 3 of 3 | 3 of 3 |",
        # With three steps, each end is a single step.
        "| training correctness, first → last step | 0.500 → 1.500 | 0.500 → 1.000 |",
        "| held-out correctness, before → after | 0.250 → 1.500 | 0.250 → 1.500 |",
        "| groups in which format is constant, first → last step | 25.0% → 25.0% | 25.0% → ",
        "| seconds a step (median) | 2.0 | 2.0 |",
    ):
        assert text in summary
    assert page.open == []
    # There are two components, and two panels of metrics of groups.
    assert page.tags.count("svg") == 4
    for text in (
        "gdpo and grpo",
        "policy tiny",
        "0.500 → 1.500",
    ):
        assert text in page.text


def test_a_reward_that_was_never_scored_has_a_row_and_no_curves(tmp_path):
    run = write_run(tmp_path / "run")
    count = page_of(tmp_path / "report", run).tags.count("svg")
    write_lines(run / "rollouts/2.jsonl", [row | {"length": None} for row in COLLAPSED])
    more = {"gdpo/length/unscored": 1.0}
    write_lines(run / "metrics.jsonl", [training(step, 0.5, 0.5, **more) for step in (1, 2, 3)])
    page = page_of(tmp_path / "report", run)
    assert page.tags.count("svg") == count
    assert "Never scored: length." in page.text
    group = read_step(run / "rollouts/2.jsonl", [*COMPONENTS, "length"]).shown[0]
    assert (group["keys"], group["unscored"]) == (COMPONENTS, ["length"])
    assert [len(row["scores"]) for row in group["rows"]] == [2, 2, 2]


def test_text_from_the_model_is_shown_and_never_executed(written, page):
    digest = base64.b64encode(hashlib.sha256(page.scripts[""].encode()).digest()).decode()
    allowed = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    assert allowed in written.read_text(encoding="utf-8")
    assert HOSTILE in page.text
    assert "img" not in page.tags
    # There are only the page's own script, and data that no browser executes.
    assert page.tags.count("script") == len(page.scripts)
    assert HOSTILE not in "".join(page.scripts.values())
    assert f"hostile.{HOSTILE} {HOSTILE} gdpo" in page.text
    assert "<script" not in written.with_name("summary.md").read_text()
    groups = json.loads(page.scripts["r0-held-out-0"])["groups"]
    assert HOSTILE in [group["rows"][0]["text"] for group in groups]


def test_half_of_a_surrogate_pair_does_not_stop_the_report(tmp_path):
    run = write_run(tmp_path / "gdpo")
    rows = [answer("half \ud83d", "\ud83d", 0.0, 0.0), answer("add 1", "x", 1.0, 0.0)]
    write_lines(run / "validation/0.jsonl", rows)
    write_lines(run / "validation/3.jsonl", rows)
    dead = [rollout(f"a_{i}_0", 1.0, 1.0, 0.0, 0.0) | {"input": "half \ud83d"} for i in range(2)]
    write_lines(run / "rollouts/2.jsonl", dead)
    page = page_of(tmp_path, run)
    assert "For example: “half ?”" in page.text
    texts = [g["rows"][0]["text"] for g in json.loads(page.scripts["r0-held-out-3"])["groups"]]
    assert "\ud83d" in texts


def test_names_of_components_and_runs_are_escaped(tmp_path):
    run = tmp_path / "<i>run|$x$"
    write_lines(run / "metrics.jsonl", [{"step": 1, "data": {"rewards/<u>$\\bad$/mean": 0.5}}])
    page = page_of(tmp_path, run)
    assert not {"u", "i"} & set(page.tags)
    assert "<u>$\\bad$" in page.text
    summary = (tmp_path / "summary.md").read_text(encoding="utf-8")
    assert summary.startswith(r"|  | &lt;i>run\|$x$ |")
    assert r"training &lt;u>$\\bad$" in summary


def test_the_page_loads_nothing_from_another_host(written, runs, page):
    html = written.read_text(encoding="utf-8")
    assert "://" not in html
    assert not re.search(r"url\((?!#)|@import|//\w", html)
    assert [ref for ref in page.references if not ref.startswith("#")] == []
    assert str(runs[0].parent) not in html
    # The page contains no date and no random id, so that it is the same each time.
    assert write_report(runs, written.parent).read_text(encoding="utf-8") == html


def test_a_broken_line_is_ignored_and_named(tmp_path):
    lines = [training(1, 0.5, 0.0), [], training(1, 0.6, 0.0)]
    write_lines(tmp_path / "metrics.jsonl", lines, end='{"step": 2, "data": {"gdpo/format/me')
    run = read_run(tmp_path)
    assert list(run.metrics) == [1]
    for number in (2, 4):
        said = f"Line {number} of metrics.jsonl is not a complete metrics line; ignored."
        assert said in run.notes


def test_missing_pieces_are_named_on_the_page(tmp_path):
    run = tmp_path / "run"
    write_lines(run / "metrics.jsonl", [training(2, 0.5, 0.0)])
    text = page_of(tmp_path, run).text
    for missing in (
        "No run/rollouts/<step>.jsonl: set trainer.rollout_data_dir",
        "No config.yaml",
        "The metrics begin at step 2",
        "No held-out format, correctness in the metrics: set trainer.test_freq.",
    ):
        assert missing in text
    line = {"step": 1, "data": {"critic/score/mean": 0.5, "timing_s/step": 2.0}}
    write_lines(run / "metrics.jsonl", [line])
    text = page_of(tmp_path, run).text
    assert "No rewards/<component>/mean in the metrics" in text
    assert "seconds a step (median) 2.0" in text


def test_metrics_of_a_resumed_run_include_those_of_earlier_starts(tmp_path):
    file = tmp_path / "metrics.jsonl"
    assert set_aside_metrics(tmp_path) is None
    write_lines(file, [training(step, step / 10, 0.0) for step in (1, 2, 3)])
    assert set_aside_metrics(tmp_path) == tmp_path / "metrics.1.jsonl"
    # The run resumes from the checkpoint of step 1, which it first validates.
    write_lines(file, [{"step": 1, "data": validation(0.5, 0.0)}, training(2, 0.9, 0.0)])
    assert set_aside_metrics(tmp_path) == tmp_path / "metrics.2.jsonl"
    assert read_run(tmp_path).series("rewards/format/mean") == [(1, 0.1), (2, 0.9)]
    write_lines(file, [training(2, 0.8, 0.0), training(3, 0.7, 0.0)])
    run = read_run(tmp_path)
    assert run.series("rewards/format/mean") == [(1, 0.1), (2, 0.8), (3, 0.7)]
    assert run.validation_series("format") == {"toolbox": [(1, 0.5)]}


def test_a_path_without_a_run_is_rejected(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    write_lines(tmp_path / "cut_run/metrics.jsonl", [], end='{"step"')
    for name, said in {
        "none": "none: expected a run directory that holds metrics.jsonl.*found nothing",
        "file": "found another file",
        "empty": r"found the files \[\]",
        "cut_run": r"found the files \['metrics\.jsonl'\]",
    }.items():
        with pytest.raises(RunError, match=said):
            write_report([tmp_path / name], tmp_path / "out")
        assert not (tmp_path / "out").exists()


def test_a_directory_without_a_run_among_others_is_named(runs, tmp_path, caplog):
    text = page_of(tmp_path, *runs, tmp_path / "typo").text
    assert "Left out: " in text
    assert "typo: expected a run directory" in text
    assert "typo: expected a run directory" in caplog.text


@pytest.mark.parametrize("text", ["a: [", "- a list", "a: ${unknown:1}"])
def test_an_unusable_configuration_does_not_stop_the_report(text, tmp_path):
    write_lines(tmp_path / "metrics.jsonl", [training(1, 0.5, 0.0)])
    (tmp_path / "config.yaml").write_text(text)
    run = read_run(tmp_path)
    assert run.setting("a.b") is None
    assert run.estimator == tmp_path.name


def test_a_validation_has_the_mean_over_most_sessions_of_each_source(tmp_path):
    data = {
        "rewards/format/mean": 0.5,
        "val-aux/openai/gsm8k/format/mean@8": 0.4,
        "val-aux/openai/gsm8k/format/mean@16": 0.3,
        "val-aux/openai/gsm8k/format/best@16/mean": 1.0,
        "val-aux/other/format/mean@1": 0.2,
    }
    write_lines(tmp_path / "metrics.jsonl", [{"step": 4, "data": data}])
    found = read_run(tmp_path).validation_series("format")
    assert found == {"openai/gsm8k": [(4, 0.3)], "other": [(4, 0.2)]}


STRANGE = ["style/tone", "tone", "a b", "a.*|[b]", "style_advantage", "格式/mean@2"]


def test_unusual_names_of_components_are_read_like_others(tmp_path):
    metrics = {"val-core/a/b/reward/mean@4": 1.0}
    row = {}
    for place, name in enumerate(STRANGE):
        metrics[f"rewards/{name}/mean"] = float(place)
        metrics[f"val-aux/a/b/{name}/mean@4"] = place / 10
        row[name] = place
    write_lines(tmp_path / "metrics.jsonl", [{"step": 1, "data": metrics}])
    write_lines(tmp_path / "rollouts/1.jsonl", [row | rollout("a_0_0", 0.0, 0.0, 0.5, 0.5)])
    run = read_run(tmp_path)
    assert run.components == STRANGE
    for place, name in enumerate(STRANGE):
        assert run.series(f"rewards/{name}/mean") == [(1, place)]
        # "tone" does not belong to a data source a/b/style.
        assert run.validation_series(name) == {"a/b": [(1, place / 10)]}
    (group,) = read_step(run.rollouts[1], run.components).shown
    assert (group["keys"], group["variant"]) == (STRANGE, "")
    assert group["rows"][0]["scores"] == (0, 1, 2, 3, 4, 5)


def test_the_file_of_verls_tracker_is_read(tmp_path, monkeypatch):
    tracking = pytest.importorskip("verl.utils.tracking")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("VERL_FILE_LOGGER_PATH", raising=False)
    logger = tracking.FileLogger("mine", "gdpo")
    logger.log({"rewards/format/mean": 0.5, "actor/entropy": float("nan")}, step=1)
    logger.finish()
    file = tmp_path / "mine/gdpo.jsonl"
    assert read_run(file).metrics == {1: {"rewards/format/mean": 0.5}}
    write_lines(tmp_path / "mine/notes.jsonl", [{"no": "metrics"}])
    assert find_runs([file.parent]) == [file]
    # verl overwrites the file, which is why set_aside_metrics exists. If this fails, verl appends,
    # and set_aside_metrics can be removed.
    tracking.FileLogger("mine", "gdpo").finish()
    assert file.read_bytes() == b""


def test_event_files_of_tensorboard_are_read_if_there_is_no_metrics_file(tmp_path, monkeypatch):
    tracking = pytest.importorskip("verl.utils.tracking")
    pytest.importorskip("tensorboard")
    monkeypatch.setenv("TENSORBOARD_DIR", str(tmp_path / "tensorboard"))
    logger = tracking._TensorboardAdapter("project", "experiment")
    logger.log({"rewards/format/mean": 0.5, "actor/entropy": float("nan")}, step=1)
    logger.finish()
    assert read_run(tmp_path).metrics == {1: {"rewards/format/mean": 0.5}}
    module = "tensorboard.backend.event_processing.event_accumulator"
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(RunError, match=re.escape("pip install tensorboard")):
        read_run(tmp_path)
    write_lines(tmp_path / "metrics.jsonl", [training(1, 0.1, 0.0)])
    assert read_run(tmp_path).series("rewards/format/mean") == [(1, 0.1)]


def test_files_with_verls_own_names_are_runs(tmp_path):
    # The files of two runs of verl's own command with the settings of docs/first_run.md.
    mine = tmp_path / "mine"
    files = ["gdpo.jsonl", "grpo.jsonl"]
    for name in ("gdpo", "grpo"):
        run = write_run(mine / name, name)
        (run / "metrics.jsonl").rename(run.with_suffix(".jsonl"))
    for given in (files, ["gdpo", "grpo"], ["gdpo", *files, "grpo"], [""]):
        found = find_runs([mine / name for name in given])
        assert found == [mine / name for name in files], given
        for run in map(read_run, found):
            assert (run.name, run.estimator) == (run.path.name, run.path.name)
            assert (list(run.rollouts), list(run.validation)) == ([2], [0, 3])
    # The tutorial uses these settings.
    page = Path(__file__).parents[2] / "docs/first_run.md"
    text = page.read_text(encoding="utf-8")
    for line in (
        "$ gdpo-verl report mine/gdpo.jsonl mine/grpo.jsonl\n",
        "trainer.test_freq=4",
        "trainer.logger=[console,file]",
        "trainer.project_name=mine",
        "trainer.experiment_name=$1",
        "trainer.rollout_data_dir=mine/$1/rollouts",
        "trainer.validation_data_dir=mine/$1/validation",
        "hydra.run.dir=mine/$1",
        "hydra.output_subdir=.",
    ):
        assert line in text


def test_runs_of_mixed_versions_are_named(tmp_path):
    gdpo = write_run(tmp_path / "gdpo")
    grpo = write_run(tmp_path / "grpo", "grpo")
    (gdpo / "launch.json").write_text('{"recipe": "a", "version": "0.1.0"}')
    (grpo / "launch.json").write_text('{"recipe": "a", "version": "0.2.0"}')
    text = page_of(tmp_path, gdpo, grpo).text
    assert "version of gdpo-verl 0.1.0 0.2.0" in text
    (gdpo / "launch.json").write_text("{")
    assert read_run(gdpo).launch == {}


def test_no_two_of_six_runs_share_a_colour(tmp_path):
    names = ["grpo", "gdpo", "gdpo", "other", "gdpo", "ppo"]
    recipes = []
    for place, name in enumerate(names):
        run = read_run(write_run(tmp_path / str(place), name))
        recipes.append(Recipe(run.name, (run,)))
    colors = recipe_colors(recipes)
    assert len(set(colors)) == 6
    assert colors[:2] == ["#d55e00", "#0072b2"]


def test_rewards_per_turn_by_criterion_and_derived_from_a_group_are_drawn(tmp_path):
    same = dict.fromkeys(
        [
            "rewards/call_ok/mean",
            "rewards/brevity/mean",
            "gdpo/call_ok/constant_groups",
            "gdpo/brevity/constant_groups",
            "gdpo/call_ok/criteria_varying",
            "gdpo/call_ok/all_criteria_met",
            "val-aux/x/call_ok/mean@1",
            "val-aux/x/reward/mean@1",
        ],
        0.5,
    )
    first = {"step": 1, "data": same | {"gdpo/call_ok/turn_spread": 0.25}}
    last = {"step": 2, "data": same | {"gdpo/call_ok/turn_spread": 0.5}}
    write_lines(tmp_path / "run/metrics.jsonl", [first, last])
    derived = "{brevity: {function: 'pkg://gdpo_verl.rewards.derived:relative_length'}}"
    (tmp_path / "run/config.yaml").write_text(f"algorithm: {{gdpo: {{derived: {derived}}}}}")
    page = page_of(tmp_path / "out", tmp_path / "run")
    assert "spread of call_ok over the turns, first → last step 0.250 → 0.500" in page.text
    for label in ("spread over turns", "criteria varying", "all criteria met"):
        assert page.text.count(label) == 1
    assert "brevity went from 0.5 to 0.5" in page.text
    # A validation computes no derived components.
    assert "No held-out" not in page.text
