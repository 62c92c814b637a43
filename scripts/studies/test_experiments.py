"""The experiments: their arms and rewards, the runner, and the page made from the stored runs."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import evidence
import experiment
import experiment_rewards
import matplotlib
import pandas as pd
import pytest
import variants_study
import yaml

from gdpo_verl.config import GdpoConfig
from gdpo_verl.rewards import tool_call

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow

EXPERIMENTS = {
    name: yaml.safe_load((ROOT / f"scripts/studies/{name}.yaml").read_text(encoding="utf-8"))
    for name in (
        "q1",
        "q2",
        "q3",
        "pretrained",
        "push",
        "push_long",
        "quiet",
        "rare",
        "rare_pretrained",
        "rare_sums",
        "relative",
        "tradeoff",
    )
}
ON_CORRECT = {"on": "correctness", "at_least": 1}


def test_the_kept_runs_are_those_of_the_experiments():
    for name, settings in EXPERIMENTS.items():
        arms = [arm for task in settings["tasks"].values() for arm in task["arms"]]
        expected = {(arm, seed) for arm in arms for seed in settings["seeds"]}
        kept = {(arm, seed) for arm, seeds in evidence.read(name).items() for seed in seeds}
        assert kept == expected


@pytest.mark.parametrize(
    ("name", "arm", "estimator", "expected"),
    [
        ("q1", "weight-0.03", "grpo", {"weights": (1.0, 0.03)}),
        ("q1", "whitened-10", "gdpo", {"variant": "pkg://experiment_rewards:grpo_whitened"}),
        ("q2", "grpo-condition", "grpo", {"conditions": {"length": ON_CORRECT}}),
    ],
)
def test_an_arm_composes_to_what_the_page_says(name, arm, estimator, expected):
    pytest.importorskip("verl")
    from gdpo_verl.lab.run.composition import compose

    (settings,) = (e for e in EXPERIMENTS[name]["tasks"].values() if arm in e["arms"])
    recipe, reward, *more = settings["arms"][arm]
    overrides = [*EXPERIMENTS[name]["every"], *settings.get("overrides", ()), reward, *more]
    config = compose(recipe, overrides)
    assert config.algorithm.adv_estimator == estimator
    assert config.trainer.total_training_steps == 24
    gdpo = GdpoConfig.from_algorithm(config.algorithm)
    components = getattr(experiment_rewards, reward.partition("=")[2]).components
    plain = {"variant": "gdpo", "conditions": {}, "gate": None}
    chosen = {key: getattr(gdpo, key) for key in plain}
    chosen["weights"] = gdpo.resolve(components).weights
    assert chosen == plain | {"weights": (1.0, 1.0)} | expected


# --- the rewards ----------------------------------------------------------------------------------


def test_the_unit_multiplies_correctness_alone():
    call = '<tool_call>\n{"name": "add", "parameters": {"a": 1}}\n</tool_call>'
    plain = tool_call.compute_score("toolbox", call, call)  # right, and without a thought
    assert (plain["format"], plain["correctness"]) == (0.0, 3.0)
    times_10 = experiment_rewards.times_10
    assert times_10("toolbox", call, call) == plain | {"correctness": 30.0, "score": 30.0}
    _, correctness = times_10.components
    assert (correctness.low, correctness.high) == (-30.0, 30.0)
    _, correctness = experiment_rewards.times_third.components
    assert (correctness.low, correctness.high) == (-1.0, 1.0)


# --- the runner -----------------------------------------------------------------------------------


def test_a_run_that_was_cut_off_is_repeated_and_the_others_are_not(tmp_path, monkeypatch):
    started: list[str] = []

    def run(words: list[Any], **_: Any) -> None:
        if words[3] != "train":
            return
        folder = Path(words[6])
        started.append(folder.name)
        if len(started) == 2:
            raise KeyboardInterrupt
        folder.mkdir(parents=True)
        line = '{"step": %d, "data": {"rewards/format/mean": 0.12345678, "perf/throughput": 9}}\n'
        (folder / "metrics.jsonl").write_text("".join(line % step for step in (1, 2)))

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(experiment, "ROOT", tmp_path)
    monkeypatch.setattr(experiment, "EVIDENCE", tmp_path)
    monkeypatch.setattr(experiment, "read", lambda name: evidence.read(name, tmp_path))
    with pytest.raises(KeyboardInterrupt):
        experiment.train_rest("q2", EXPERIMENTS["q2"])
    step = {"arm": "grpo", "rewards/format/mean": 0.123457}
    stored = evidence.read("q2", tmp_path)
    assert [*stored, *stored["grpo"]] == ["grpo", 1]
    assert stored["grpo"][1].to_dict("index") == {1: step, 2: step}
    experiment.train_rest("q2", EXPERIMENTS["q2"])
    arms = list(EXPERIMENTS["q2"]["tasks"]["reasoning-gym"]["arms"])
    runs = [f"{arm}-{seed}" for seed in range(1, 6) for arm in arms]
    assert started == [*runs[:2], *runs[1:]]


# --- the page -------------------------------------------------------------------------------------


def test_the_committed_page_follows_from_the_committed_runs(tmp_path):
    shutil.copy(ROOT / "docs/evidence.md", tmp_path)
    (tmp_path / "evidence").mkdir()
    pages = list((ROOT / "docs/evidence").glob("*.md"))
    for file in [*pages, *(ROOT / "docs/evidence").glob("*.jsonl*")]:
        shutil.copy(file, tmp_path / "evidence")
    evidence.main(tmp_path)
    made = [f"evidence/{page.name}" for page in pages]
    pictures = [f"evidence/{name}.svg" for name in evidence.DRAWINGS]
    for name in ("evidence.md", *made, *pictures):
        before = (ROOT / "docs" / name).read_bytes()
        # Another version of matplotlib draws the same picture with other numbers.
        if name.endswith(".md") or f"v{matplotlib.__version__}," in before.decode():
            assert (tmp_path / name).read_bytes() == before, name


def test_differences_are_paired_by_seed():
    # 0.1 and 0.3: mean 0.2, deviation 0.1414, t = 12.706: ± 12.706 * 0.1414 / sqrt(2) = 1.2706.
    pairs = {1: 0.6, 2: 0.9, 3: 5.0}, {2: 0.6, 1: 0.5, 4: 9.0}
    assert evidence.around(*pairs) == "+0.200 [−1.071, +1.471]"
    assert evidence.around({1: 0.5}, {1: 0.5}) == "–"


# --- the study of variants ------------------------------------------------------------------------


def test_the_table_of_variants_follows_from_the_committed_numbers():
    table = variants_study.table(pd.read_csv(ROOT / "docs/evidence/variants.csv"))
    text = (ROOT / "docs/evidence/variants.md").read_text(encoding="utf-8")
    assert f"<!-- study -->\n\n{table}\n\n<!-- /study -->" in text
