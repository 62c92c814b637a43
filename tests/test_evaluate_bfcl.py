"""BFCL: what is asked, by bfcl-eval's own loop, checkers and evaluation, and through vLLM."""

from __future__ import annotations

import ast
import csv
import json
import shutil
from collections import Counter, defaultdict
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("bfcl_eval", reason="needs bfcl-eval and what its scoring imports")
pytest.importorskip("tree_sitter", reason="needs bfcl-eval and what its scoring imports")

from conftest import run_cli
from test_evaluate import judged

from gdpo_verl.lab.evaluate import result
from gdpo_verl.lab.evaluate.generate import run_dialogues
from gdpo_verl.lab.tasks import bfcl as bfcl_data
from gdpo_verl.lab.tasks import prompt
from gdpo_verl.lab.tasks import toolbox as toolbox_data
from gdpo_verl.lab.tasks.benchmark import ModelAnswer, open_benchmark
from gdpo_verl.lab.tasks.bfcl import handler
from gdpo_verl.lab.tasks.bfcl.benchmark import CATEGORIES, LIVE, MULTI_TURN, NON_LIVE, SIMPLE
from gdpo_verl.lab.tasks.rows import make_row, write_dataset
from gdpo_verl.rewards.parse_error import ParseError

DONE = "<think> done </think>\n<response> done </response>"


@pytest.fixture(scope="module")
def benchmark():
    opened = open_benchmark("bfcl")
    opened.questions = opened.load(None).items
    return opened


# ------------------------------------------------------------------ perfect answers


def first(benchmark, category):
    return next(each for each in benchmark.questions if each.category == category)


def calling(*calls):
    lines = [json.dumps({"name": name, "parameters": parameters}) for name, parameters in calls]
    block = "\n".join(["<tool_call>", *lines, "</tool_call>"])
    return f"<think> call </think>\n{block}"


def right_answer(question):
    """A perfect model's answer to a question that is asked once."""
    if question.category == "live_relevance":
        return calling(("anything", {}))
    if "irrelevance" in question.category:
        return DONE
    calls = bfcl_data.first_answer(question.truth["accepted"])
    if question.category in SIMPLE[1:]:  # Java and JavaScript want every value as a text
        calls = [
            (name, {k: v if isinstance(v, str) else json.dumps(v) for k, v in given.items()})
            for name, given in calls
        ]
    return prompt.reference_answer("use it", calls)


def right_steps(question):
    """A perfect model's part of a dialogue: the calls of each turn at once, then the end."""
    entry = question.truth["entry"]
    held_back = [doc for docs in entry.get("missed_function", {}).values() for doc in docs]
    documents = {doc["name"]: doc for doc in [*entry["function"], *held_back]}
    for turn in question.truth["accepted"]:
        if turn:
            yield calling(*[named(each, documents) for each in turn])
        yield DONE


def named(expression, documents):
    """``f(1, b=2)`` as a name and parameters."""
    call = ast.parse(expression, mode="eval").body
    names = documents[call.func.id]["parameters"]["properties"]
    given = {name: ast.literal_eval(value) for name, value in zip(names, call.args, strict=False)}
    given |= {each.arg: ast.literal_eval(each.value) for each in call.keywords}
    return call.func.id, given


def held(benchmark, questions, steps):
    """Dialogues in which ``steps`` of each question is said: answers, chats and scores."""
    scripts = [iter(each) for each in steps]
    chats = defaultdict(list)

    def answer_all(asked):
        for place, messages in asked:
            chats[place].append(messages)
        return [ModelAnswer(next(scripts[place]), 5, "stop") for place, _ in asked]

    answers = run_dialogues([benchmark.dialogue(question) for question in questions], answer_all)
    pairs = zip(questions, answers, strict=True)
    return answers, chats, [benchmark.score(each, answer.text, 5) for each, answer in pairs]


# ------------------------------------------------------------------ what is asked


def training_row(messages):
    return make_row("any", messages, "x", ability="", extra_info={"index": 0})


def test_every_question_of_version_3_is_asked_in_the_prompt_that_prepare_writes(benchmark):
    assert len(benchmark.questions) == 4441
    assert {question.category for question in benchmark.questions} == set(CATEGORIES)
    asked = {question.name: question for question in benchmark.questions}
    for row in [row for split in bfcl_data.accepted_rows()[0].values() for row in split]:
        question = asked[row["extra_info"]["id"]]
        assert question.messages == row["prompt"]
        assert question.category == row["extra_info"]["category"]
    # Java's values are asked for as texts, as the leaderboard does.
    question = first(benchmark, "simple_java")
    assert "in string representation" in question.messages[0]["content"]
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


def test_training_rows_that_cannot_be_read_are_refused_and_those_without_tools_ignored(tmp_path):
    with pytest.raises(ValueError, match=r"--prompt-from.*Write it with: gdpo-verl prepare rlla"):
        open_benchmark("bfcl", prompt_from=["data/rlla/nowhere.parquet"]).load(None)
    opened = open_benchmark("bfcl", prompt_from=[str(tmp_path / "train.parquet")])
    write_dataset(tmp_path, {"train": [{"question": "1+1?"}]}, {})
    with pytest.raises(ValueError, match=r"cannot read prompts.*prompt"):
        opened.load(None)
    write_dataset(tmp_path, {"train": [training_row([{"role": "user", "content": "1+1?"}])]}, {})
    assert opened.load(None).about["prompt"] == "prompt of gdpo-verl prepare bfcl"


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


@pytest.mark.parametrize(
    ("category", "text", "reason", "error"),
    [
        ("simple_python", "", "Wrong number of functions", "NO_CALL"),
        ("simple_python", "<tool_call>\n{}\n</tool_call>", "NOT_A_CALL", "NOT_A_CALL"),
        # An argument is missing.
        ("simple_python", calling(("calculate_triangle_area", {"base": "ten"})), "height", "NONE"),
        ("irrelevance", calling(("anything", {})), "", "NONE"),
        ("live_relevance", DONE, "", "NO_CALL"),
    ],
)
def test_it_says_what_is_wrong_with_an_answer(benchmark, category, text, reason, error):
    found = benchmark.score(first(benchmark, category), text, 5)
    assert found.measures == {"accuracy": 0, "format": float(error == "NONE")}
    assert reason in found.reason
    assert found.error is ParseError[error]


# ------------------------------------------------------------------ dialogues


@pytest.mark.parametrize("category", MULTI_TURN)
def test_the_expected_calls_pass_bfcl_evals_own_loop_and_checker(benchmark, category):
    questions = [each for each in benchmark.questions if each.category == category][::8]
    _, _, scores = held(benchmark, questions, map(right_steps, questions))
    for question, score in zip(questions, scores, strict=True):
        assert score.measures == {"accuracy": 1, "format": 1}, (question.name, score.reason)


def test_the_history_has_the_form_of_the_training_data_and_no_dialogue_knows_another(benchmark):
    question = next(each for each in benchmark.questions if each.name == "multi_turn_base_0")
    steps = [right_steps(question) for _ in range(3)]
    answers, chats, scores = held(benchmark, [question] * 3, steps)
    (first_words,), (next_words,) = question.truth["entry"]["question"][:2]
    assert chats[0][0] == question.messages
    assert answers[0].tokens == 5 * len(chats[0])
    history = chats[0][2][1]["content"]
    assert history.startswith(
        f"{prompt.HISTORY}\n<user> {first_words['content']} </user>\n\n<think> call </think>\n"
        '<tool_call>\n{"name": "cd", "parameters": {"folder": "document"}}\n'
    )
    seen = '{\\"current_working_directory\\": \\"document\\"}'
    assert f'</tool_call>\n<obs> [{{"name": "cd", "results": "{seen}"}}' in history
    assert history.endswith(f"{DONE}\n\n<user> {next_words['content']} </user>")
    assert chats[0] == chats[1] == chats[2]
    assert [score.measures["accuracy"] for score in scores] == [1, 1, 1]
    assert not [name for name in vars(handler.simulator) if name.startswith("gdpo_verl")]


def test_what_the_model_writes_is_never_run_as_python(benchmark, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    harmful = [
        ("open", {"file": "harm", "mode": "w"}),
        ("open('harm', 'w') or ls", {}),
        ("ls", {"a=open('harm', 'w'), a": 1}),
        ("cd", {"folder": "' + str(open('harm', 'w')) + '"}),
    ]
    steps = [calling(call) for call in harmful] + [DONE] * 20
    _, chats, _ = held(benchmark, [first(benchmark, "multi_turn_base")], [steps])
    assert chats[0][4][1]["content"].count("Error during execution") == 3  # there is no such folder
    assert not list(tmp_path.iterdir())


def test_the_calculator_is_not_asked_for_more_digits_than_it_can_give(benchmark):
    with_calculator = (
        each
        for each in benchmark.questions
        if each.category in MULTI_TURN and "MathAPI" in each.truth["entry"]["involved_classes"]
    )
    small, large = {"base": 2, "exponent": 10}, {"base": 9, "exponent": 10**9}
    steps = [calling(("power", small), ("power", large)), *[DONE] * 20]
    _, chats, _ = held(benchmark, [next(with_calculator)], [steps])
    observed = chats[0][1][1]["content"]
    assert '{\\"result\\": 1024}' in observed
    assert observed.count("Error during execution") == 1


def test_a_dialogue_that_outgrows_the_model_ends_and_is_wrong(benchmark):
    question = first(benchmark, "multi_turn_base")
    step = ModelAnswer(next(right_steps(question)), 5, "stop")
    replies = iter([[step], [ModelAnswer("", 0, "prompt too long")]])
    (answer,) = run_dialogues([benchmark.dialogue(question)], lambda asked: next(replies))
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
    answers, _, scores = held(benchmark, questions, map(right_steps, questions))
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
    answers = [ModelAnswer(each, 5, "stop") for each in steps]
    dialogues, _, _ = held(benchmark, [chosen[n] for n in several], [steps[n] for n in several])
    for place, answer in zip(several, dialogues, strict=True):
        answers[place] = answer
    rows = judged(benchmark, chosen, [[answer] for answer in answers])[1]["results"]
    ours = {name: rows[name]["accuracy"]["mean"] for name in rows}
    for number, category in enumerate(CATEGORIES):
        # Java's and JavaScript's lists and maps want literals of these languages, not JSON.
        assert category in SIMPLE[1:] or ours[category] == 1 - number % 4 / 4

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
    assert ours["average"] == pytest.approx((non_live + live + multi_turn) / 3)
    assert len(set(ours.values())) > 5


def evaluated_by_bfcl_eval(questions, answers, directory: Path):
    """{category: accuracy} that bfcl-eval finds in result files."""
    speaker = handler.Handler()
    for question, answer in zip(questions, answers, strict=True):
        several = question.category in MULTI_TURN
        text = json.loads(answer.text) if several else answer.text
        speaker.write({"id": question.name, "result": text}, directory / "result")
    documents = (bfcl_data._package() / "data" / "multi_turn_func_doc").glob("*.json")
    simulated = [
        json.loads(line)["name"] for file in documents for line in file.read_text().splitlines()
    ]
    about = SimpleNamespace(
        model_name=bfcl_data.MODEL,
        model_handler=lambda model_name, **_: handler.Handler(model_name, names=simulated),
        **dict.fromkeys(("display_name", "url", "org", "license"), ""),
        **dict.fromkeys(("input_price", "output_price")),
        **dict.fromkeys(("is_fc_model", "underscore_to_dot"), False),
    )
    folders = directory / "result", directory / "score"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(bfcl_data.MODELS, bfcl_data.MODEL, about)
        handler.runner.runner([bfcl_data.MODEL], list(CATEGORIES), *folders, allow_missing=True)
    found = {}
    for file in folders[1].rglob("*_score.json"):
        category = file.name.removeprefix("BFCL_v4_").removesuffix("_score.json")
        found[category] = json.loads(file.read_text().splitlines()[0])["accuracy"]
    return found


# ------------------------------------------------------------------ vLLM


@pytest.mark.real
@pytest.mark.slow
def test_questions_of_every_category_are_asked_through_vllm(benchmark, policy, tmp_path):
    rows = [
        make_row("bfcl", each.messages, "x", ability="", extra_info={"id": each.name})
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
