"""The sums of Reasoning Gym: reproducible, disjoint splits, and right ground truths."""

from __future__ import annotations

import importlib.util
import json
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from gdpo_verl.rewards.gsm8k import compute_score, parse_ground_truth
from gdpo_verl.tasks import catalog, gsm8k, reasoning_gym

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
