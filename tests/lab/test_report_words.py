"""Alerts, verdicts, and runs that belong together, on series written by hand."""

from __future__ import annotations

import json

import pytest
from fake_runs import page_of, training, validation, write_lines, write_run

from gdpo_verl.lab.report.recipes import config_differences, group_by_recipe
from gdpo_verl.lab.report.summary import summarise_run
from gdpo_verl.lab.report.survey import read_dumps
from gdpo_verl.lab.report.tables import quantities, recipe_table, seconds_by_phase
from gdpo_verl.lab.rundir.alerts import Alert, find_alerts
from gdpo_verl.lab.rundir.run import read_run


def groups_without_variation(*shares):
    """Metrics of the component `style` from step 1 on."""
    return {
        step: {"rewards/style/mean": 0.5, "gdpo/style/constant_groups": share}
        for step, share in enumerate(shares, start=1)
    }


def test_a_component_that_seldom_varies_for_twenty_steps_is_dead():
    metrics = groups_without_variation(*[0.1] * 5, *[0.9] * 20)
    # Steps 4 to 23 have 2 of 0.1 and 18 of 0.9: a mean of 0.82. Steps 3 to 22: 0.78.
    # From step 4 to 25 there are 20 of 0.9 and 2 of 0.1: 18.2 / 22.
    (alert,) = find_alerts(metrics, ["style"])
    assert alert == Alert("style", "dead", 4, 25, pytest.approx(18.2 / 22), 0.5, ongoing=True)
    assert str(alert) == (
        "style is dead: it does not vary in 83% of the groups (mean 0.5), since step 4"
    )


@pytest.mark.parametrize(
    ("key", "values", "kind"),
    [
        pytest.param("style/constant_groups", [0.8] * 20, "dead", id="exactly the threshold"),
        pytest.param("style/constant_groups", [1.0] * 19, None, id="too few steps"),
        pytest.param("style/saturation", [0.95] * 20, "saturated", id="at the top"),
        pytest.param("style/saturation", [0.05] * 20, "stuck", id="at the bottom"),
        pytest.param("style/saturation", [0.06] * 10 + [0.94] * 10, None, id="between both"),
        pytest.param("phantom_groups", [0.3] * 20, "phantom", id="without an outcome"),
        pytest.param("phantom_groups", [0.2] * 20, None, id="mostly with an outcome"),
    ],
)
def test_an_alert_takes_twenty_steps_beyond_its_threshold(key, values, kind):
    metrics = {step: {f"gdpo/{key}": value} for step, value in enumerate(values, start=1)}
    found = find_alerts(metrics, ["style"])
    assert [(each.kind, each.first, each.last) for each in found] == [(kind, 1, 20)] * bool(kind)
    for each in found:
        assert str(each).startswith("the outcome is" if kind == "phantom" else "style is")


def test_a_component_that_comes_back_to_life_is_an_alert_of_the_past():
    metrics = groups_without_variation(*[1.0] * 20, *[0.0] * 20, *[1.0] * 20)
    first, second = find_alerts(metrics, ["style"])
    # The first window with a mean below 0.8 has five zeros, the last above it four.
    assert (first.first, first.last, first.ongoing) == (1, 24, False)
    assert str(first).endswith("steps 1 to 24")
    assert (second.first, second.last, second.ongoing) == (37, 60, True)


STEADY = [training(i, 0.49 + 0.02 * (i % 2), float(i)) for i in range(1, 9)]
# It rises by 1 in the first quarter, and stays.
PLATEAU = [training(i, float(min(i, 10)) / 10, 0.0) for i in range(1, 41)]
# 20 steps that rise by 0.85 with a noise of 0.4 and -0.4.
LEARNS = [training(i, 0.0, 0.77 + 0.85 * (i - 1) / 19 + 0.4 * (-1) ** i) for i in range(1, 21)]
FALLEN = [training(i, 1.0 - float(min(i, 10)) / 10, 0.0) for i in range(1, 41)]


@pytest.mark.parametrize(
    ("steps", "component", "sentence"),
    [
        # Eight steps compare 4 with 4, and the last two with the two before. Format alternates
        # around 0.5: a change of 0 with an error of sqrt((0.0002 + 0.0002) / 2). It never moved.
        pytest.param(STEADY, 0, "format went from 0.5 to 0.5: +0 ± 0.014 over the last 4 steps. It "
            "does not vary in 25% of the groups of the last 4 steps.", id="never moved"),
        # Correctness rises by 1 a step: 2 with sqrt(0.5).
        pytest.param(STEADY, 1, "correctness went from 2.5 to 6.5 and still rises: +2 ± 0.71 over "
            "the last 4 steps. It does not vary in 50% of the groups of the last 4 steps.",
            id="rises"),
        # From a mean of 0.55 to 1: 0.45 with an error of 0.096, of which a tenth is above 0.
        pytest.param(PLATEAU, 0, "format went from 0.3 to 1 and has stopped learning: +0 ± 0 over "
            "the last 20 steps. It does not vary in 25% of the groups of the last 5 steps.",
            id="stopped"),
        pytest.param(FALLEN, 0, "format went from 0.7 to 0: +0 ± 0 over the last 20 steps. It does "
            "not vary in 25% of the groups of the last 5 steps.", id="nothing to learn any more"),
        # A quarter is a rise of 5 * 0.85 / 19, and of odd length: its noise adds 2 * 0.4 / 5.
        pytest.param(LEARNS, 1, "correctness went from 0.779 to 1.61: +0.384 ± 0.28 over the last "
            "10 steps. It does not vary in 50% of the groups of the last 5 steps.", id="noise"),
        pytest.param(STEADY[:7], 1, "correctness went from 2 to 6; 7 steps are too few to tell a "
            "trend from noise. It does not vary in 50% of the groups of the last 3 steps.",
            id="short"),
    ],
)  # fmt: skip
def test_the_verdict_claims_no_more_than_the_numbers_say(steps, component, sentence, tmp_path):
    write_lines(tmp_path / "metrics.jsonl", steps)
    assert summarise_run(read_dumps([read_run(tmp_path)])[0]).sentences[component] == sentence


def test_the_verdict_names_dead_groups_and_what_they_got(tmp_path):
    run = write_run(tmp_path / "gdpo")
    rows = (run / "rollouts/2.jsonl").read_text().splitlines()
    same = [json.loads(rows[3]) | {"uid": f"c_{i}_0", "input": "user\nWhy?"} for i in range(2)]
    write_lines(run / "rollouts/2.jsonl", [*map(json.loads, rows), *same])
    sentences = summarise_run(read_dumps([read_run(run)])[0]).sentences
    assert (
        "1 of 3 groups of the dumped step (33%) are dead, nothing varies in them: 1 with format "
        "1, correctness 1. For example: “Why?”"
    ) in sentences


def test_alerts_are_on_the_page(tmp_path):
    dead = {"gdpo/correctness/constant_groups": 0.9}
    steps = [training(step, 0.5, 1.0, **dead) for step in range(1, 21)]
    write_lines(tmp_path / "run/metrics.jsonl", steps)
    page = page_of(tmp_path, tmp_path / "run")
    assert "Alert: correctness is dead: it does not vary in 90% of the groups" in page.text
    assert "- run: Alert: correctness is dead" in (tmp_path / "summary.md").read_text()


RUNS = ((1, "gdpo", 1.0), (2, "gdpo", 2.0), (1, "grpo", 0.5))


def seeds(place, *runs, files="/data/train.parquet"):
    """Runs of seeds with an estimator and a gain; a seed may have its own files."""
    paths = []
    for seed, estimator, gain in runs:
        path = write_run(place / f"seed{seed}" / estimator, estimator, gain=gain)
        with (path / "config.yaml").open("a") as config:
            config.write(f"data: {{seed: {seed}, files: {files.format(seed)}}}\n")
        launch = {"recipe": f"toolbox/{estimator}", "version": "0.1.0"}
        (path / "launch.json").write_text(json.dumps(launch))
        paths.append(path)
    return paths


def test_runs_that_differ_in_seeds_and_places_alone_belong_together(tmp_path):
    without = [tmp_path / "a", tmp_path / "b"]  # a configuration
    for path in without:
        write_lines(path / "metrics.jsonl", [training(1, 0.5, 0.0)])
    found = group_by_recipe(list(map(read_run, [*seeds(tmp_path, *RUNS), *without])))
    groups = [(recipe.name, len(recipe.runs)) for recipe in found]
    assert groups == [("toolbox/gdpo", 2), ("grpo", 1), ("a", 1), ("b", 1)]
    others = seeds(tmp_path / "others", *RUNS, files="/data/{}/train.parquet")
    runs = list(map(read_run, others))
    assert [len(recipe.runs) for recipe in group_by_recipe(runs)] == [1, 1, 1]
    # Only settings that differ, and no place of this machine.
    assert dict(config_differences(runs)) == {
        "algorithm.adv_estimator": ("gdpo", "gdpo", "grpo"),
        "data.files": ("…/train.parquet",) * 3,
        "data.seed": ("1", "2", "1"),
    }


def test_seeds_are_summed_up_and_recipes_over_the_same_seeds_compared_by_pairs(
    tmp_path,
):
    paths = seeds(tmp_path, *RUNS, (2, "grpo", 1.0))
    runs = [read_run(path) for path in paths]
    found = quantities(read_dumps(runs), ["correctness"])
    names, rows = recipe_table(group_by_recipe(runs[:3]), found)
    table = dict(rows)
    assert names == ["toolbox/gdpo", "grpo"]
    assert table["runs"] == ("2", "1")
    # 0.5 + gains of 1 and 2: mean 2, unbiased deviation sqrt(0.5).
    ends = ("0.500 ± 0.000 → 2.000 ± 0.707", "0.500 → 1.000")
    assert table["training correctness, first → last step"] == ends
    held_out = ("0.250 ± 0.000 → 1.500 ± 0.000", "0.250 → 1.500")
    assert table["held-out correctness, before → after"] == held_out

    names, rows = recipe_table(group_by_recipe(runs), found)
    table = dict(rows)
    assert names[2] == "toolbox/gdpo − toolbox/grpo"
    assert table["runs"] == ("2", "2", "2 pairs")
    # Differences of 0.5 and 1: a mean of 0.75 ± 12.706 * sqrt(0.125) / sqrt(2).
    assert table["training correctness, first → last step"][2] == "+0.750 ± 3.176"
    constant = "groups in which correctness does not vary, first → last step"
    assert table[constant][2] == "+0.0 ± 0.0 points"
    # Of one run each there is no spread.
    assert recipe_table(group_by_recipe(runs[1:3]), found) == (["gdpo", "grpo"], [])

    page = page_of(tmp_path / "out", *paths[:3])
    assert "toolbox/gdpo (2 runs: seed1/gdpo, seed2/gdpo)" in page.text
    assert "2.000 ± 0.707" in (tmp_path / "out/summary.md").read_text(encoding="utf-8")
    assert "One seed" in page.text
    assert "One seed" not in page_of(tmp_path / "two", *paths[:2]).text


def test_time_is_split_by_phase_and_the_rest_is_named(tmp_path):
    times = {"timing_s/gen": 1.0, "timing_s/adv": 0.25, "timing_s/gen/mean": 9.0}
    steps = [training(step, 0.5, 0.0, **times) for step in (1, 2)]
    steps[1]["data"] |= validation(0.5, 0.5) | {"timing_s/testing": 4.0}
    write_lines(tmp_path / "metrics.jsonl", steps)
    run = read_run(tmp_path)
    # A step takes 2 s, of which 0.75 s in no phase; 4 s of validation over two steps, outside.
    assert seconds_by_phase([run]) == {"testing": 2.0, "gen": 1.0, "adv": 0.25, "other": 0.75}


def test_a_whitening_that_magnifies_more_than_before_is_an_alert():
    gains = [1.0, 1.2] * 10 + [1.9, 2.45, 2.5, 1.1, 3.6]
    metrics = {step: {"gdpo/whiten_gain": gain} for step, gain in enumerate(gains, start=1)}
    past, ongoing = find_alerts(metrics, [])
    # The median of the twenty steps before is 1.1 at first and then 1.2.
    assert past == Alert("whitening", "jumped", 22, 23, pytest.approx(2.475 / 1.2), None, False)
    assert (ongoing.first, ongoing.last, ongoing.ongoing) == (25, 25, True)
    assert str(ongoing).startswith("whitening magnifies advantages 3.0 times as much as in the")
    assert not find_alerts({s: m for s, m in metrics.items() if s <= 20 or s == 24}, [])
