"""Alerts, trends, and runs that belong together, on series written by hand."""

import json
import re

import pytest
from fake_runs import (
    page_of,
    rollout,
    summary_of,
    training,
    validation,
    write_lines,
    write_run,
)

from gdpo_verl.lab.report.summary import summarise_run
from gdpo_verl.lab.report.survey import read_dumps
from gdpo_verl.lab.rundir.alerts import find_alerts
from gdpo_verl.lab.rundir.run import read_run


@pytest.mark.parametrize(
    ("key", "values", "said"),
    [
        # A value at exactly the threshold, and too few steps.
        ("style/constant_groups", [0.8] * 20, "style is constant"),
        ("style/constant_groups", [1.0] * 19, None),
        # A component at the top of its range, at the bottom, and in between.
        ("style/saturation", [0.95] * 20, "style is saturated"),
        ("style/saturation", [0.05] * 20, "style is stuck"),
        ("style/saturation", [0.06] * 10 + [0.94] * 10, None),
        ("phantom_groups", [0.3] * 20, "the outcome is"),
        ("phantom_groups", [0.2] * 20, None),
    ],
)
def test_an_alert_needs_twenty_steps_beyond_its_threshold(key, values, said):
    metrics = {step: {f"gdpo/{key}": value} for step, value in enumerate(values, start=1)}
    found = find_alerts(metrics, ["style"])
    if said is None:
        assert found == []
    else:
        (alert,) = found
        assert (alert.first, alert.last) == (1, 20)
        assert str(alert).startswith(said)


def test_the_alert_of_a_component_that_varies_again_has_ended():
    metrics = {}
    for step in range(1, 61):
        share = 0.0 if 20 < step <= 40 else 1.0
        metrics[step] = {"rewards/style/mean": 0.5, "gdpo/style/constant_groups": share}
    first, second = find_alerts(metrics, ["style"])
    # The first window with a mean below 0.8 has five zeros, and the last one above it has four.
    assert (first.first, first.last, first.ongoing) == (1, 24, False)
    assert str(first) == ("style is constant in 83% of the groups (mean 0.5), steps 1 to 24")
    assert (second.first, second.last, second.ongoing) == (37, 60, True)


STEADY = [training(i, 0.49 + 0.02 * (i % 2), float(i)) for i in range(1, 9)]
# 20 steps rise by 0.85, with a noise of 0.4 and -0.4.
LEARNS = [training(i, 0.0, 0.77 + 0.85 * (i - 1) / 19 + 0.4 * (-1) ** i) for i in range(1, 21)]


@pytest.mark.parametrize(
    ("steps", "sentence"),
    [
        # With eight steps the ends have 4 steps each, and the last two steps are compared with the
        # two before. Format alternates around 0.5: its change is 0 with an error of sqrt((0.0002 +
        # 0.0002) / 2).
        (STEADY, "format went from 0.5 to 0.5: +0 ± 0.014 over the last 4 steps. It "
         "is constant in 25% of the groups of the last 4 steps."),
        # Correctness rises by 1 per step: its change is 2 with an error of sqrt(0.5).
        (STEADY, "correctness went from 2.5 to 6.5 and still rises: +2 ± 0.71 over "
         "the last 4 steps. It is constant in 50% of the groups of the last 4 steps."),
        ([training(i, 8.0 - i, 0.0) for i in range(1, 9)], "format went from 5.5 to "
         "1.5 and falls: -2 ± 0.71 over the last 4 steps. It is constant in 25% of the groups "
         "of the last 4 steps."),
        # A quarter rises by 5 * 0.85 / 19. Its length is odd, so that the noise adds 2 * 0.4 / 5.
        (LEARNS, "correctness went from 0.779 to 1.61: +0.384 ± 0.28 over the last "
         "10 steps. It is constant in 50% of the groups of the last 5 steps."),
        (STEADY[:7], "correctness went from 2 to 6; 7 steps are too few to distinguish "
         "a trend from noise. It is constant in 50% of the groups of the last 3 steps."),
    ],
)  # fmt: skip
def test_the_trend_claims_no_more_than_the_numbers_show(steps, sentence, tmp_path):
    write_lines(tmp_path / "metrics.jsonl", steps)
    (dumps,) = read_dumps([read_run(tmp_path)])
    assert sentence in summarise_run(dumps).sentences


def test_the_summary_names_dead_groups_and_their_rewards(tmp_path):
    run = write_run(tmp_path / "gdpo")
    rows = [rollout(f"{uid}_{i}_0", 1.0, 3.0, 0.0, 0.0) for uid in "ab" for i in range(2)]
    rows += [rollout("c_0_0", 1.0, 0.0, 0.0, 0.0)]  # a group of one response is not dead
    rows += [rollout("d_0_0", 1.0, 0.0, -1.0, -1.0), rollout("d_1_0", 1.0, 3.0, 1.0, 1.0)]
    write_lines(run / "rollouts/2.jsonl", rows)
    assert (
        "2 of 4 groups of the dumped step (50%) are dead: no reward varies in them (2 with format "
        "1, correctness 3). For example: “question”"
    ) in summary_of(tmp_path / "out", run)


def test_alerts_are_on_the_page(tmp_path):
    dead = {"gdpo/correctness/constant_groups": 0.9}
    steps = [training(step, 0.5, 1.0, **dead) for step in range(1, 21)]
    write_lines(tmp_path / "run/metrics.jsonl", steps)
    page = page_of(tmp_path, tmp_path / "run")
    assert "Alert: correctness is constant in 90% of the groups" in page.text
    assert "- run: Alert: correctness is constant" in (tmp_path / "summary.md").read_text()


def seeds(place, *runs, files="/data/train.parquet"):
    """Write runs of several seeds with an estimator and a gain; a seed may have its own files."""
    paths = []
    for seed, estimator, gain in runs:
        path = write_run(place / f"seed{seed}" / estimator, estimator, gain=gain)
        with (path / "config.yaml").open("a") as config:
            config.write(f"data: {{seed: {seed}, files: {files.format(seed)}}}\n")
        launch = {"recipe": f"toolbox/{estimator}", "version": "0.1.0"}
        (path / "launch.json").write_text(json.dumps(launch))
        paths.append(path)
    return paths


def test_runs_that_differ_only_in_seeds_and_paths_belong_together(tmp_path):
    runs = (1, "gdpo", 1.0), (2, "gdpo", 2.0), (1, "grpo", 0.5)
    without = [tmp_path / "a", tmp_path / "b"]  # runs without a configuration
    for path in without:
        write_lines(path / "metrics.jsonl", [training(1, 0.5, 0.0)])
    summary = summary_of(tmp_path / "out", *seeds(tmp_path, *runs), *without)
    assert (
        "|  | toolbox/gdpo | grpo | a | b |\n|---|---|---|---|---|\n| runs | 2 | 1 | 1 | 1 |\n"
        in (summary)
    )
    others = seeds(tmp_path / "others", *runs, files="/data/{}/train.parquet")
    summary = summary_of(tmp_path / "out", *others)
    assert "\n| runs |" not in summary
    # Only settings that differ are shown, and no paths of this machine.
    differences = summary.partition("| algorithm.adv_estimator | gdpo | gdpo | grpo |\n")[2]
    assert differences.startswith(
        "| data.files | …/train.parquet | …/train.parquet | …/train.parquet |\n"
        "| data.seed | 1 | 2 | 1 |\n\n"
    )


def test_seeds_are_summarised_and_recipes_with_the_same_seeds_are_compared_in_pairs(tmp_path):
    paths = seeds(tmp_path, (1, "gdpo", 1.0), (2, "gdpo", 2.0), (1, "grpo", 0.5), (2, "grpo", 1.0))
    summary = summary_of(tmp_path / "out", *paths)
    for line in (
        "| runs | 2 | 2 | 2 pairs |",
        "| training steps | 3 of 3 | 3 of 3 | – |",
        # The values are 0.5 plus gains of 1 and 2: mean 2, unbiased deviation sqrt(0.5). The
        # differences 0.5 and 1 have the mean 0.75 ± 12.706 * sqrt(0.125) / sqrt(2).
        "| training correctness, first → last step | 0.500 ± 0.000 → 2.000 ± 0.707 | "
        "0.500 ± 0.000 → 1.250 ± 0.354 | +0.750 ± 3.176 |",
        "| groups in which correctness is constant, first → last step | 50.0% ± 0.0% → 50.0% ± "
        "0.0% | 50.0% ± 0.0% → 50.0% ± 0.0% | +0.0 ± 0.0 points |",
    ):
        assert f"\n{line}\n" in summary
    columns = "|  | toolbox/gdpo | toolbox/grpo | toolbox/gdpo − toolbox/grpo |\n"
    assert summary.startswith(columns)
    page = page_of(tmp_path / "three", *paths[:3])
    assert "toolbox/gdpo (2 runs: seed1/gdpo, seed2/gdpo)" in page.text
    assert "2.000 ± 0.707" in page.text
    assert "One seed" in page.text
    assert "One seed" not in page_of(tmp_path / "two", *paths[:2]).text
    # With one run each there is no spread.
    assert "±" not in summary_of(tmp_path / "one", *paths[1:3])


def test_time_is_split_by_phase(tmp_path):
    times = {"timing_s/gen": 1.0, "timing_s/adv": 0.25, "timing_s/gen/mean": 9.0}
    steps = [training(step, 0.5, 0.0, **times) for step in (1, 2)]
    steps[1]["data"] |= validation(0.5, 0.5) | {"timing_s/testing": 4.0}
    write_lines(tmp_path / "metrics.jsonl", steps)
    summary = summary_of(tmp_path / "out", tmp_path)
    phases = re.findall(r"seconds in (\w+) \(mean\) \| (\S+)", summary)
    assert phases == [("gen", "1.00"), ("adv", "0.25"), ("testing", "4.00")]
