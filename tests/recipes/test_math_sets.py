"""The sets of published tables: mathematics in each layout they are published in."""

import pytest
from gdpo_verl.recipes.math_length.benchmarks import SETS
from gdpo_verl.recipes.math_length.rows import REQUEST
from prepared import rejected, truths, write, written

from gdpo_verl.lab import catalog
from gdpo_verl.lab.cli import main
from gdpo_verl.rewards import math_length


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Give math-verify time: what is tested here is no verdict on a busy machine."""
    ask = math_length.ask
    monkeypatch.setattr(math_length, "ask", lambda worker, asked, _: ask(worker, asked, 120.0))


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


@pytest.mark.parametrize("name", SETS)
def test_each_layout_becomes_questions_with_the_recipes_prompt(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file, row, truth = LAYOUTS[name]
    write(tmp_path / "published" / file, [row])
    assert main(["prepare", name, "--from", "published"]) == 0
    (question,) = written(tmp_path / "data" / name, "test")
    assert (question["data_source"], question["reward_model"]["ground_truth"]) == (name, truth)
    assert question["prompt"] == [{"role": "user", "content": f"?\n\n{REQUEST}"}]


def test_the_test_split_is_taken_alone_and_what_cannot_be_compared_is_listed(tmp_path):
    rows = [{"problem": "a", "answer": str(number)} for number in range(4)]
    rows += [
        {"problem": "a", "answer": "\\frac{"},
        {"task": "a"},
        {"problem": "a", "solution": "By hand: \\boxed{12}."},
        {"Problem": "a", "Answer": 13, "Solution": "By hand."},
        {"question": "a", "context": "Given b.", "final_answer": ["1", "2"]},
    ]
    write(tmp_path / "train.jsonl", [{"problem": "b", "answer": "1"}])
    write(tmp_path / "test.jsonl", rows)
    found = catalog.prepare("math500", tmp_path / "out", source=str(tmp_path))
    assert rejected(found) == [(4, "ground_truth"), (5, "columns"), (8, "columns")]
    assert truths(tmp_path / "out", "test") == ["0", "1", "2", "3", "12", "13"]
    row = written(tmp_path / "out", "test")[4]
    assert row["extra_info"] == {"index": 4, "split": "test", "file": "test.jsonl", "row": 6}
    assert found["counts"]["of_unused_splits"] == {"train": 1}
    assert list(found["files"]) == ["test.parquet"]
