"""The sets of published tables: mathematics in each layout they are published in, and programs."""

from __future__ import annotations

import json
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sandboxes import working_protections

from gdpo_verl.cli import main
from gdpo_verl.evaluate import run
from gdpo_verl.rewards import math_length
from gdpo_verl.tasks import catalog, math_sets
from gdpo_verl.tasks.benchmark import ModelAnswer, open_benchmark
from gdpo_verl.tasks.deepscaler import REQUEST
from gdpo_verl.tasks.rows import make_row, write_dataset

runs_code = pytest.mark.skipif(
    next(working_protections(), None) is None, reason="neither bubblewrap nor Landlock works here"
)


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Give math-verify time: what is tested here is no verdict on a busy machine."""
    parse = partial(math_length.parse_ground_truth, deadline=120.0)
    monkeypatch.setattr(math_length, "parse_ground_truth", parse)
    monkeypatch.setattr(math_sets, "parse_ground_truth", parse)
    score = partial(math_length.compute_score, deadline=120.0)
    monkeypatch.setattr(math_length, "compute_score", score)


# Columns and types as the data sets' pages on the hub show them; the problems are ours.
LAYOUTS = {
    "aime24": (
        "data/train-00000-of-00001.parquet",
        {
            "id": 60,
            "problem": "What is $1+1$?",
            "solution": "It is $\\boxed{2}$.",
            "answer": "2",
            "url": "https://example.org",
            "year": "2024",
        },
        "2",
    ),
    "aime25": ("test.jsonl", {"problem": "What is $1+1$?", "answer": "2", "id": "0"}, "2"),
    "amc": (
        "data/train-00000-of-00001.parquet",
        {"id": 0, "problem": "What is $1+1$?", "answer": 2.0, "url": "https://example.org"},
        "2",
    ),
    "math500": (
        "test.jsonl",
        {
            "problem": "What is $1+1$?",
            "solution": "It is $\\boxed{2}$.",
            "answer": "\\left( 3, \\frac{\\pi}{2} \\right)",
            "subject": "Algebra",
            "level": 2,
            "unique_id": "test/algebra/1.json",
        },
        "\\left( 3, \\frac{\\pi}{2} \\right)",
    ),
    "minerva": ("test.jsonl", {"question": "What is $1+1$?", "answer": "4.5e33"}, "4.5e33"),
    "olympiad": (
        "OE_TO_maths_en_COMP/OE_TO_maths_en_COMP.parquet",
        {
            "id": 1606,
            "question": "What is $1+1$?",
            "solution": ["It is 2."],
            "final_answer": ["$\\frac{1}{2}$"],
            "context": None,
            "image_1": None,
            "is_multiple_answer": False,
            "unit": None,
            "answer_type": "Numerical",
            "error": None,
        },
        "\\frac{1}{2}",
    ),
}


def write_layout(directory, name):
    file, row, _ = LAYOUTS[name]
    path = directory / file
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist([row]), path)
    else:
        path.write_text(json.dumps(row) + "\n")


@pytest.mark.parametrize("name", LAYOUTS)
def test_each_layout_becomes_questions_with_the_recipes_prompt(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_layout(tmp_path / "published", name)
    assert main(["prepare", name, "--from", "published"]) == 0
    benchmark = open_benchmark(name)
    (question,) = benchmark.load(None).items
    assert question.category == name
    assert question.messages == [{"role": "user", "content": f"What is $1+1$?\n\n{REQUEST}"}]
    assert question.truth == LAYOUTS[name][2]
    right = benchmark.score(question, f"So \\boxed{{{question.truth}}}.", 4000)
    assert right.measures == {"accuracy": 1, "within_4000_tokens": 1}
    assert benchmark.score(question, "So \\boxed{7}.", 4001).measures == {
        "accuracy": 0,
        "within_4000_tokens": 0,
    }


def test_the_sets_are_those_that_prepare_and_evaluate_know():
    prepared = [name for name, each in catalog.DATASETS.items() if not each.trained]
    assert prepared == list(math_sets.SETS) == list(LAYOUTS)
    for name in prepared:
        with pytest.raises(FileNotFoundError, match=f"Write it with: gdpo-verl prepare {name}$"):
            open_benchmark(name).load(None)


def write_rows(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_the_test_split_is_taken_where_there_is_one(tmp_path):
    write_rows(tmp_path / "train.jsonl", {"problem": "a", "answer": "1"})
    write_rows(tmp_path / "test.jsonl", {"problem": "b", "answer": "2"})
    out = tmp_path / "out"
    found = catalog.prepare("math500", out, source=str(tmp_path))
    (row,) = pq.read_table(out / "test.parquet").to_pylist()
    assert row["prompt"][0]["content"].startswith("b\n")
    assert row["extra_info"] == {"index": 0, "split": "test", "file": "test.jsonl", "row": 0}
    assert found["counts"]["of_unused_splits"] == {"train": 1}
    assert list(found["files"]) == ["test.parquet"]


def test_answers_that_cannot_be_compared_and_rows_without_columns_are_listed(tmp_path):
    rows = [{"problem": "a", "answer": str(number)} for number in range(4)]
    write_rows(
        tmp_path / "mine.jsonl",
        *rows,
        {"problem": "a", "answer": "\\frac{"},
        {"task": "a"},
        {"problem": "a", "solution": "By hand: \\boxed{12}."},
        {"question": "a", "context": "Given b.", "final_answer": ["1", "2"]},
    )
    found = catalog.prepare("olympiad", tmp_path / "out", source=str(tmp_path / "mine.jsonl"))
    assert [(row["row"], row["kind"]) for row in found["rejected"]] == [
        (4, "ground_truth"),
        (5, "columns"),
        (7, "columns"),
    ]
    kept = pq.read_table(tmp_path / "out" / "test.parquet").to_pylist()
    assert [row["reward_model"]["ground_truth"] for row in kept] == ["0", "1", "2", "3", "12"]


def test_nothing_is_held_out_of_a_benchmark(tmp_path, capsys):
    assert main(["prepare", "aime24", "--validation", "3", "--out", str(tmp_path)]) == 1
    assert "--validation: nothing is held out of aime24" in capsys.readouterr().err


def test_k_answers_give_their_mean_and_pass_at_k(tmp_path):
    rows = [
        make_row(
            "aime24",
            [{"role": "user", "content": name}],
            "2",
            ability="math",
            extra_info={"index": 0},
        )
        for name in "ab"
    ]
    write_dataset(tmp_path, {"test": rows}, {})
    benchmark = open_benchmark("aime24")
    questions = benchmark.load(str(tmp_path / "test.parquet")).items
    sampling = benchmark.sampling
    assert sampling.samples == 16
    said = [["\\boxed{2}"] + ["\\boxed{3}"] * 15, ["\\boxed{2}"] * 16]
    answers = [[ModelAnswer(text, 5, "stop") for text in each] for each in said]
    data = {"source": {}, "available": 2, "asked_sha256": ""}
    task = run.Preparation(benchmark, sampling, questions, [[1]] * 2, data, [])
    found = run._summarise(task, run._judge(task, answers))["results"]["all"]
    assert found["accuracy"]["mean"] == pytest.approx((1 / 16 + 1) / 2)  # mean@16
    # 1 of 16 is right: 1 - C(15, 4)/C(16, 4) = 4/16.
    assert found["pass@4"]["mean"] == pytest.approx((4 / 16 + 1) / 2)
    assert found["pass@16"]["mean"] == 1
    assert "pass@64" not in found


# ------------------------------------------------------------------ programs


def program_row(source, number):
    tests = {"inputs": ["1\n", "2\n"], "outputs": ["1\n", "4\n"]}
    chat = [{"role": "user", "content": f"Square a number ({number})."}]
    return make_row(source, chat, json.dumps(tests), ability="code", extra_info={"index": number})


@runs_code
def test_programs_are_judged_by_their_tests_and_reported_by_source(tmp_path):
    sources = ["apps", "codecontests", "apps", "taco"]
    rows = [program_row(source, number) for number, source in enumerate(sources)]
    write_dataset(tmp_path, {"validation": rows}, {})
    benchmark = open_benchmark("code")
    questions = benchmark.load(str(tmp_path / "validation.parquet")).items
    programs = ["print(int(input())**2)", "print(1)", "print(1/0)", "print(int(input())**2)"]
    answers = [[ModelAnswer(f"```python\n{each}\n```", 5, "stop")] for each in programs]
    answers[3] = [ModelAnswer(answers[3][0].text, 4001, "stop")]
    data = {"source": {}, "available": 4, "asked_sha256": ""}
    task = run.Preparation(benchmark, benchmark.sampling, questions, [[1]] * 4, data, [])
    rows = run._summarise(task, run._judge(task, answers))["results"]
    means = {
        row: {name: cell["mean"] for name, cell in cells.items() if name != "questions"}
        for row, cells in rows.items()
    }
    assert means["apps"] == {
        "accuracy": 0.5,
        "tests_passed": 0.5,
        "within_4000_tokens": 1,
        "bug_free": 0.5,
    }
    assert means["codecontests"]["tests_passed"] == 0.5
    assert means["codecontests"]["accuracy"] == 0
    assert means["taco"] == {
        "accuracy": 1,
        "tests_passed": 1,
        "within_4000_tokens": 0,
        "bug_free": 1,
    }
    assert means["all"]["accuracy"] == 0.5


def test_programs_without_tests_are_refused(tmp_path):
    row = make_row(
        "apps", [{"role": "user", "content": "x"}], "no tests", ability="", extra_info={"index": 0}
    )
    write_dataset(tmp_path, {"validation": [row]}, {})
    with pytest.raises(ValueError, match="1 of 1 ground truths cannot be read"):
        open_benchmark("code", allow_unprotected=True).load(str(tmp_path / "validation.parquet"))
    with pytest.raises(FileNotFoundError, match="gdpo-verl prepare eurus2-code"):
        open_benchmark("code", allow_unprotected=True).load(None)
