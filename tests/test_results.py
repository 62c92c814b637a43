"""Numbers made here: the sums of Reasoning Gym, and that the script compares what is comparable."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from report_runs import write_run

from gdpo_verl.report import write_report
from gdpo_verl.rewards.gsm8k import compute_score, parse_ground_truth
from gdpo_verl.tasks import catalog, gsm8k, reasoning_gym

ROOT = Path(__file__).parents[1]
SPEC = importlib.util.spec_from_file_location("results_docs", ROOT / "scripts/results_docs.py")
assert SPEC is not None
assert SPEC.loader is not None
results_docs = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(results_docs)
needs_reasoning_gym = pytest.mark.skipif(
    importlib.util.find_spec("reasoning_gym") is None,
    reason=f"needs {reasoning_gym.REQUIREMENT}",
)


@pytest.fixture(scope="module")
def sums(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out_dir = tmp_path_factory.mktemp("data") / "sums"
    catalog.prepare("reasoning-gym", out_dir)
    return out_dir


def rows(folder: Path, split: str) -> list[dict[str, Any]]:
    return list(pq.read_table(folder / f"{split}.parquet").to_pylist())


# --- reasoning-gym ------------------------------------------------------------------------------


@needs_reasoning_gym
def test_the_sums_are_byte_identical_for_a_seed_and_others_for_another(
    sums: Path, tmp_path: Path
) -> None:
    catalog.prepare("reasoning-gym", tmp_path / "again")
    catalog.prepare("reasoning-gym", tmp_path / "other", seed=1)
    for name in ("train.parquet", "validation.parquet", "provenance.json"):
        assert (tmp_path / "again" / name).read_bytes() == (sums / name).read_bytes()
        assert (tmp_path / "other" / name).read_bytes() != (sums / name).read_bytes()


@needs_reasoning_gym
def test_no_sum_is_asked_twice_or_in_both_splits(sums: Path) -> None:
    questions = [
        row["prompt"][-1]["content"]
        for split in ("train", "validation")
        for row in rows(sums, split)
    ]
    assert len(questions) == len(set(questions)) == 2048 + 256
    other = {e.question for e in islice(reasoning_gym.examples("validation", seed=7), 500)}
    assert not other & {row["prompt"][-1]["content"] for row in rows(sums, "train")}


@needs_reasoning_gym
def test_every_ground_truth_is_the_sums_value_and_a_perfect_answer(sums: Path) -> None:
    for row in rows(sums, "train") + rows(sums, "validation"):
        truth = row["reward_model"]["ground_truth"]
        expression = row["extra_info"]["expression"]
        # Digits, blanks, + and - alone.
        assert set(expression) <= set("0123456789 +-")
        assert parse_ground_truth(truth) == truth == str(eval(expression))
        answer = f"<think> {expression} </think>\n<answer>{truth}</answer>"
        for strict in (True, False):
            score = compute_score(row["data_source"], answer, truth, strict=strict)
            assert (score["correctness"], score["integer"], score["format"]) == (1.0, 1.0, 1.0)


@needs_reasoning_gym
@pytest.mark.parametrize("wrong_by", [0, 1, -10], ids=["right", "one more", "ten less"])
def test_the_reward_agrees_with_reasoning_gyms_own_scoring(wrong_by: int) -> None:
    for example in islice(reasoning_gym.examples("train", seed=3), 100):
        answer = str(int(example.ground_truth) + wrong_by)
        theirs = reasoning_gym.generator().score_answer(answer, example.entry)
        text = f"<think> so </think>\n<answer>{answer}</answer>"
        ours = compute_score("reasoning-gym", text, example.ground_truth)["correctness"]
        assert (theirs == 1.0) == (ours == 1.0) == (wrong_by == 0)


@needs_reasoning_gym
def test_the_question_is_worded_as_the_policys_phrases_expect() -> None:
    example = next(reasoning_gym.examples("train", seed=0))
    assert example.question == reasoning_gym.QUESTION.format(example.expression)


@needs_reasoning_gym
def test_the_provenance_names_generator_package_and_license(sums: Path) -> None:
    provenance = json.loads((sums / "provenance.json").read_text())
    assert provenance["license"] == "Apache-2.0"
    assert provenance["source"].startswith("reasoning-gym 0.1.")
    assert provenance["generator"] == {
        "name": "chain_sum",
        "min_terms": 2,
        "max_terms": 4,
        "min_digits": 1,
        "max_digits": 1,
        "results": "0 or more",
        "longest_question": 250,
        "largest_number": 30,
    }
    assert provenance["files"]["train.parquet"]["rows"] == 2048


@needs_reasoning_gym
@pytest.mark.parametrize("name", ["reasoning-gym", "short-sums", "gsm-symbolic"])
def test_worked_examples_earn_everything_and_are_in_no_split(name: str, tmp_path: Path) -> None:
    provenance = catalog.prepare(name, tmp_path, shots=4)
    assert provenance["shots"] == 4
    train, held_out = rows(tmp_path, "train"), rows(tmp_path, "validation")
    *before, _ = train[0]["prompt"]
    assert [turn["role"] for turn in before] == ["system", *["user", "assistant"] * 4]
    assert all(row["prompt"][:-1] == before for row in train + held_out)
    questions = [row["prompt"][-1]["content"] for row in train + held_out]
    assert not {turn["content"] for turn in before} & set(questions)
    assert len(set(questions)) == len(questions)
    for asked, answered in zip(before[1::2], before[2::2], strict=True):
        sum_asked = asked["content"].removeprefix(reasoning_gym.QUESTION[:-4]).removesuffix(" =")
        (truth,) = {str(eval(sum_asked))} if name != "gsm-symbolic" else _worked(asked["content"])
        for strict in (True, False):
            score = compute_score(name, answered["content"], truth, strict=strict)
            assert score["score"] == 3.0
    for row in train + held_out:
        truth = row["reward_model"]["ground_truth"]
        assert parse_ground_truth(truth) == truth
        assert truth.isdecimal()
    if name == "short-sums":
        numbers = [int(each) for question in questions for each in question.split()[::2]]
        assert max(numbers) == 30
        assert {len(question.split()[::2]) for question in questions} == {2, 3}


def _worked(question: str) -> set[str]:
    return {answer for asked, _, answer in gsm8k.WORKED if asked == question}


def test_without_the_package_the_command_that_installs_it_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    reasoning_gym.generator.cache_clear()
    with pytest.raises(ModuleNotFoundError, match="pip install reasoning-gym=="):
        catalog.prepare("reasoning-gym", tmp_path)
    assert list(tmp_path.iterdir()) == []


# --- scripts/results.sh -------------------------------------------------------------------------

# Stands where the command gdpo-verl does and notes what it was asked for.
NOTE = """\
#!{python}
import json, pathlib, sys
words = sys.argv[1:]
with open({log!r}, "a") as log:
    log.write(json.dumps(words) + "\\n")
if words[0] in ("prepare", "make-policy"):
    out = pathlib.Path(words[words.index("--out") + 1])
    out.mkdir(parents=True)
    (out / ("provenance.json" if words[0] == "prepare" else "policy.json")).touch()
elif words[0] == "train":
    pathlib.Path(words[3]).mkdir(parents=True, exist_ok=True)
"""


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> list[list[list[str]]]:
    """What scripts/results.sh asks for in two runs of it, one after the other."""
    folder = tmp_path_factory.mktemp("results")
    command, log = folder / "bin" / "gdpo-verl", folder / "log"
    command.parent.mkdir()
    command.write_text(NOTE.format(python=sys.executable, log=str(log)))
    command.chmod(0o755)
    environment = os.environ | {"VENV": str(folder), "OUT": str(folder / "out"), "SEEDS": "1 2"}
    found = []
    for _ in range(2):
        log.write_text("")
        subprocess.run(["bash", ROOT / "scripts/results.sh"], env=environment, check=True)
        found.append([json.loads(line) for line in log.read_text().splitlines()])
    return found


def trainings(words: list[list[str]]) -> dict[str, tuple[str, list[str]]]:
    """Run to recipe and overrides."""
    return {
        "/".join(Path(each[3]).parts[-2:]): (each[1], each[4:])
        for each in words
        if each[0] == "train"
    }


def test_the_script_trains_three_tasks_with_both_estimators_and_each_seed(
    asked: list[list[list[str]]],
) -> None:
    runs = trainings(asked[0])
    assert {run: recipe for run, (recipe, _) in runs.items()} == {
        f"{task}/{estimator}-{seed}": f"{recipe}/{estimator}"
        for task, recipe in (
            ("toolbox", "toolbox"),
            ("reasoning-gym", "gsm8k"),
            ("bfcl", "tool_call"),
        )
        for estimator in ("gdpo", "grpo")
        for seed in (1, 2)
    }


def test_the_script_gives_both_estimators_the_same_settings(
    asked: list[list[list[str]]],
) -> None:
    runs = trainings(asked[0])
    for run, (_, overrides) in runs.items():
        assert overrides == runs[run.replace("gdpo-", "grpo-")][1]
        seed = run.rpartition("-")[2]
        assert f"data.seed={seed}" in overrides
        # Without the seed all runs of a task are the same.
        other = runs[run.replace(f"-{seed}", "-1")][1]
        assert [o for o in overrides if o != f"data.seed={seed}"] == [
            o for o in other if o != "data.seed=1"
        ]


def test_the_composed_runs_differ_in_the_estimator_and_their_names_alone(
    asked: list[list[list[str]]],
) -> None:
    pytest.importorskip("verl")
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    def flat(recipe: str, overrides: list[str]) -> dict[str, Any]:
        with initialize_config_dir(str(ROOT / "recipes"), version_base=None):
            config = OmegaConf.to_container(compose(recipe, overrides), resolve=False)
        return dict(leaves("", config))

    runs = trainings(asked[0])
    for task in ("toolbox", "reasoning-gym", "bfcl"):
        gdpo, grpo = (flat(*runs[f"{task}/{estimator}-1"]) for estimator in ("gdpo", "grpo"))
        assert {key for key in gdpo | grpo if gdpo.get(key) != grpo.get(key)} == {
            "algorithm.adv_estimator",
            "trainer.experiment_name",
        }
        assert gdpo["trainer.device"] == "cpu"
        assert gdpo["trainer.total_training_steps"] > 0


def leaves(prefix: str, node: Any) -> Any:
    if isinstance(node, dict) and node:
        for key, value in node.items():
            yield from leaves(f"{prefix}.{key}" if prefix else str(key), value)
    else:
        yield prefix, str(node) if isinstance(node, list | dict) else node


def test_the_script_does_not_prepare_twice_and_reports_each_task(
    asked: list[list[list[str]]],
) -> None:
    first, second = asked
    assert sorted(words[0] for words in first if words[0] in ("prepare", "make-policy")) == [
        *["make-policy"] * 3,
        *["prepare"] * 3,
    ]
    assert not [words for words in second if words[0] in ("prepare", "make-policy")]
    # A training that came to its end does nothing: gdpo-verl itself sees to that.
    assert trainings(second) == trainings(first)
    reports = [words for words in first if words[0] == "report"]
    assert [[Path(word).name for word in words[1:5]] for words in reports] == [
        ["gdpo-1", "gdpo-2", "grpo-1", "grpo-2"]
    ] * 3


# --- scripts/results_docs.py --------------------------------------------------------------------


def test_the_page_takes_picture_and_table_from_the_reports(tmp_path: Path) -> None:
    out, docs = tmp_path / "out", tmp_path / "docs"
    docs.mkdir()
    for estimator, gain in (("gdpo", 2.0), ("grpo", 1.0)):
        for seed in (1, 2):
            run = write_run(out / f"toolbox/{estimator}-{seed}", estimator, gain=gain * seed)
            config = f"algorithm: {{adv_estimator: {estimator}}}\ndata: {{seed: {seed}}}\n"
            (run / "config.yaml").write_text(config)
            (run / "launch.json").write_text(json.dumps({"recipe": f"toolbox/{estimator}"}))
    write_report(sorted((out / "toolbox").iterdir()), out / "report/toolbox")
    model = out / "models/toolbox"
    model.mkdir(parents=True)
    policy = {
        "parameters": 1234,
        "settings": {"steps": 7, "batch_size": 16},
        "sampled": {"format": 0.5, "exact": 0.25},
        "trained": {"format": 0.75, "exact": 0.125},
    }
    (model / "policy.json").write_text(json.dumps(policy))
    marks = "".join(f"<!-- {task} -->\nold\n<!-- /{task} -->\n" for task in results_docs.TASKS)
    (docs / "results.md").write_text(f"# Results\n{marks}end\n")

    for _ in range(2):
        results_docs.main(out, docs)
    text = (docs / "results.md").read_text()
    block = text.partition("<!-- toolbox -->")[2].partition("<!-- /toolbox -->")[0]
    assert "|  | toolbox/gdpo | toolbox/grpo | toolbox/gdpo − toolbox/grpo |" in block
    # GDPO ends at 0.5 + 2 and 0.5 + 4, GRPO at 0.5 + 1 and 0.5 + 2. The differences, 1 and 2, have
    # the mean 1.5 and the deviation 0.707; t = 12.706 for two pairs: 12.706 * 0.707 / sqrt(2).
    assert (
        "| training correctness, first → last step | 0.500 ± 0.000 → 3.500 ± 1.414 "
        "| 0.500 ± 0.000 → 2.000 ± 0.707 | +1.500 ± 6.353 |"
    ) in block
    assert "Of 15 differences the interval leaves out 0 in none." in block
    assert "Policy: 1,234 parameters, 7 steps of 16 flawed answers." in block
    assert "to held-out questions 50.0% right in form, 25.0% exactly right" in block
    assert "to training questions 75.0% right in form, 12.5% exactly right" in block
    assert "Runs: gdpo-1, gdpo-2, grpo-1, grpo-2." in block
    assert "![Learning curves on toolbox under GDPO and GRPO](results_toolbox.png)" in block
    assert (docs / "results_toolbox.png").stat().st_size < 200_000
    # A task that was not run keeps what it had.
    assert text.count("old\n") == 2
    assert text.endswith("end\n")


def test_the_differences_beyond_their_intervals_are_named() -> None:
    rows = ["a, first → last 5 steps | 1 | +0.5 ± 0.4", "b | 1 | −0.5 ± 0.5", "c | 1 | −2.0 ± 1.9"]
    table = "|  | x | x − y |\n|---|---|---|\n" + "".join(f"| {row} |\n" for row in rows)
    assert results_docs.clear_differences(table) == (
        "Of 3 differences the interval leaves out 0 in 2: a, c."
    )


def test_runs_without_a_partner_are_not_paired(tmp_path: Path) -> None:
    run = write_run(tmp_path / "gdpo-1")
    write_report([run], tmp_path / "report")
    with pytest.raises(ValueError, match="pairs no runs"):
        results_docs.paired_table((tmp_path / "report/summary.md").read_text())
