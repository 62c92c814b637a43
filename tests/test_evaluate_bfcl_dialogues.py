"""BFCL's dialogues, and all of it: by bfcl-eval's own evaluation, and through vLLM."""

from __future__ import annotations

import csv
import json
import shutil
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("bfcl_eval", reason="needs bfcl-eval and what its scoring imports")
pytest.importorskip("tree_sitter", reason="needs bfcl-eval and what its scoring imports")

from bfcl_model import DONE, calling, first, held, right_answer, right_steps
from conftest import run_cli

from gdpo_verl.evaluate import result, run
from gdpo_verl.evaluate.generate import run_dialogues
from gdpo_verl.tasks import bfcl as bfcl_data
from gdpo_verl.tasks import prompt
from gdpo_verl.tasks.benchmark import ModelAnswer, open_benchmark
from gdpo_verl.tasks.bfcl import handler
from gdpo_verl.tasks.bfcl.benchmark import CATEGORIES, LIVE, MULTI_TURN, NON_LIVE, SIMPLE
from gdpo_verl.tasks.rows import make_row, write_dataset


@pytest.fixture(scope="module")
def benchmark():
    opened = open_benchmark("bfcl")
    opened.questions = opened.load(None).items
    return opened


# ------------------------------------------------------------------ dialogues


@pytest.mark.parametrize("category", MULTI_TURN)
def test_the_expected_calls_pass_bfcl_evals_own_loop_and_checker(benchmark, category):
    questions = [each for each in benchmark.questions if each.category == category][::8]
    answers, _ = held(benchmark, questions, map(right_steps, questions))
    for question, answer in zip(questions, answers, strict=True):
        score = benchmark.score(question, answer.text, answer.tokens)
        assert score.measures == {"accuracy": 1, "format": 1}, (question.name, score.reason)


def test_a_model_that_calls_nothing_fails_every_dialogue(benchmark):
    questions = [first(benchmark, category) for category in MULTI_TURN]
    answers, chats = held(benchmark, questions, [[DONE] * 20] * 4)
    for place, (question, answer) in enumerate(zip(questions, answers, strict=True)):
        score = benchmark.score(question, answer.text, answer.tokens)
        assert score.measures == {"accuracy": 0, "format": 1}
        assert "empty for turn 0" in score.reason
        assert answer.tokens == 5 * len(chats[place]) == 5 * len(question.truth["accepted"])


def test_the_history_has_the_form_of_the_training_data(benchmark):
    question = next(each for each in benchmark.questions if each.name == "multi_turn_base_0")
    _, chats = held(benchmark, [question], [right_steps(question)])
    asked = question.truth["entry"]["question"]
    assert chats[0][0] == question.messages
    assert chats[0][2][1]["content"].startswith(
        f"{prompt.HISTORY}\n<user> {asked[0][0]['content']} </user>\n\n<think> call </think>\n"
        '<tool_call>\n{"name": "cd", "parameters": {"folder": "document"}}\n'
    )
    seen = '{\\"current_working_directory\\": \\"document\\"}'
    assert (
        f'</tool_call>\n<obs> [{{"name": "cd", "results": "{seen}"}}' in chats[0][2][1]["content"]
    )
    assert chats[0][2][1]["content"].endswith(f"{DONE}\n\n<user> {asked[1][0]['content']} </user>")


def test_the_same_dialogue_held_again_starts_afresh(benchmark):
    question = first(benchmark, "multi_turn_base")
    answers, chats = held(benchmark, [question] * 3, [right_steps(question) for _ in range(3)])
    assert chats[0] == chats[1] == chats[2]
    scores = [benchmark.score(question, answer.text, 5) for answer in answers]
    assert [score.measures["accuracy"] for score in scores] == [1, 1, 1]
    assert not [name for name in vars(handler.simulator) if name.startswith("gdpo_verl")]


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        pytest.param("open", {"file": "{path}", "mode": "w"}, id="a builtin"),
        pytest.param("open('{path}', 'w') or ls", {}, id="a program for a name"),
        pytest.param("ls", {"a=open('{path}', 'w'), a": 1}, id="a program for a parameter"),
        pytest.param(
            "cd", {"folder": "' + str(open('{path}', 'w')) + '"}, id="a program for a value"
        ),
    ],
)
def test_what_the_model_writes_is_never_run_as_python(benchmark, name, parameters, tmp_path):
    def fill(text):
        return text.replace("{path}", str(tmp_path / "harm")) if isinstance(text, str) else text

    call = calling((fill(name), {fill(key): fill(value) for key, value in parameters.items()}))
    question = first(benchmark, "multi_turn_base")
    answers, chats = held(benchmark, [question], [[call, *[DONE] * 20]])
    benchmark.score(question, answers[0].text, 5)
    assert ("Error during execution" in chats[0][1][1]["content"]) == (name != "cd")
    assert not list(tmp_path.iterdir())


def test_the_calculator_is_not_asked_for_more_digits_than_it_can_give(benchmark):
    question = next(
        each
        for each in benchmark.questions
        if each.category in MULTI_TURN and "MathAPI" in each.truth["entry"]["involved_classes"]
    )
    calls = calling(
        ("power", {"base": 2, "exponent": 10}), ("power", {"base": 9, "exponent": 10**9})
    )
    _, chats = held(benchmark, [question], [[calls, *[DONE] * 20]])
    observed = chats[0][1][1]["content"]
    assert '{\\"result\\": 1024}' in observed
    assert observed.count("Error during execution") == 1


def test_a_dialogue_that_outgrows_the_model_ends_and_is_wrong(benchmark):
    question = first(benchmark, "multi_turn_base")
    replies = iter(
        [ModelAnswer(next(right_steps(question)), 5, "stop"), ModelAnswer("", 0, "prompt too long")]
    )
    (answer,) = run_dialogues(
        [benchmark.dialogue(question)], lambda asked: [next(replies) for _ in asked]
    )
    assert answer == ModelAnswer("[]", 5, "prompt too long")
    assert benchmark.score(question, answer.text, 5).measures == {"accuracy": 0, "format": 0}


def test_a_failure_of_the_simulated_apis_costs_one_dialogue(benchmark, monkeypatch):
    questions = [each for each in benchmark.questions if each.category == "multi_turn_base"][:2]
    execute = vars(handler._base)["execute_multi_turn_func_call"]

    def fail_for_one(*given, **options):
        if given[0] and questions[0].name in given:
            raise RuntimeError("a fault of the simulation")
        return execute(*given, **options)

    monkeypatch.setitem(vars(handler._base), "execute_multi_turn_func_call", fail_for_one)
    answers, _ = held(benchmark, questions, map(right_steps, questions))
    pairs = zip(questions, answers, strict=True)
    scores = [benchmark.score(question, answer.text, 5) for question, answer in pairs]
    assert [score.measures["accuracy"] for score in scores] == [0, 1]
    assert "a fault of the simulation" in answers[0].text
    assert "Error during inference" in scores[0].reason


# ------------------------------------------------------------------ the averages


def test_accuracies_and_averages_are_those_of_bfcl_evals_own_evaluation(benchmark, tmp_path):
    """Four answers of each category, some wrong, through ours and through bfcl-eval's `runner`."""
    chosen, steps = [], []
    for number, category in enumerate(CATEGORIES):
        of_category = [each for each in benchmark.questions if each.category == category][:4]
        for place, question in enumerate(of_category):
            right = place >= number % 4
            chosen.append(question)
            if category in MULTI_TURN:
                steps.append(list(right_steps(question)) if right else [DONE] * 20)
            else:
                wrong = DONE if "irrelevance" not in category else calling(("f", {}))
                steps.append(right_answer(question) if right else wrong)
    several = [place for place, each in enumerate(chosen) if each.category in MULTI_TURN]
    answers = [ModelAnswer(each, 5, "stop") if isinstance(each, str) else None for each in steps]
    dialogues, _ = held(benchmark, [chosen[n] for n in several], [steps[n] for n in several])
    for place, answer in zip(several, dialogues, strict=True):
        answers[place] = answer

    task = run.Preparation(benchmark, benchmark.sampling, chosen, [[1]] * len(chosen), {}, [])
    lines = run._judge(task, [[answer] for answer in answers])
    rows = run._summarise(task, lines)["results"]
    ours = {name: rows[name]["accuracy"]["mean"] for name in rows}

    theirs = evaluated_by_bfcl_eval(chosen, answers, tmp_path)
    assert {name: ours[name] for name in CATEGORIES} == theirs
    with (tmp_path / "score" / "data_overall.csv").open() as file:
        (table,) = csv.DictReader(file)
    for column, row in (
        ("Non-Live AST Acc", "v4_non_live"),
        ("Live Acc", "v4_live"),
        ("Multi Turn Acc", "multi_turn"),
    ):
        assert table[column] == f"{100 * ours[row]:.2f}%"

    # Version 3: https://gorilla.cs.berkeley.edu/blogs/13_bfcl_v3_multi_turn.html
    simple = sum(ours[name] for name in SIMPLE) / 3
    non_live = (simple + sum(ours[name] for name in NON_LIVE[3:])) / 5
    live = sum(ours[name] for name in LIVE) / 6  # four questions each
    multi_turn = sum(ours[name] for name in MULTI_TURN) / 4
    assert ours["non_live"] == pytest.approx(non_live)
    assert ours["live"] == pytest.approx(live)
    assert ours["average"] == pytest.approx((non_live + live + multi_turn) / 3)
    assert len(set(ours.values())) > 5


def evaluated_by_bfcl_eval(questions, answers, directory: Path):
    """{category: accuracy} that bfcl-eval finds in result files."""
    speaker = handler.Handler()
    for question, answer in zip(questions, answers, strict=True):
        several = question.category in MULTI_TURN
        text = json.loads(answer.text) if several else answer.text
        speaker.write({"id": question.name, "result": text}, directory / "result")
    bfcl_data.MODELS[bfcl_data.MODEL].model_handler = lambda **given: handler.Handler(
        **given, names=simulated_functions()
    )
    try:
        handler.runner.runner(
            [bfcl_data.MODEL],
            list(CATEGORIES),
            directory / "result",
            directory / "score",
            allow_missing=True,
        )
    finally:
        bfcl_data.MODELS[bfcl_data.MODEL].model_handler = handler.Handler
    return {
        file.name.removeprefix("BFCL_v4_").removesuffix("_score.json"): json.loads(
            file.read_text().splitlines()[0]
        )["accuracy"]
        for file in (directory / "score").rglob("*_score.json")
    }


def simulated_functions():
    return [
        json.loads(line)["name"]
        for file in (bfcl_data._package() / "data" / "multi_turn_func_doc").glob("*.json")
        for line in file.read_text().splitlines()
    ]


# ------------------------------------------------------------------ vLLM


@pytest.mark.real
@pytest.mark.slow
def test_questions_of_every_category_are_asked_through_vllm(benchmark, policy, tmp_path):
    rows = [
        make_row("bfcl", each.messages, "", ability="", extra_info={"id": each.name})
        for category in CATEGORIES
        for each in [each for each in benchmark.questions if each.category == category][:2]
    ]
    write_dataset(tmp_path, {"chosen": rows}, {})
    model = tmp_path / "model"
    shutil.copytree(policy, model)
    # A token of this policy is a character or two, and prompts have 16,000 characters.
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 16384}))
    out = tmp_path / "out.json"
    table = run_cli(
        *["evaluate", str(model), "bfcl", "--data", str(tmp_path / "chosen.parquet")],
        *["--max-tokens", "64", "--out", str(out)],
    )
    record, lines = result.read(out)
    found = record["benchmarks"]["bfcl"]
    assert Counter(line["category"] for line in lines) == dict.fromkeys(CATEGORIES, 2)
    assert {"non_live", "live", "multi_turn", "average"} <= set(found["results"])
    several = [line for line in lines if line["category"] in MULTI_TURN]
    asked = [json.loads(line["answer"]) for line in several if line["finish"] != "prompt too long"]
    assert len(asked) > len(several) / 2
    assert any(len(turns) > 1 for turns in asked)  # the user's next words, after an answer
    known = {question.name: question for question in benchmark.questions}
    for line in lines:
        judged = benchmark.score(known[line["question"]], line["answer"], line["tokens"])
        if line["finish"] != "prompt too long":
            assert judged.measures == line["measures"]
    assert "prompt of gdpo-verl prepare bfcl" in table
