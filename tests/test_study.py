"""The study: its arms, what it keeps of a run, and the page that is made of that."""

from __future__ import annotations

import gzip
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import pytest
import torch

from gdpo_verl.advantage import decompose, find_variant
from gdpo_verl.config import GdpoConfig
from gdpo_verl.rewards import tool_call
from gdpo_verl.run.launch import LaunchError

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

import study  # noqa: E402
import study_page  # noqa: E402
import study_rewards  # noqa: E402

Q1, Q2, Q3 = "q1", "q2", "q3"


def entry(run: study.Run, metrics: dict[str, list[Any]], **more: Any) -> dict[str, Any]:
    """A kept run of two steps after a validation."""
    return {
        "question": run.question,
        "arm": run.arm,
        "seed": run.seed,
        "seconds": 180.0,
        "started": "2026-01-02T03:04:05+00:00",
        "commit": "a" * 40,
        "machine": {"processor": "Abacus", "cores": 2},
        "versions": {"verl": "0.9.1"},
        "files": {"data.train_files": "0"},
        "steps": [0, 1, 2],
        "metrics": metrics,
    } | more


# --- the arms -------------------------------------------------------------------------------------


def test_the_runs_are_those_of_the_page_seed_by_seed() -> None:
    runs = study.plan()
    count = {question: sum(run.question == question for run in runs) for question in (Q1, Q2, Q3)}
    # 3 estimators x 4 units and 3 weights (the fourth, 1, is GRPO at unit 10); 5 arms; 9 x 2.
    assert count == {Q1: 15 * 5, Q2: 5 * 5, Q3: 18 * 3}
    for question, seeds in ((Q1, 5), (Q2, 5), (Q3, 3)):
        found = [run.seed for run in runs if run.question == question]
        assert found == sorted(found)
        assert set(found) == set(range(1, seeds + 1))
    assert [run.arm for run in study.plan([Q1])[:15]] == [*study_page.NAMES[Q1]]
    assert [run.arm for run in study.plan([Q2])[:5]] == [*study_page.NAMES[Q2]]


def test_the_arms_of_a_question_differ_in_the_estimator_and_the_unit_alone() -> None:
    for task in ("toolbox", "reasoning-gym"):
        given = [set(study.overrides(run, {})) for run in study.plan() if run.task == task]
        common = set.intersection(*given)
        assert {each.partition("=")[0] for each in set.union(*given) - common} <= {
            "data.seed",
            "reward.custom_reward_function.name",
            "+algorithm.gdpo.variant",
            "+algorithm.gdpo.conditions",
            "+algorithm.gdpo.gate",
            "+algorithm.gdpo_reward_weights",
        }


@pytest.mark.parametrize(
    ("question", "arm", "expected"),
    [
        (Q1, "weight-0.03", {"weights": (1.0, 0.03)}),
        (Q1, "whitened-10", {"variant": "pkg://study_rewards:grpo_whitened"}),
        (Q2, "grpo-condition", {"conditions": {"length": {"on": "correctness", "at_least": 1}}}),
        (Q2, "gdpo-gate", {"gate": {"on": "correctness", "when": "constant"}}),
        (Q3, "dvao-length", {"variant": "dvao"}),
    ],
)
def test_an_arm_composes_to_what_the_page_says(
    question: str, arm: str, expected: dict[str, Any]
) -> None:
    pytest.importorskip("verl")
    from gdpo_verl.run.composition import compose

    run = next(each for each in study.plan([question]) if each.arm == arm)
    config = compose(run.recipe, study.overrides(run, {}))
    assert config.algorithm.adv_estimator == ("grpo" if arm[:4] in ("grpo", "weig") else "gdpo")
    assert config.trainer.total_training_steps == 24
    assert (config.data.train_batch_size, config.actor_rollout_ref.rollout.n) == (32, 8)
    assert (config.trainer.device, config.data.seed) == ("cpu", 1)
    settings = GdpoConfig.from_algorithm(config.algorithm)
    objective = settings.resolve(getattr(study_rewards, run.reward).components)
    plain = {"weights": (1.0, 1.0), "variant": "gdpo", "conditions": {}, "gate": None}
    found = {name: getattr(settings, name) for name in plain if name != "weights"}
    assert found | {"weights": objective.weights} == plain | expected


# --- the rewards ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "unit"), study_rewards.UNITS.items())
def test_the_unit_multiplies_correctness_alone(name: str, unit: float) -> None:
    call = '<tool_call>\n{"name": "add", "parameters": {"a": 1}}\n</tool_call>'
    plain = tool_call.compute_score("toolbox", call, call)  # right, and without a thought
    found = getattr(study_rewards, name)("toolbox", call, call)
    assert (plain["format"], plain["correctness"]) == (0.0, 3.0)
    assert found == plain | {"correctness": 3 * unit, "score": 3 * unit}
    _, correctness = getattr(study_rewards, name).components
    assert (correctness.low, correctness.high) == (-3 * unit, 3 * unit)


def test_a_shorter_sum_earns_more_whether_or_not_it_is_right() -> None:
    right = "<think> 1 + 1 </think>\n<answer>2</answer>"
    for text, correctness, tokens in (
        (right, 1.0, 12),
        ("", 0.0, 1),
        (right, 1.0, 32),
        (right, 1.0, 40),
    ):
        found = study_rewards.short_sums("", text, "2", {"response_length": tokens}, limit=32)
        assert found["correctness"] == correctness
        assert found["length"] == pytest.approx(max(0, 1 - tokens / 32))
        assert found["score"] == found["correctness"] + found["length"]


def test_whitened_grpo_is_grpo_after_gdpo_s_batch_step() -> None:
    rewards = torch.tensor([[1.0, 3.0], [0.0, 0.0], [1.0, -3.0], [1.0, -1.0]])
    found = decompose(
        rewards,
        [0, 0, 1, 1],
        torch.tensor([1, 1, 3, 1]),
        variant=find_variant("pkg://study_rewards:grpo_whitened"),
    )
    # GRPO gives 0.7071, -0.7071, -0.7071, 0.7071; over the 6 tokens their mean is -0.2357 and the
    # unbiased variance 6/5 (0.5 - 0.0556) = 0.5333.
    expected = torch.tensor([0.9428, -0.4714, -0.4714, 0.9428], dtype=torch.float64) / 0.5333**0.5
    torch.testing.assert_close(found.advantage, expected, atol=2e-4, rtol=0)


# --- the runner -----------------------------------------------------------------------------------


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The runs that the study starts, in a place of its own; trainings write two steps at once."""
    names: list[str] = []
    monkeypatch.setattr(study, "KEPT_IN", tmp_path / "kept")
    monkeypatch.setattr(study, "WORK", tmp_path / "work")
    monkeypatch.setattr(study, "prepare", lambda task: {"data.train_files": ROOT / "README.md"})

    def launch(recipe: str, place: Path, overrides: list[str]) -> None:
        assert not (place / "left").exists()
        names.append(place.name)
        place.mkdir(parents=True, exist_ok=True)
        (place / "left").touch()
        line = '{"step": %d, "data": {"rewards/format/mean": 0.12345678, "perf/throughput": 9}}\n'
        (place / "metrics.jsonl").write_text("".join(line % step for step in (1, 2)))
        if len(names) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("gdpo_verl.run.launch.train", launch)
    return names


def test_a_run_that_was_cut_off_is_repeated_and_the_others_are_not(started: list[str]) -> None:
    arms = [f"{run.arm}-{run.seed}" for run in study.plan([Q2])]
    with pytest.raises(KeyboardInterrupt):
        study.main(["--question", "2"])
    assert [each["arm"] for each in study.read(Q2)] == ["grpo"]
    assert study.main(["--question", "2"]) == 0
    assert started == [arms[0], arms[1], *arms[1:]]
    assert not study.left(study.plan([Q2]))
    kept = study.read(Q2)[0]
    assert kept["metrics"] == {"rewards/format/mean": [0.1234568, 0.1234568]}
    assert {"commit", "machine", "versions", "started", "seed", "seconds", "files"} < kept.keys()


def test_no_run_is_started_when_the_minutes_are_over(
    started: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert study.main(["--minutes", "0"]) == 0
    assert started == []
    told = capsys.readouterr().out
    assert "q1: 0 of 75 runs done\n  seed 1: left gdpo-third, gdpo-1, " in told
    study.keep(entry(study.plan([Q2])[0], {}))
    study.main(["--status"])
    told = capsys.readouterr().out
    assert "q2: 1 of 25 runs done, 180 s each\n  seed 1: left gdpo, gdpo-condition," in told


def test_a_run_that_failed_does_not_end_the_study_and_a_second_does(
    started: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(recipe: str, place: Path, overrides: list[str]) -> None:
        started.append(place.name)
        raise LaunchError("out of luck")

    monkeypatch.setattr("gdpo_verl.run.launch.train", fail)
    assert study.main(["--question", "1"]) == 1
    assert started == ["gdpo-third-1", "gdpo-1-1"]
    assert "q1/gdpo-1-1: out of luck" in capsys.readouterr().err


def test_a_run_that_another_process_trains_is_left_to_it(started: list[str]) -> None:
    first, second, third = study.plan([Q2])[:3]
    with study.locked(study.WORK / "claims" / str(first)) as ours:
        assert ours
        with pytest.raises(KeyboardInterrupt):  # comes with the second training
            study.main(["--question", "2"])
    assert started == [f"{run.arm}-{run.seed}" for run in (second, third)]


def test_a_run_from_another_policy_is_refused(started: list[str]) -> None:
    runs = study.plan([Q2])
    study.keep(entry(runs[0], {}))
    with pytest.raises(SystemExit, match="not those that q2/grpo-1 started"):
        study.train(runs[1])
    assert started == []
    study.train(next(run for run in runs if run.seed == 2))  # pairs with its own seed alone


def test_the_kept_file_is_the_same_whatever_the_order_of_the_runs(tmp_path: Path) -> None:
    entries = [entry(run, {"rewards/format/mean": [run.seed]}) for run in study.plan([Q2])]
    for folder, order in ((tmp_path / "a", entries), (tmp_path / "b", entries[::-1])):
        for each in order:
            study.keep(each, folder)
    packed = (tmp_path / "a/q2.jsonl.gz").read_bytes()
    assert packed == (tmp_path / "b/q2.jsonl.gz").read_bytes()
    assert packed[3:8] == bytes(5)  # neither a name nor a time
    assert len(gzip.decompress(packed).splitlines()) == 25


# --- the page -------------------------------------------------------------------------------------


def test_the_committed_page_follows_from_the_committed_runs(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    shutil.copy(ROOT / "docs/evidence.md", docs)
    if (ROOT / "docs/evidence").exists():
        made_anew = shutil.ignore_patterns("*.svg", "policies")
        shutil.copytree(ROOT / "docs/evidence", docs / "evidence", ignore=made_anew)
    study_page.main(docs)
    made = {path.relative_to(docs): path for path in docs.rglob("*") if path.is_file()}
    committed = [ROOT / "docs/evidence.md", *(ROOT / "docs/evidence").glob("*.*")]
    assert {path.relative_to(ROOT / "docs") for path in committed} == made.keys()
    for name, path in made.items():
        before = (ROOT / "docs" / name).read_bytes()
        # Another matplotlib draws the same picture with other numbers.
        if name.suffix != ".svg" or f"v{matplotlib.__version__}," in before.decode():
            assert path.read_bytes() == before, name


def test_the_answers_say_no_number_that_is_not_in_the_tables() -> None:
    page = (ROOT / "docs/evidence.md").read_text(encoding="utf-8")
    tables = page.partition("<!-- results -->")[2].partition("<!-- /results -->")[0]
    answers = page.partition("## What the answers say")[2].partition("\n## ")[0]
    answers = re.sub("```.*?```", "", answers, flags=re.DOTALL)  # computed by another test
    told = set(re.findall(r"\d\.\d+", answers))
    assert len(told) > 10
    assert told <= set(re.findall(r"\d\.\d+", tables))


def units(
    form: Callable[[study.Run], float], correct: Callable[[study.Run], float]
) -> list[dict[str, Any]]:
    """All runs of question 1, whose means over two steps are given in original units."""
    entries = []
    for run in study.plan([Q1]):
        unit = study_rewards.UNITS[run.reward]
        noise = 0.002 * (run.seed - 3)  # -0.004 to 0.004
        f, c = form(run) + noise, (correct(run) + noise) * unit
        entries.append(
            entry(
                run,
                {
                    "rewards/format/mean": [None, f - 0.1, f + 0.1],
                    "rewards/correctness/mean": [None, c - 0.1, c + 0.1],
                    "rewards/format/std": [None, 0.5, 0.5],
                    "rewards/correctness/std": [None, 1.5 * unit, 1.5 * unit],
                    "gdpo/correctness/advantage_share": [None, 0.5, 0.7],
                    "gdpo/format/constant_groups": [None, 0.2, 0.4],
                    "val-aux/toolbox/format/mean@1": [0.5, None, f],
                    "val-aux/toolbox/correctness/mean@1": [0.0, None, c],
                },
            )
        )
    return entries


def falling(run: study.Run) -> float:
    """GDPO's format is 0.9 everywhere; GRPO's falls with the unit, and a small weight mends it."""
    if run.arm.startswith("gdpo"):
        return 0.9
    if run.arm.startswith("weight"):
        return 0.9 if run.arm == "weight-0.03" else 0.8
    return {"third": 0.88, "1": 0.85, "3": 0.82, "10": 0.8}[run.arm.partition("-")[2]]


def on_units(
    form: Callable[[study.Run], float], correct: Callable[[study.Run], float]
) -> list[tuple[bool, str]]:
    return [*study_page.verdicts_on_units(study_page.measure(Q1, units(form, correct)))]


def test_the_verdicts_on_units_follow_the_criteria() -> None:
    same, falls, tuned = on_units(falling, lambda run: 1.2 if run.arm.startswith("gdpo") else 1.3)
    alike = "+0.000 [+0.000, +0.000]"
    assert same == (
        True,
        f"GDPO's format stays within ±0.01 of that at unit 1: {alike} at ⅓, {alike} at 3, {alike} "
        "at 10.",
    )
    # Correctness's deviation is 1.5 times the unit, format's 0.5: 0.5 / 1 at ⅓, 15 / 15.5 at 10.
    more = "+0.100 [+0.100, +0.100]"
    assert falls == (
        True,
        "GRPO's format falls from unit ⅓ to 10: -0.080 [-0.080, -0.080]; its correctness minus "
        f"GDPO's is {more} at ⅓, {more} at 1, {more} at 3, {more} at 10; correctness makes "
        "50% to 97% of the two rewards' deviations in the sum that GRPO normalises, and 60% of the "
        "terms that GDPO adds.",
    )
    assert tuned == (
        False,
        "Of GRPO's four static weights at unit 10 the best is 0.03 (format and a third of "
        "correctness: 1.333 with 0.03, 1.233 with 0.1, 1.233 with 0.3, 1.233 with 1; GDPO 1.300); "
        f"its format minus GDPO's is {alike}, its correctness minus GDPO's {more}, so GDPO saves "
        "the tuning of a weight, and no more.",
    )


def test_a_null_result_on_units_is_called_so() -> None:
    def drifting(run: study.Run) -> float:
        return 0.92 if run.arm == "gdpo-10" else 0.9 + 0.01 * (run.seed % 2)

    def lower_at_3(run: study.Run) -> float:
        return {"grpo-3": 0.9, "grpo-10": 1.1, "grpo-1": 1.1, "grpo-third": 1.1}.get(run.arm, 1.0)

    same, falls, tuned = on_units(drifting, lower_at_3)
    # 0.906 on average against 0.92, by Student's t of three seeds at 0.91 and two at 0.90.
    assert same[0] is falls[0] is False
    assert "GDPO's format does not stay within" in same[1]
    assert "+0.014 [+0.007, +0.021] at 10." in same[1]
    assert "GRPO's format does not clearly fall from" in falls[1]
    # Told at every unit, and explained only where it is the higher one at all of them.
    assert falls[1].endswith("-0.100 [-0.100, -0.100] at 3, +0.100 [+0.100, +0.100] at 10.")
    assert tuned[0]
    assert tuned[1].endswith("so GRPO with that weight does not reach GDPO's format.")


def test_a_weight_that_beats_gdpo_is_not_called_a_tie() -> None:
    (*_, tuned) = on_units(lambda run: 0.95 if run.arm == "weight-0.1" else 0.9, lambda run: 1.0)
    assert not tuned[0]
    assert "the best is 0.1 (" in tuned[1]
    assert tuned[1].endswith("and no more, and that weight's format is the higher one.")


def sums(gain: dict[str, float]) -> list[dict[str, Any]]:
    """All runs of question 2: held-out correctness from 0.2 by so much, the seeds apart by 0.01."""
    entries = []
    for run in study.plan([Q2]):
        end = 0.2 + gain.get(run.arm, 0.0) + 0.01 * (run.seed % 2)
        metrics = {
            "val-aux/reasoning-gym/correctness/mean@1": [0.205, None, end],
            "rewards/correctness/mean": [None, 0.2, 0.3],
            "gdpo/phantom_groups": [None, 0.5, 0.7],
            "response_length/mean": [None, 12.0, 10.0],
            "val-aux/reasoning-gym/length/mean@1": [0.5, None, 0.75],
        }
        entries.append(entry(run, metrics))
    return entries


def test_the_verdicts_on_length_follow_the_criteria() -> None:
    found = study_page.measure(Q2, sums({"gdpo-condition": 0.3, "gdpo": -0.1}))
    told = dict(study_page.verdicts_on_length(found))
    yes, no = told[True], told[False]
    assert [answer for answer, _ in study_page.verdicts_on_length(found)] == [
        True,  # the condition: 0.4 above GDPO for each seed
        True,  # the gate: 0.1 above
        True,  # GDPO: below its start
        False,  # GRPO: as before
    ]
    assert yes.startswith("Collapse is shown for GDPO without the condition: its held-out")
    # Differences -0.005, +0.005 for two and three seeds: mean 0.001, t s / sqrt(5) = 0.0068.
    assert "changes by +0.001 [-0.006, +0.008]" in no


def test_the_page_names_nulls_first_and_partial_questions_as_such(tmp_path: Path) -> None:
    docs = tmp_path
    marks = "<!-- {0} -->\n<!-- /{0} -->\n"
    page = f"top\n{marks.format('verdicts')}plan\n{marks.format('results')}end\n"
    (docs / "evidence.md").write_text(page)
    for each in sums({"gdpo-condition": 0.3}):
        study.keep(each, docs / "evidence")
    for each in units(falling, lambda run: 1.0)[:40]:
        study.keep(each, docs / "evidence")
    dvao = next(run for run in study.plan([Q3]) if run.arm == "dvao-length")
    study.keep(entry(dvao, sums({})[0]["metrics"]), docs / "evidence")
    for _ in range(2):  # a second time changes nothing
        study_page.main(docs)
    text = (docs / "evidence.md").read_text()
    top, _, below = text.partition("plan")
    assert top.index("Question 1 is not answered yet: 40 of 75") < top.index("The condition raises")
    assert top.index("does not clearly raise") < top.index("The condition raises")
    assert top.index("Question 3 is not answered yet: 1 of 54") < top.index("The condition raises")
    assert "**Partial, nothing is decided**: 40 of 75 runs are in, 3.0 minutes each" in below
    assert "All 25 runs are in" in below
    assert "| GDPO with the condition − GDPO | +0.300 [+0.300, +0.300] |" in below
    # Seeds 1, 3 and 5 end at 0.51, 2 and 4 at 0.50. Of five draws the middle three are 0.50 where
    # at least four are, in 8.7 % of the draws: more than the 2.5 % below the lower end.
    assert "| GDPO with the condition | 0.506 [0.502, 0.510]; 0.507 [0.500, 0.510] |" in below
    assert "| `dvao` | – | – | 0.210 | 0.205 | 0.750 |" in below
    assert "| `gdpo` | – | – | – | – | – |" in below
    assert text.endswith("end\n")
    assert "Partial: 40 of 75 runs" in (docs / "evidence/q1.svg").read_text()
    assert "Partial" not in (docs / "evidence/q2.svg").read_text()
