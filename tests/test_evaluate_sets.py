"""The sets of published tables: mathematics in each layout they are published in, and programs."""

from __future__ import annotations

import json
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_evaluate import judged, runs_code
from test_prepare import rejected, truths, write_lines, written

from gdpo_verl.lab.cli import main
from gdpo_verl.lab.tasks import catalog, math_sets
from gdpo_verl.lab.tasks.benchmark import ModelAnswer, open_benchmark
from gdpo_verl.lab.tasks.deepscaler import REQUEST
from gdpo_verl.lab.tasks.rows import make_row, write_dataset
from gdpo_verl.rewards import math_length


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Give math-verify time: what is tested here is no verdict on a busy machine."""
    parse = partial(math_length.parse_ground_truth, deadline=120.0)
    monkeypatch.setattr(math_length, "parse_ground_truth", parse)
    monkeypatch.setattr(math_sets, "parse_ground_truth", parse)
    score = partial(math_length.compute_score, deadline=120.0)
    monkeypatch.setattr(math_length, "compute_score", score)


SOLUTION = "It is $\\boxed{2}$."
PAIR = "\\left( 3, \\frac{\\pi}{2} \\right)"
# File, row and ground truth: columns and types as on the data sets' pages on the hub, without a
# few that nothing reads.
LAYOUTS = {
    "aime24": (
        "data/train-00000-of-00001.parquet",
        {"id": 60, "problem": "?", "solution": SOLUTION, "answer": "2", "year": "2024"},
        "2",
    ),
    "aime25": ("test.jsonl", {"problem": "?", "answer": "2", "id": "0"}, "2"),
    "amc": ("data/train-00000-of-00001.parquet", {"id": 0, "problem": "?", "answer": 2.0}, "2"),
    "math500": (
        "test.jsonl",
        {"problem": "?", "solution": SOLUTION, "subject": "Algebra", "level": 2, "answer": PAIR},
        PAIR,
    ),
    "minerva": ("test.jsonl", {"question": "?", "answer": "4.5e33"}, "4.5e33"),
    "olympiad": (
        "OE_TO_maths_en_COMP/OE_TO_maths_en_COMP.parquet",
        {
            **{"id": 1606, "question": "?", "solution": ["It is 2."], "context": None},
            **{"final_answer": ["$\\frac{1}{2}$"], "is_multiple_answer": False, "unit": None},
        },
        "\\frac{1}{2}",
    ),
}


@pytest.mark.parametrize("name", math_sets.SETS)
def test_each_layout_becomes_questions_with_the_recipes_prompt(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file, row, truth = LAYOUTS[name]
    path = tmp_path / "published" / file
    path.parent.mkdir(parents=True)
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist([row]), path)
    else:
        write_lines(path, [row])
    assert main(["prepare", name, "--from", "published"]) == 0
    benchmark = open_benchmark(name)
    (question,) = benchmark.load(None).items
    assert (question.category, question.truth) == (name, truth)
    assert question.messages == [{"role": "user", "content": f"?\n\n{REQUEST}"}]
    for text, tokens, worth in ((f"So \\boxed{{{truth}}}.", 4000, 1), ("\\boxed{7}", 4001, 0)):
        found = benchmark.score(question, text, tokens).measures
        assert found == {"accuracy": worth, "within_4000_tokens": worth}


def test_the_test_split_is_taken_alone_and_what_cannot_be_compared_is_listed(tmp_path):
    rows = [
        *({"problem": "a", "answer": str(number)} for number in range(4)),
        {"problem": "a", "answer": "\\frac{"},
        {"task": "a"},
        {"problem": "a", "solution": "By hand: \\boxed{12}."},
        {"Problem": "a", "Answer": 13, "Solution": "By hand."},
        {"question": "a", "context": "Given b.", "final_answer": ["1", "2"]},
    ]
    write_lines(tmp_path / "train.jsonl", [{"problem": "b", "answer": "1"}])
    write_lines(tmp_path / "test.jsonl", rows)
    found = catalog.prepare("math500", tmp_path / "out", source=str(tmp_path))
    assert rejected(found) == [(4, "ground_truth"), (5, "columns"), (8, "columns")]
    assert truths(tmp_path / "out", "test") == ["0", "1", "2", "3", "12", "13"]
    row = written(tmp_path / "out", "test")[4]
    assert row["extra_info"] == {"index": 4, "split": "test", "file": "test.jsonl", "row": 6}
    assert found["counts"]["of_unused_splits"] == {"train": 1}
    assert list(found["files"]) == ["test.parquet"]


def results(benchmark, rows, answers, tmp_path):
    """The numbers of answers, each a text and its tokens, to prepared rows."""
    write_dataset(tmp_path, {"test": rows}, {})
    questions = benchmark.load(str(tmp_path / "test.parquet")).items
    said = [[ModelAnswer(*pair, "stop") for pair in each] for each in answers]
    return judged(benchmark, questions, said)[1]


def row_of(source, content, truth):
    chat = [{"role": "user", "content": content}]
    return make_row(source, chat, truth, ability="", extra_info={"index": 0})


def test_k_answers_give_their_mean_and_pass_at_k(tmp_path):
    benchmark = open_benchmark("aime24")
    assert benchmark.sampling.samples == 16
    said = [[("\\boxed{2}", 5)] + [("\\boxed{3}", 5)] * 15, [("\\boxed{2}", 5)] * 16]
    rows = [row_of("aime24", name, "2") for name in "ab"]
    summary = results(benchmark, rows, said, tmp_path)
    assert (summary["questions"], summary["answers"]) == (2, 32)
    found = summary["results"]["all"]
    assert found["accuracy"]["mean"] == pytest.approx((1 / 16 + 1) / 2)  # mean@16
    # 1 of 16 is right: 1 - C(15, 4)/C(16, 4) = 4/16.
    assert found["pass@4"]["mean"] == pytest.approx((4 / 16 + 1) / 2)
    assert found["pass@16"]["mean"] == 1
    assert "pass@64" not in found


# ------------------------------------------------------------------ programs


@runs_code
def test_programs_are_judged_by_their_tests_and_reported_by_source(tmp_path):
    tests = json.dumps({"inputs": ["1\n", "2\n"], "outputs": ["1\n", "4\n"]})
    sources = ["apps", "codecontests", "apps", "taco"]
    rows = [row_of(source, f"Square a number ({n}).", tests) for n, source in enumerate(sources)]
    programs = ["print(int(input())**2)", "print(1)", "print(1/0)", "print(int(input())**2)"]
    said = [[(f"```python\n{each}\n```", 5)] for each in programs]
    said[3] = [(said[3][0][0], 4001)]
    found = results(open_benchmark("code"), rows, said, tmp_path)["results"]
    names = ("accuracy", "tests_passed", "within_4000_tokens", "bug_free")
    means = {row: tuple(cells[name]["mean"] for name in names) for row, cells in found.items()}
    assert means == {
        "apps": (0.5, 0.5, 1, 0.5),
        "codecontests": (0, 0.5, 1, 1),
        "taco": (1, 1, 0, 1),
        "all": (0.5, 0.625, 0.75, 0.75),
    }
