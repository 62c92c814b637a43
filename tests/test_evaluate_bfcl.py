"""BFCL: what is asked, and what bfcl-eval's own checkers say of a single answer."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("bfcl_eval", reason="needs bfcl-eval and what its scoring imports")
pytest.importorskip("tree_sitter", reason="needs bfcl-eval and what its scoring imports")

from bfcl_model import DONE, calling, first, right_answer

from gdpo_verl.rewards.parse_error import ParseError
from gdpo_verl.tasks import bfcl as bfcl_data
from gdpo_verl.tasks import prompt
from gdpo_verl.tasks import toolbox as toolbox_data
from gdpo_verl.tasks.benchmark import open_benchmark
from gdpo_verl.tasks.bfcl.benchmark import CATEGORIES, MULTI_TURN, SIMPLE
from gdpo_verl.tasks.rows import make_row, write_dataset

COUNTS = {
    **{"simple_python": 400, "simple_java": 100, "simple_javascript": 50},
    **dict.fromkeys(("multiple", "parallel", "parallel_multiple"), 200),
    **{"irrelevance": 240, "live_simple": 258, "live_multiple": 1053, "live_parallel": 16},
    **{"live_parallel_multiple": 24, "live_irrelevance": 884, "live_relevance": 16},
    **dict.fromkeys(MULTI_TURN, 200),
}


@pytest.fixture(scope="module")
def benchmark():
    opened = open_benchmark("bfcl")
    opened.questions = opened.load(None).items
    return opened


def training_row(messages):
    return make_row("any", messages, "x", ability="", extra_info={"index": 0})


# ------------------------------------------------------------------ what is asked


def test_every_question_of_version_3_is_asked(benchmark):
    assert Counter(question.category for question in benchmark.questions) == COUNTS
    assert set(CATEGORIES) == set(COUNTS)


def test_its_prompts_are_those_that_prepare_writes(benchmark):
    asked = {question.name: question for question in benchmark.questions}
    for row in [row for split in bfcl_data.accepted_rows()[0].values() for row in split]:
        question = asked[row["extra_info"]["id"]]
        assert (question.messages, question.category) == (
            row["prompt"],
            row["extra_info"]["category"],
        )


def test_java_is_asked_for_texts_as_the_leaderboard_does(benchmark):
    question = first(benchmark, "simple_java")
    system = question.messages[0]["content"]
    assert "Java 8 SDK syntax" in system
    assert "in string representation" in system
    assert question.truth["functions"][0]["parameters"]["properties"]["controller"]["type"] == "any"


def test_the_prompt_is_that_of_the_training_rows(benchmark, tmp_path):
    tools = [prompt.tool_block("add", "Adds.", {"a": {"type": "integer"}})] * 2
    frame = prompt.PromptFrame("Help.\n\nTools:\n", "\nThink, then call.")
    row = training_row(prompt.apply_frame(frame, tools, ["<user> 1+1? </user>"]))
    write_dataset(tmp_path / "own", {"train": [row]}, {})
    own = open_benchmark("bfcl", prompt_from=[str(tmp_path / "own" / "train.parquet")])
    loaded = own.load(None)
    assert loaded.about["prompt"] == f"prompt of {tmp_path / 'own' / 'train.parquet'}"
    for ours, theirs in zip(benchmark.questions, loaded.items, strict=True):
        system = theirs.messages[0]["content"]
        assert system.startswith("Help.\n\nTools:\n")
        assert system.endswith("\n\nThink, then call.")
        assert prompt.HEADER not in system
        assert theirs.messages[1] == ours.messages[1]
    two = [row, training_row(prompt.messages(tools, []))]
    write_dataset(tmp_path / "two", {"train": two}, {})
    with pytest.raises(ValueError, match=r"expected one text around the tools.*found 2"):
        open_benchmark("bfcl", prompt_from=[str(tmp_path / "two" / "train.parquet")]).load(None)


def test_training_rows_that_cannot_be_read_are_refused_and_those_without_tools_ignored(tmp_path):
    with pytest.raises(ValueError, match=r"--prompt-from.*Write it with: gdpo-verl prepare rlla"):
        open_benchmark("bfcl", prompt_from=["data/rlla/nowhere.parquet"]).load(None)
    file = str(tmp_path / "train.parquet")
    write_dataset(tmp_path, {"train": [{"question": "1+1?"}]}, {})
    with pytest.raises(ValueError, match=r"cannot read prompts.*prompt"):
        open_benchmark("bfcl", prompt_from=[file]).load(None)
    row = training_row([{"role": "user", "content": "1+1?"}])
    write_dataset(tmp_path, {"train": [row]}, {})
    loaded = open_benchmark("bfcl", prompt_from=[file]).load(None)
    assert loaded.about["prompt"] == "prompt of gdpo-verl prepare bfcl"


def test_toolrls_own_dialogues_have_one_text_around_their_tools():
    file = Path(__file__).parents[1] / ".." / "shared/data/toolrl/rlla_sft.json"
    if not file.exists():
        pytest.skip("needs 400 dialogues of ToolRL")
    frames = {prompt.parse_frame(row["instruction"]) for row in json.loads(file.read_text())}
    (frame,) = frames
    assert "**Available Tools**" in frame.header
    assert frame.footer.startswith("\n**Steps for Each Turn**\n1. **Think:**")


def test_a_prepared_file_chooses_questions_and_another_data_set_is_refused(tmp_path):
    row = bfcl_data.accepted_rows()[0]["validation"][0]
    write_dataset(tmp_path, {"validation": [row]}, {})
    file = str(tmp_path / "validation.parquet")
    (item,) = open_benchmark("bfcl").load(file).items
    assert item.name == row["extra_info"]["id"]
    toolbox_data.prepare(tmp_path, train=1, validation=1)
    with pytest.raises(ValueError, match=r"extra_info\.id of a question.*gdpo-verl prepare bfcl"):
        open_benchmark("bfcl").load(file)


# ------------------------------------------------------------------ what an answer is worth


def test_right_answers_to_single_turns_are_right(benchmark):
    found = Counter()
    for question in benchmark.questions:
        if question.category not in MULTI_TURN:
            score = benchmark.score(question, right_answer(question), 5)
            found[question.category] += score.measures["accuracy"]
            assert score.measures["format"] == 1
    # Of the first answers listed for each argument bfcl-eval refuses some. Java's and JavaScript's
    # lists and maps want literals of these languages, which JSON is not.
    missing = {name: COUNTS[name] - found[name] for name in COUNTS if name not in MULTI_TURN}
    python = sum(missing[name] for name in missing if name not in SIMPLE[1:])
    assert python == 9
    assert missing["simple_java"] < 40
    assert missing["simple_javascript"] < 20


@pytest.mark.parametrize(
    ("text", "reason", "error"),
    [
        ("", "Wrong number of functions", "NO_CALL"),
        ("<tool_call>\n{}\n</tool_call>", "NOT_A_CALL", "NOT_A_CALL"),
        # An argument is missing.
        (calling(("calculate_triangle_area", {"base": "ten"})), "height", "NONE"),
    ],
)
def test_it_says_what_is_wrong_with_an_answer(benchmark, text, reason, error):
    found = benchmark.score(first(benchmark, "simple_python"), text, 5)
    assert found.measures["accuracy"] == 0
    assert reason in found.reason
    assert found.error is ParseError[error]


def test_a_call_is_wrong_where_none_fits_and_right_where_one_does(benchmark):
    call = calling(("anything", {}))
    for category, right, wrong in (
        ("irrelevance", DONE, call),
        ("live_irrelevance", DONE, call),
        ("live_relevance", call, DONE),
    ):
        question = first(benchmark, category)
        assert benchmark.score(question, right, 5).measures == {"accuracy": 1, "format": 1}
        assert benchmark.score(question, wrong, 5).measures["accuracy"] == 0
