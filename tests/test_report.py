"""Reports from runs that the tests write in verl's formats."""

from __future__ import annotations

import io
import json
import re
import threading
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from gdpo_verl.report import RunError, follow, progress, set_aside_metrics, write_report
from gdpo_verl.report.collapse import find_collapse
from gdpo_verl.report.figures import run_colors, smooth
from gdpo_verl.report.runs import read_run
from gdpo_verl.report.samples import choose_samples
from gdpo_verl.report.table import summary_table, to_markdown

SCRIPT = "<script>alert('model')</script>"
COMPONENTS = ["format", "correctness"]


def training(step: int, format_: float, correctness: float, **more: float) -> dict[str, Any]:
    """One line of the `file` tracker after a training step."""
    data = {
        "training/global_step": step,
        "gdpo/format/mean": format_,
        "gdpo/format/constant_groups": 0.25,
        "gdpo/format/max": 1.0,
        "gdpo/correctness/mean": correctness,
        "gdpo/correctness/constant_groups": 0.5,
        "gdpo/correctness/max": 3.0,
        "timing_s/step": 2.0,
        "actor/entropy": None,  # orjson writes NaN so
    }
    return {"step": step, "data": data | more}


def validation(format_: float, correctness: float) -> dict[str, float]:
    return {
        "val-aux/toolbox/format/mean@1": format_,
        "val-aux/toolbox/correctness/mean@1": correctness,
        "val-core/toolbox/reward/mean@1": format_ + correctness,
        "val-aux/num_turns/mean": 2.0,
    }


def answer(prompt: str, output: str, format_: float, correctness: float) -> dict[str, Any]:
    """One row of a validation dump."""
    score = format_ + correctness
    scores = {"score": score, "reward": score, "format": format_, "correctness": correctness}
    return {"input": prompt, "output": output, "gts": f"call for {prompt}", **scores}


def rollout(uid: str, format_: float, correctness: float, gdpo: Any, grpo: Any) -> dict[str, Any]:
    """One row of a rollout dump, with what the plug-in adds."""
    advantages = {"gdpo_advantage": gdpo, "grpo_advantage": grpo}
    return {"uid": uid, **answer("question", "…", format_, correctness), **advantages}


# Format and correctness add up to 2 in both of the first rows: GRPO sees one reward.
COLLAPSED = [
    rollout("a_0_0", 1.0, 1.0, 0.9, 0.5),
    rollout("a_1_0", 0.0, 2.0, -0.2, 0.5),
    rollout("a_2_0", 0.0, -3.0, -1.25, -1.5),
    rollout("b_0_0", 1.0, 1.0, 0.7, 0.7),
    rollout("b_1_0", 0.0, 1.0, -0.7, -0.7),
    rollout("padding_0_0", 0.0, 0.0, None, None),
]


def write_lines(path: Path, records: list[Any], end: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records) + end)


def write_run(path: Path, estimator: str = "gdpo", *, gain: float = 1.0) -> Path:
    """Three steps, validated before the first and after the last."""
    last = training(3, 0.8, 0.5 + gain, **validation(0.9, 1.5), **{"timing_s/testing": 4.0})
    lines = [
        {"step": 0, "data": validation(0.6, 0.25)},
        training(1, 0.6, 0.5),
        training(2, 0.7, 0.75),
        last,
    ]
    write_lines(path / "metrics.jsonl", lines)
    write_lines(path / "rollouts/2.jsonl", COLLAPSED)
    before = [answer("add 1", SCRIPT, 0.0, -3.0), answer("add 2", "same", 1.0, 3.0)]
    after = [answer("add 1", "now right", 1.0, 3.0), answer("add 2", "same", 1.0, 3.0)]
    write_lines(path / "validation/0.jsonl", before)
    write_lines(path / "validation/3.jsonl", after)
    (path / "config.yaml").write_text(
        f"algorithm: {{adv_estimator: {estimator}}}\n"
        f"trainer: {{total_training_steps: 3, default_local_dir: '{path}/saved'}}\n"
        "actor_rollout_ref: {model: {path: /somewhere/tiny}}\n"
    )
    (path / "saved").mkdir()
    (path / "train.log").write_text("log\n")
    return path


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    return [write_run(tmp_path / "gdpo"), write_run(tmp_path / "grpo", "grpo", gain=0.5)]


def table_of(*paths: Path) -> dict[str, tuple[str, ...]]:
    found = [read_run(path) for path in paths]
    return {row.quantity: row.cells for row in summary_table(found, found[0].components)}


def test_table_holds_the_numbers_of_the_runs(runs: list[Path]) -> None:
    table = table_of(*runs)
    assert table["advantage estimator"] == ("gdpo", "grpo")
    assert table["training steps"] == ("3 of 3", "3 of 3")
    # Three steps allow one at each end.
    assert table["training correctness, first → last step"] == ("0.500 → 1.500", "0.500 → 1.000")
    assert table["held-out format, before → after"] == ("0.600 → 0.900",) * 2
    # One of two prompts has correctness 3 before, both have it after.
    share = "held-out completions with correctness = 3, the highest seen, before → after"
    assert table[share] == ("50% → 100%",) * 2
    assert table["groups in which format does not vary, first → last step"] == ("25% → 25%",) * 2
    assert table["seconds a step (median)"] == ("2.0", "2.0")
    # 3 steps of 2 s and one validation of 4 s.
    assert table["time in steps and validation, without start-up"] == ("10 s", "10 s")
    assert not any("distinct advantages" in quantity for quantity in table)


def test_ten_steps_are_compared_by_fives(tmp_path: Path) -> None:
    write_lines(tmp_path / "metrics.jsonl", [training(i, i / 10, 0.0) for i in range(1, 11)])
    # (1+2+3+4+5)/50 and (6+7+8+9+10)/50
    assert table_of(tmp_path)["training format, first → last 5 steps"] == ("0.300 → 0.800",)


def test_markdown_has_a_column_for_each_run_and_escapes_bars(runs: list[Path]) -> None:
    runs[1] = runs[1].rename(runs[1].with_name("a|b"))
    found = [read_run(path) for path in runs]
    lines = to_markdown(found, summary_table(found, COMPONENTS)).splitlines()
    assert lines[0] == r"|  | gdpo | a\|b |"
    assert lines[1] == "|---|---|---|"
    assert "| held-out correctness, before → after | 0.250 → 1.500 | 0.250 → 1.500 |" in lines


class Page(HTMLParser):
    """What a browser would do with the page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.references: list[str] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(html)
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in {"meta", "br", "link", "img"}:
            self.open.append(tag)
        names = {"src", "href", "xlink:href", "action", "data", "srcset"}
        self.references += [value or "" for name, value in attrs if name in names]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


@pytest.fixture
def page(runs: list[Path], tmp_path: Path) -> Page:
    return Page(write_report(runs, tmp_path).read_text(encoding="utf-8"))


def test_report_writes_page_picture_and_table(runs: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "new" / "report"
    assert write_report(runs, out) == out / "index.html"
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert "0.500 → 1.000" in (out / "summary.md").read_text(encoding="utf-8")


def test_page_shows_curves_table_samples_and_collapse(page: Page) -> None:
    assert page.open == []
    assert page.tags.count("svg") == 2
    for text in (
        "gdpo and grpo",
        "policy tiny",
        "mean reward",
        "0.500 → 1.500",
        "Of 2 prompts, 1 changed a score",
        "gdpo , step 0: format 0, correctness -3",
        "gdpo , step 3: format 1, correctness 3 now right",
        "call for add 1",
        "In 2 of 4 dumped groups",
        "proves nothing",
    ):
        assert text in page.text


def test_text_from_the_model_is_shown_and_never_run(page: Page) -> None:
    assert "script" not in page.tags
    assert SCRIPT in page.text


def test_names_of_components_and_runs_are_escaped(tmp_path: Path) -> None:
    run = tmp_path / "<i>run $x$"
    write_lines(run / "metrics.jsonl", [{"step": 1, "data": {"gdpo/<u>$\\bad$/mean": 0.5}}])
    page = Page(write_report([run], tmp_path).read_text(encoding="utf-8"))
    assert not {"u", "i"} & set(page.tags)
    assert "<u>$\\bad$" in page.text


def test_page_asks_no_other_host_for_anything(runs: list[Path], tmp_path: Path) -> None:
    html = write_report(runs, tmp_path).read_text(encoding="utf-8")
    assert "http" not in html
    assert not re.search(r"url\((?!#)|@import|//\w", html)
    outside = [ref for ref in Page(html).references if not ref.startswith("#")]
    assert "gdpo/metrics.jsonl" in outside
    assert all((tmp_path / ref).exists() for ref in outside)


def test_page_links_what_lies_elsewhere_by_relative_paths(runs: list[Path], tmp_path: Path) -> None:
    html = write_report(runs, tmp_path / "report").read_text(encoding="utf-8")
    assert 'href="../gdpo/train.log"' in html
    assert 'href="../grpo/saved"' in html
    assert str(tmp_path) not in html


def test_same_runs_give_the_same_page(runs: list[Path], tmp_path: Path) -> None:
    first = write_report(runs, tmp_path).read_bytes()
    assert write_report(runs, tmp_path).read_bytes() == first


def test_cut_off_last_line_is_ignored_and_named(tmp_path: Path) -> None:
    cut = '{"step": 2, "data": {"gdpo/format/me'
    write_lines(tmp_path / "metrics.jsonl", [training(1, 0.5, 0.0)], end=cut)
    run = read_run(tmp_path)
    assert list(run.metrics) == [1]
    assert "The last line of metrics.jsonl is cut off and was ignored." in run.notes


def test_broken_line_in_the_middle_is_ignored_and_named(tmp_path: Path) -> None:
    write_lines(tmp_path / "metrics.jsonl", [training(1, 0.5, 0.0), [], training(2, 0.6, 0.0)])
    run = read_run(tmp_path)
    assert list(run.metrics) == [1, 2]
    assert "Line 2 of metrics.jsonl is not a metrics line; ignored." in run.notes


def test_missing_pieces_are_named_on_the_page(tmp_path: Path) -> None:
    write_lines(tmp_path / "run/metrics.jsonl", [training(2, 0.5, 0.0)])
    text = Page(write_report([tmp_path / "run"], tmp_path).read_text(encoding="utf-8")).text
    for missing in (
        "No rollouts/<step>.jsonl: set trainer.rollout_data_dir",
        "No validation/<step>.jsonl: set trainer.validation_data_dir",
        "No config.yaml",
        "The metrics begin at step 2",
        "No held-out correctness in the metrics: set trainer.test_freq.",
        "No prompt has completions from two validations",
        "no groups with components and both advantages",
    ):
        assert missing in text


def test_metrics_without_components_still_give_a_page(tmp_path: Path) -> None:
    line = {"step": 1, "data": {"critic/score/mean": 0.5, "timing_s/step": 2.0}}
    write_lines(tmp_path / "run/metrics.jsonl", [line])
    text = Page(write_report([tmp_path / "run"], tmp_path).read_text(encoding="utf-8")).text
    assert "No gdpo/<component>/mean in the metrics" in text
    assert "seconds a step (median) 2.0" in text


def test_resumed_run_replaces_the_steps_that_it_repeats(tmp_path: Path) -> None:
    first = [training(1, 0.1, 0.0), training(2, 0.2, 0.0), training(3, 0.3, 0.0)]
    # The second launch starts from the checkpoint of step 1, which it validates first.
    second = [{"step": 1, "data": validation(0.5, 0.0)}, training(2, 0.9, 0.0)]
    write_lines(tmp_path / "metrics.jsonl", first + second)
    run = read_run(tmp_path)
    assert run.series("gdpo/format/mean") == [(1, 0.1), (2, 0.9)]
    assert run.validation_series("format") == {"toolbox": [(1, 0.5)]}


def test_metrics_set_aside_before_a_resume_are_read_first(tmp_path: Path) -> None:
    assert set_aside_metrics(tmp_path) is None
    for number, steps in enumerate(([1, 2], [2, 3], [3, 4]), start=1):
        lines = [training(step, number / 10, 0.0) for step in steps]
        write_lines(tmp_path / "metrics.jsonl", lines)
        if number < 3:
            assert set_aside_metrics(tmp_path) == tmp_path / f"metrics.{number}.jsonl"
    series = read_run(tmp_path).series("gdpo/format/mean")
    assert series == [(1, 0.1), (2, 0.2), (3, 0.3), (4, 0.3)]


@pytest.mark.parametrize(
    ("make", "found"),
    [
        pytest.param(lambda path: None, "found nothing", id="no directory"),
        pytest.param(lambda path: path.write_text(""), "found a file", id="a file"),
        pytest.param(lambda path: path.mkdir(), "found it empty", id="empty"),
        pytest.param(
            lambda path: write_lines(path / "train.log", ["x"]), "found train.log", id="only a log"
        ),
        pytest.param(
            lambda path: write_lines(path / "metrics.jsonl", [], end='{"step"'),
            "no whole line in metrics.jsonl",
            id="no whole line",
        ),
    ],
)
def test_directory_without_a_run_is_refused(make: Any, found: str, tmp_path: Path) -> None:
    path = tmp_path / "run"
    make(path)
    with pytest.raises(RunError, match=found) as error:
        write_report([path], tmp_path / "out")
    assert str(path) in str(error.value)
    assert "metrics.jsonl" in str(error.value)
    assert not (tmp_path / "out").exists()


def test_report_of_no_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="at least one run directory"):
        write_report([], tmp_path)


@pytest.mark.parametrize("text", ["a: [", "- a list", "a: ${unknown:1}", ""])
def test_unusable_configuration_does_not_stop_the_report(text: str, tmp_path: Path) -> None:
    write_lines(tmp_path / "metrics.jsonl", [training(1, 0.5, 0.0)])
    (tmp_path / "config.yaml").write_text(text)
    run = read_run(tmp_path)
    assert run.setting("a.b") is None
    assert run.estimator == tmp_path.name


def test_runs_of_the_same_name_get_their_parents(tmp_path: Path) -> None:
    paths = [write_run(tmp_path / seed / "gdpo") for seed in ("seed1", "seed2")]
    text = Page(write_report(paths, tmp_path).read_text(encoding="utf-8")).text
    assert "seed1/gdpo and seed2/gdpo" in text


def test_validation_takes_the_mean_over_most_sessions_of_each_source(tmp_path: Path) -> None:
    data = {
        "gdpo/format/mean": 0.5,
        "val-aux/openai/gsm8k/format/mean@8": 0.4,
        "val-aux/openai/gsm8k/format/mean@16": 0.3,
        "val-aux/openai/gsm8k/format/best@16/mean": 1.0,
        "val-aux/other/format/mean@1": 0.2,
    }
    write_lines(tmp_path / "metrics.jsonl", [{"step": 4, "data": data}])
    found = read_run(tmp_path).validation_series("format")
    assert found == {"openai/gsm8k": [(4, 0.3)], "other": [(4, 0.2)]}


@pytest.mark.real  # verl's trainer takes long to import
def test_validation_metrics_as_verl_names_them_are_found(tmp_path: Path) -> None:
    metric_utils = pytest.importorskip("verl.trainer.ppo.metric_utils")
    values = {"format": [1.0, 0.0], "correctness": [3.0, -3.0], "reward": [4.0, -3.0]}
    named = metric_utils.process_validation_metrics(["toolbox"] * 2, ["u", "v"], values)
    data = {
        f"val-aux/{source}/{name}/{statistic}": value
        for source, of_source in named.items()
        for name, statistics in of_source.items()
        for statistic, value in statistics.items()
    }
    write_lines(tmp_path / "metrics.jsonl", [{"step": 0, "data": data}])
    run = read_run(tmp_path)
    assert run.validation_series("format") == {"toolbox": [(0, 0.5)]}
    assert run.validation_series("correctness") == {"toolbox": [(0, 0.0)]}


def test_file_that_verls_tracker_writes_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracking = pytest.importorskip("verl.utils.tracking")
    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", str(tmp_path / "metrics.jsonl"))
    logger = tracking.FileLogger("project", "experiment")
    logger.log({"gdpo/format/mean": 0.5, "actor/entropy": float("nan")}, step=1)
    logger.finish()
    assert read_run(tmp_path).metrics == {1: {"gdpo/format/mean": 0.5}}
    # Why set_aside_metrics exists; when this fails, verl appends and it can go.
    tracking.FileLogger("project", "experiment").finish()
    assert (tmp_path / "metrics.jsonl").read_bytes() == b""


def test_samples_are_chosen_by_hash_and_not_by_score(tmp_path: Path) -> None:
    run = write_run(tmp_path / "gdpo")
    prompts = [f"prompt {i}" for i in range(20)]
    before = [answer(prompt, "x", 1.0, 0.0) for prompt in prompts]
    # Half get better, a quarter worse, a quarter stay.
    after = [answer(p, "y", float(i % 4 != 0), float(i % 2)) for i, p in enumerate(prompts)]
    write_lines(run / "validation/0.jsonl", before)
    write_lines(run / "validation/3.jsonl", after)
    samples = choose_samples([read_run(run)], COMPONENTS)
    assert (samples.prompts, samples.changed) == (20, 15)
    assert [sample.changed for sample in samples.chosen] == [True] * 4 + [False] * 2
    # verl orders a dump by random ids: the choice does not depend on the order.
    write_lines(run / "validation/0.jsonl", before[::-1])
    write_lines(run / "validation/3.jsonl", after[::-1])
    assert choose_samples([read_run(run)], COMPONENTS) == samples


def test_collapse_counts_groups_that_only_grpo_takes_for_equal(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "gdpo"))
    collapse = find_collapse([run])
    assert (collapse.groups, collapse.collapsed, collapse.reverse) == (2, 1, 0)
    assert collapse.example is not None
    shown = [(c.rewards, c.grpo, c.gdpo, c.collapsed) for c in collapse.example.combinations]
    assert shown == [
        ((1.0, 1.0), 0.5, 0.9, True),
        ((0.0, 2.0), 0.5, -0.2, True),
        ((0.0, -3.0), -1.5, -1.25, False),
    ]


def test_collapse_the_other_way_round_is_counted_too(tmp_path: Path) -> None:
    run = write_run(tmp_path / "gdpo")
    # Half the group is right in one reward, the other half in the other: GDPO's terms cancel.
    rows = [rollout("a_0_0", 1.0, 0.0, 0.0, -1.0), rollout("a_1_0", 0.0, 3.0, 0.0, 1.0)]
    write_lines(run / "rollouts/2.jsonl", rows)
    collapse = find_collapse([read_run(run)])
    assert (collapse.groups, collapse.collapsed, collapse.reverse) == (1, 0, 1)
    text = Page(write_report([run], tmp_path).read_text(encoding="utf-8")).text
    assert "cancel once each is normalised: in 1 of 1 groups" in text


def test_no_collapse_is_said(tmp_path: Path) -> None:
    run = write_run(tmp_path / "gdpo")
    write_lines(run / "rollouts/2.jsonl", COLLAPSED[3:])
    text = Page(write_report([run], tmp_path).read_text(encoding="utf-8")).text
    assert "None of the 1 dumped groups" in text


def test_smoothing_is_the_mean_of_the_neighbours() -> None:
    series = list(enumerate([0.0, 3.0, 6.0, 0.0]))
    assert smooth(series, 3) == [(0, 1.5), (1, 3.0), (2, 3.0), (3, 3.0)]


def test_no_two_of_six_runs_share_a_colour(tmp_path: Path) -> None:
    names = ["grpo", "gdpo", "gdpo", "other", "gdpo", "ppo"]
    found = [read_run(write_run(tmp_path / str(i), name)) for i, name in enumerate(names)]
    assert len(set(run_colors(found))) == 6
    assert run_colors(found)[:2] == ["#D55E00", "#0072B2"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "POLL_SECONDS", 0.0)


def launch(run: Path, records: list[dict[str, Any]]) -> Iterator[None]:
    """A training as `follow` meets it, one thing between two looks; verl's tracker
    empties its file."""
    run.mkdir(exist_ok=True)
    yield
    with (run / "train.log").open("a") as log:
        log.write("(TaskRunner pid=7) Creating file logger at metrics.jsonl\n")
    yield
    with (run / "metrics.jsonl").open("wb", buffering=0) as file:
        for record in records:
            line = json.dumps(record).encode() + b"\n"
            file.write(line[:20])
            yield
            file.write(line[20:])
            yield


def follow_launch(run: Path, records: list[dict[str, Any]]) -> str:
    process, stream = launch(run, records), io.StringIO()

    def is_alive() -> bool:
        return next(process, "ended") != "ended"

    follow(run, total_steps=12, is_alive=is_alive, label="gdpo", stream=stream)
    return stream.getvalue()


@pytest.mark.usefixtures("_quick")
def test_without_a_terminal_progress_is_a_line_every_ten_steps(tmp_path: Path) -> None:
    records = [training(step, step / 20, 1.0) for step in range(1, 13)]
    first = {"step": 0, "data": validation(0.5, 0.0)}
    lines = follow_launch(tmp_path / "run", [first, *records]).splitlines()
    assert lines == [
        "gdpo: starting Ray, vLLM and FSDP… 0 s",
        "gdpo: validating before training… 0 s",
        "gdpo: step 1/12: format 0.050, correctness 1.000, 2.0 s a step, about 22 s left",
        "gdpo: step 10/12: format 0.500, correctness 1.000, 2.0 s a step, about 4 s left",
        "gdpo: step 12/12: format 0.600, correctness 1.000, 2.0 s a step, finishing",
        "gdpo: step 12/12: done in 0 s: format 0.600, correctness 1.000",
    ]


@pytest.mark.usefixtures("_quick")
def test_progress_of_a_resumed_run_begins_where_it_goes_on(tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_lines(run / "metrics.jsonl", [training(step, 0.9, 0.0) for step in range(1, 10)])
    write_lines(run / "train.log", ["Initial validation metrics"])
    lines = follow_launch(run, [training(step, 0.1, 0.0) for step in range(7, 13)]).splitlines()
    assert lines[2:] == [
        "gdpo: step 7/12: format 0.100, correctness 0.000, 2.0 s a step, about 10 s left",
        "gdpo: step 10/12: format 0.100, correctness 0.000, 2.0 s a step, about 4 s left",
        "gdpo: step 12/12: format 0.100, correctness 0.000, 2.0 s a step, finishing",
        "gdpo: step 12/12: done in 0 s: format 0.100, correctness 0.000",
    ]
    assert "first training step" not in lines[0]


@pytest.mark.usefixtures("_quick")
def test_progress_reads_on_where_metrics_are_appended(tmp_path: Path) -> None:
    write_lines(tmp_path / "metrics.jsonl", [training(5, 0.9, 0.0)])
    steps = iter([training(6, 0.1, 0.0), training(7, 0.2, 0.0)])

    def is_alive() -> bool:
        record = next(steps, None)
        with (tmp_path / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(record) + "\n" if record else "")
        return record is not None

    stream = io.StringIO()
    follow(tmp_path, total_steps=7, is_alive=is_alive, label="gdpo", stream=stream)
    assert [line.split(",")[0] for line in stream.getvalue().splitlines()] == [
        "gdpo: step 6/7: format 0.100",
        "gdpo: step 7/7: format 0.200",
        "gdpo: step 7/7: done in 0 s: format 0.200",
    ]


def test_progress_on_a_terminal_rewrites_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "POLL_SECONDS", 0.01)
    stream = Terminal()

    def train() -> None:
        while not stream.getvalue():
            time.sleep(0.01)
        for _ in launch(tmp_path, [training(step, 0.5, 1.0) for step in range(1, 13)]):
            time.sleep(0.02)

    thread = threading.Thread(target=train)
    thread.start()
    follow(tmp_path, total_steps=12, is_alive=thread.is_alive, label="gdpo", stream=stream)
    assert stream.getvalue().count("\n") == 1
    assert "starting Ray, vLLM and FSDP… 0 s" in stream.getvalue()
    assert "| 12/12, done in" in stream.getvalue().split("\r")[-1]


@pytest.mark.usefixtures("_quick")
def test_training_that_ends_early_is_not_called_done(tmp_path: Path) -> None:
    lines = follow_launch(tmp_path / "run", [training(1, 0.5, 1.0)]).splitlines()
    assert lines[-1].startswith("gdpo: step 1/12: ended early after 0 s: format 0.500")


@pytest.mark.usefixtures("_quick")
def test_training_that_never_steps_ends_with_its_phase(tmp_path: Path) -> None:
    text = follow_launch(tmp_path / "run", [])
    assert text.endswith("gdpo: ended after 0 s while validating before training\n")
