"""Reports from runs that the tests write in verl's formats."""

from __future__ import annotations

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
from gdpo_verl.lab.report.figures import recipe_colors
from gdpo_verl.lab.report.groups import read_step
from gdpo_verl.lab.report.recipes import Recipe
from gdpo_verl.lab.rundir.metrics import RunError, set_aside_metrics
from gdpo_verl.lab.rundir.run import find_runs, read_run


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs, for the tests that only read them."""
    place = tmp_path_factory.mktemp("runs")
    runs = [write_run(place / "gdpo"), write_run(place / "grpo", "grpo", gain=0.5)]
    for run in runs:
        with (run / "config.yaml").open("a") as config:
            config.write(f'hostile: {{"{HOSTILE}": "{HOSTILE} {run.name}"}}\n')
        (run / "launch.json").write_text(json.dumps({"version": HOSTILE}))
    return runs


@pytest.fixture(scope="module")
def written(runs):
    """The page of the two runs."""
    return write_report(runs, runs[0].parent / "new" / "report")


@pytest.fixture
def page(written):
    return Page(written.read_text(encoding="utf-8"))


def test_report_writes_a_page_a_picture_and_tables_of_the_runs_numbers(written, page):
    out = written.parent
    assert {path.name for path in out.iterdir()} == {"index.html", "summary.md"}
    summary = (out / "summary.md").read_text(encoding="utf-8")
    assert summary.startswith("|  | gdpo | grpo |\n|---|---|---|\n")
    for text in (
        "| advantage estimator | gdpo | grpo |",
        "| training steps | 3 of 3 | 3 of 3 |",
        # Three steps allow one at each end.
        "| training correctness, first → last step | 0.500 → 1.500 | 0.500 → 1.000 |",
        "| held-out correctness, before → after | 0.250 → 1.500 | 0.250 → 1.500 |",
        "| groups in which format is constant, first → last step | 25.0% → 25.0% | 25.0% → ",
        "| seconds a step (median) | 2.0 | 2.0 |",
        "| algorithm.adv_estimator | gdpo | grpo |",
        "- gdpo: In 1 of 2 groups (50.0%) GRPO gives one advantage to",
    ):
        assert text in summary
    assert page.open == []
    # Two components, and two panels of what is logged of groups.
    assert page.tags.count("svg") == 4
    for text in (
        "gdpo and grpo",
        "policy tiny",
        "0.500 → 1.500",
        "In 1 of 2 groups (50.0%) GRPO gives one advantage",
    ):
        assert text in page.text


def test_a_reward_that_was_never_scored_has_a_row_and_no_curves(tmp_path):
    run, count = tmp_path / "run", []
    write_lines(run / "rollouts/2.jsonl", [row | {"length": None} for row in COLLAPSED])
    for more in ({}, {"gdpo/length/unscored": 1.0}):
        write_lines(run / "metrics.jsonl", [training(step, 0.5, 0.5, **more) for step in (1, 2)])
        page = page_of(tmp_path / "report", run)
        count.append(page.tags.count("svg"))
    assert count[0] == count[1]
    assert "Never scored: length." in page.text
    group = read_step(run / "rollouts/2.jsonl", [*COMPONENTS, "length"]).shown[0]
    assert (group["keys"], group["unscored"]) == (COMPONENTS, ["length"])
    assert {len(row["scores"]) for row in group["rows"]} == {2}


def test_text_from_the_model_is_shown_and_never_run(written, page):
    digest = base64.b64encode(hashlib.sha256(page.scripts[""].encode()).digest()).decode()
    allowed = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    assert allowed in written.read_text(encoding="utf-8")
    assert HOSTILE in page.text
    assert "img" not in page.tags
    # The page's own script, and data that no browser runs.
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


def test_page_asks_no_other_host_for_anything(written, runs, page):
    html = written.read_text(encoding="utf-8")
    assert "://" not in html
    assert not re.search(r"url\((?!#)|@import|//\w", html)
    assert [ref for ref in page.references if not ref.startswith("#")] == []
    assert str(runs[0].parent) not in html
    # Nor is there a date or a random id in it.
    assert write_report(runs, written.parent).read_text(encoding="utf-8") == html


def test_a_broken_line_is_ignored_and_named(tmp_path):
    lines = [training(1, 0.5, 0.0), [], training(1, 0.6, 0.0)]
    write_lines(tmp_path / "metrics.jsonl", lines, end='{"step": 2, "data": {"gdpo/format/me')
    run = read_run(tmp_path)
    assert list(run.metrics) == [1]
    said = [f"Line {n} of metrics.jsonl is not a complete metrics line; ignored." for n in (2, 4)]
    assert set(said) <= set(run.notes)


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


def test_a_resumed_run_goes_on_in_the_metrics_that_were_set_aside(tmp_path):
    assert set_aside_metrics(tmp_path) is None
    launches = [
        [training(step, step / 10, 0.0) for step in (1, 2, 3)],
        # From the checkpoint of step 1, which it validates first.
        [{"step": 1, "data": validation(0.5, 0.0)}, training(2, 0.9, 0.0)],
    ]
    for number, lines in enumerate(launches, start=1):
        write_lines(tmp_path / "metrics.jsonl", lines)
        assert set_aside_metrics(tmp_path) == tmp_path / f"metrics.{number}.jsonl"
    assert read_run(tmp_path).series("rewards/format/mean") == [(1, 0.1), (2, 0.9)]
    write_lines(tmp_path / "metrics.jsonl", [training(2, 0.8, 0.0), training(3, 0.7, 0.0)])
    run = read_run(tmp_path)
    assert run.series("rewards/format/mean") == [(1, 0.1), (2, 0.8), (3, 0.7)]
    assert run.validation_series("format") == {"toolbox": [(1, 0.5)]}


def test_what_holds_no_run_is_refused(tmp_path):
    path, out = tmp_path / "run", tmp_path / "out"

    def refusal():
        with pytest.raises(RunError) as error:
            write_report([path], out)
        assert not out.exists()
        return str(error.value)

    assert f"{path}: expected a run directory that holds metrics.jsonl" in refusal()
    assert "found nothing" in refusal()
    path.touch()
    assert "found another file" in refusal()
    path.unlink()
    path.mkdir()
    assert "found the files []" in refusal()
    (path / "metrics.jsonl").write_text('{"step"')
    assert "found the files ['metrics.jsonl']" in refusal()


def test_a_directory_without_a_run_among_others_is_named(runs, tmp_path, caplog):
    page = page_of(tmp_path, *runs, tmp_path / "typo")
    assert "Left out: " in page.text
    assert "typo: expected a run directory" in page.text
    assert "typo: expected a run directory" in caplog.text


@pytest.mark.parametrize("text", ["a: [", "- a list", "a: ${unknown:1}"])
def test_unusable_configuration_does_not_stop_the_report(text, tmp_path):
    write_lines(tmp_path / "metrics.jsonl", [training(1, 0.5, 0.0)])
    (tmp_path / "config.yaml").write_text(text)
    run = read_run(tmp_path)
    assert run.setting("a.b") is None
    assert run.estimator == tmp_path.name


def test_validation_takes_the_mean_over_most_sessions_of_each_source(tmp_path):
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


def test_strange_names_of_components_are_read_like_any_other(tmp_path):
    numbers = dict(zip(STRANGE, range(1, 7), strict=True))
    metrics = {f"rewards/{name}/mean": float(i) for name, i in numbers.items()}
    metrics |= {f"val-aux/a/b/{name}/mean@4": i / 10 for name, i in numbers.items()}
    metrics["val-core/a/b/reward/mean@4"] = 1.0
    write_lines(tmp_path / "metrics.jsonl", [{"step": 1, "data": metrics}])
    rows = [answer("q", "a", 0.0, 0.0) | numbers | {"gdpo_advantage": 0.5, "grpo_advantage": 0.5}]
    write_lines(tmp_path / "rollouts/1.jsonl", rows)
    run = read_run(tmp_path)
    assert run.components == STRANGE
    for name, i in numbers.items():
        assert run.series(f"rewards/{name}/mean") == [(1, i)]
        # "tone" is none of the source a/b/style.
        assert run.validation_series(name) == {"a/b": [(1, i / 10)]}
    (group,) = read_step(run.rollouts[1], run.components).shown
    assert (group["keys"], group["variant"]) == (STRANGE, "")
    assert group["rows"][0]["scores"] == tuple(numbers.values())


def test_file_that_verls_tracker_writes_is_read(tmp_path, monkeypatch):
    tracking = pytest.importorskip("verl.utils.tracking")
    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", str(tmp_path / "metrics.jsonl"))
    logger = tracking.FileLogger("project", "experiment")
    logger.log({"rewards/format/mean": 0.5, "actor/entropy": float("nan")}, step=1)
    logger.finish()
    assert read_run(tmp_path).metrics == {1: {"rewards/format/mean": 0.5}}
    # Why set_aside_metrics exists; when this fails, verl appends and it can go.
    tracking.FileLogger("project", "experiment").finish()
    assert (tmp_path / "metrics.jsonl").read_bytes() == b""


def test_event_files_of_tensorboard_are_read_where_there_are_no_lines(tmp_path, monkeypatch):
    tracking = pytest.importorskip("verl.utils.tracking")
    pytest.importorskip("tensorboard")
    monkeypatch.setenv("TENSORBOARD_DIR", str(tmp_path / "tensorboard"))
    logger = tracking._TensorboardAdapter("project", "experiment")
    logger.log({"rewards/format/mean": 0.5, "actor/entropy": float("nan")}, step=1)
    logger.log({"rewards/format/mean": 0.75, "rewards/format/std": 0.5}, step=2)
    logger.finish()
    assert read_run(tmp_path).metrics == {
        1: {"rewards/format/mean": 0.5},
        2: {"rewards/format/mean": 0.75, "rewards/format/std": 0.5},
    }
    module = "tensorboard.backend.event_processing.event_accumulator"
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(RunError, match=re.escape("pip install tensorboard")):
        read_run(tmp_path)
    write_lines(tmp_path / "metrics.jsonl", [training(1, 0.1, 0.0)])
    assert read_run(tmp_path).series("rewards/format/mean") == [(1, 0.1)]


def test_tracker_file_under_verls_own_name_is_read(tmp_path):
    write_lines(tmp_path / "notes.jsonl", [{"no": "metrics"}])
    write_lines(tmp_path / "experiment.jsonl", [training(1, 0.5, 0.0)])
    (file,) = find_runs([tmp_path])
    assert list(read_run(file).metrics) == [1]


def test_files_under_verls_own_names_are_runs(tmp_path):
    # Two trainings as verl's own command and the settings of docs/first_run.md leave them.
    mine, files = tmp_path / "mine", ["gdpo.jsonl", "grpo.jsonl"]
    for name in ("gdpo", "grpo"):
        run = write_run(mine / name, name)
        (run / "metrics.jsonl").rename(run.with_suffix(".jsonl"))
    for given in (files, ["gdpo", "grpo"], ["gdpo", *files, "grpo"], [""]):
        found = find_runs([mine / name for name in given])
        assert found == [mine / name for name in files], given
        for each in map(read_run, found):
            assert each.name == each.estimator == each.path.name
            assert (list(each.rollouts), list(each.validation)) == ([2], [0, 3])
    text = page_of(tmp_path, mine).text
    assert "What each reward did: gdpo and grpo" in text
    assert text.count("In 1 of 2 groups (50.0%) GRPO gives one advantage") == 2


def test_the_tutorial_prints_what_the_report_reads(tmp_path, monkeypatch):
    tracking = pytest.importorskip("verl.utils.tracking")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("VERL_FILE_LOGGER_PATH", raising=False)
    page = (
        (Path(__file__).parents[2] / "docs/first_run.md")
        .read_text(encoding="utf-8")
        .replace("$1", "gdpo")
    )
    command = page[page.index("python -m verl.trainer.main_ppo") :].partition("```")[0]
    setting = dict(re.findall(r"^  ([\w.]+)=(\S+)", command, flags=re.MULTILINE))
    assert "file" in setting["trainer.logger"]
    assert int(setting["trainer.test_freq"]) > 0
    # What verl, its tracker and Hydra write where the settings say.
    logger = tracking.FileLogger(
        setting["trainer.project_name"], setting["trainer.experiment_name"]
    )
    logger.log(training(1, 0.5, 0.0, **validation(0.5, 0.0))["data"], step=1)
    for key in ("trainer.rollout_data_dir", "trainer.validation_data_dir"):
        write_lines(Path(setting[key]) / "1.jsonl", COLLAPSED)
    kept = Path(setting["hydra.run.dir"], setting["hydra.output_subdir"], "config.yaml")
    kept.write_text("algorithm: {adv_estimator: gdpo}\n")
    (reported,) = re.findall(r"^\$ gdpo-verl report (mine/.+)", page, flags=re.MULTILINE)
    run = read_run(Path(reported.split()[0]))
    assert (list(run.rollouts), list(run.validation), run.estimator) == ([1], [1], "gdpo")
    assert run.notes == ()


def test_runs_of_mixed_versions_are_named(tmp_path):
    runs = [write_run(tmp_path / "gdpo"), write_run(tmp_path / "grpo", "grpo")]
    for run, version in zip(runs, ("0.1.0", "0.2.0"), strict=True):
        (run / "launch.json").write_text(json.dumps({"recipe": "a", "version": version}))
    write_lines(runs[1] / "metrics.jsonl", [{"step": 1, "data": {"rewards/style/mean": 1.0}}])
    text = page_of(tmp_path, *runs).text
    assert "version of gdpo-verl 0.1.0 0.2.0" in text
    (runs[0] / "launch.json").write_text("{")
    assert read_run(runs[0]).launch == {}


def test_no_two_of_six_runs_share_a_colour(tmp_path):
    names = ["grpo", "gdpo", "gdpo", "other", "gdpo", "ppo"]
    found = [read_run(write_run(tmp_path / str(i), name)) for i, name in enumerate(names)]
    colors = recipe_colors([Recipe(run.name, (run,)) for run in found])
    assert len(set(colors)) == 6
    assert colors[:2] == ["#d55e00", "#0072b2"]


def test_rewards_by_turn_and_of_a_group_are_drawn(tmp_path):
    names = ["call_ok", "brevity"]
    more = {f"rewards/{name}/mean": 0.5 for name in names}
    more |= {f"gdpo/{name}/constant_groups": 0.5 for name in names}
    more |= {"val-aux/x/call_ok/mean@1": 0.5, "val-aux/x/reward/mean@1": 0.5}
    spread = "gdpo/call_ok/turn_spread"
    steps = [{"step": n, "data": more | {spread: 0.25 * n}} for n in (1, 2)]
    write_lines(tmp_path / "run/metrics.jsonl", steps)
    derived = "{brevity: {function: 'pkg://gdpo_verl.rewards.derived:relative_length'}}"
    (tmp_path / "run/config.yaml").write_text(f"algorithm: {{gdpo: {{derived: {derived}}}}}")
    page = page_of(tmp_path / "out", tmp_path / "run")
    assert "spread of call_ok over the turns, first → last step 0.250 → 0.500" in page.text
    assert page.text.count("spread over turns") == 1
    assert "brevity went from 0.5 to 0.5" in page.text
    # No validation computes what is derived from a group.
    assert "No held-out" not in page.text
