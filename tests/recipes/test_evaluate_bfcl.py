"""BFCL: what is asked, by bfcl-eval's own loop, checkers and evaluation, and through verl."""

import ast
import csv
import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from statistics import mean
from types import SimpleNamespace

import pytest

pytest.importorskip("bfcl_eval", reason="needs bfcl-eval and what its scoring imports")
pytest.importorskip("tree_sitter", reason="needs bfcl-eval and what its scoring imports")

from gdpo_verl.recipes.tool_call import bfcl as bfcl_data
from gdpo_verl.recipes.tool_call import bfcl_turns, bfcl_v3, prompt
from gdpo_verl.recipes.tool_call.bfcl_v3 import MULTI_TURN, SINGLE_TURN
from processes import run_cli

from gdpo_verl.lab.evaluate import answers, result
from gdpo_verl.lab.tasks.build import sift
from gdpo_verl.lab.tasks.rows import make_row, write_dataset
from gdpo_verl.rewards import bfcl as reward
from gdpo_verl.rewards.parse_error import ParseError

DONE = "<think> done </think>\n<response> done </response>"
CATEGORIES = (*SINGLE_TURN, *MULTI_TURN)
FRAME = prompt.PromptFrame()
HINTED = ("simple_java", "simple_javascript")  # which want every value as a text


@pytest.fixture(scope="module")
def questions():
    """{category: rows} of every question, each with its ground truth read."""
    found = {}
    for category in CATEGORIES:
        rows = list(bfcl_v3.rows(category, FRAME))
        for row in rows:
            row["truth"] = json.loads(row["reward_model"]["ground_truth"])
        found[category] = rows
    return found


def score(row, text):
    return reward.compute_score(row["data_source"], text, row["reward_model"]["ground_truth"])


# ------------------------------------------------------------------ perfect answers


def calling(*calls):
    return prompt.reference_answer("call", calls)


def right_answer(row):
    """A perfect model's answer to a question that is asked once."""
    category = row["data_source"]
    if category == "live_relevance":
        return calling(("anything", {}))
    if "irrelevance" in category:
        return DONE
    calls = bfcl_data.first_answer(row["truth"]["accepted"])
    if category in HINTED:
        for _, given in calls:
            for key, value in given.items():
                given[key] = value if isinstance(value, str) else json.dumps(value)
    return prompt.reference_answer("use it", calls)


def right_steps(row):
    """A perfect model's part of a dialogue: the calls of each turn at once, then the end."""
    entry = row["truth"]["entry"]
    held_back = [doc for docs in entry.get("missed_function", {}).values() for doc in docs]
    documents = {doc["name"]: doc for doc in [*entry["function"], *held_back]}
    for turn in row["truth"]["accepted"]:
        if turn:
            calls = [named(each, documents) for each in turn]
            yield calling(*calls)
        yield DONE


def named(expression, documents):
    """``f(1, b=2)`` as a name and parameters."""
    call = ast.parse(expression, mode="eval").body
    names = documents[call.func.id]["parameters"]["properties"]
    given = {name: ast.literal_eval(value) for name, value in zip(names, call.args, strict=False)}
    given |= {each.arg: ast.literal_eval(each.value) for each in call.keywords}
    return call.func.id, given


def held(row, steps):
    """A dialogue in which ``steps`` are said: what is said, the chats and the verdict."""
    script, chats = iter(steps), []

    def ask(messages):
        chats.append(messages)
        text = next(script)
        if text is None:
            raise bfcl_turns.PromptTooLong
        return bfcl_turns.Step(text, [1], [1, 2], {})

    said, found = bfcl_turns.hold(row["truth"], FRAME, ask)
    return said, chats, found


# ------------------------------------------------------------------ what is asked


def training_row(messages):
    return make_row("any", messages, "x", ability="", extra_info={"index": 0})


def test_every_question_of_version_3_is_asked_in_the_prompt_that_prepare_writes(questions):
    everything = [row for rows in questions.values() for row in rows]
    assert len(everything) == 4441
    asked = {row["extra_info"]["id"]: row for row in everything}
    splits = sift(bfcl_data.questions(), bfcl_data.convert).by_split
    for row in splits["train"] + splits["validation"]:
        question = asked[row["extra_info"]["id"]]
        assert question["prompt"] == row["prompt"]
        assert question["data_source"] == row["extra_info"]["category"]
    # Java's values are asked for as texts, as the leaderboard does.
    question = questions["simple_java"][0]
    assert "in string representation" in question["prompt"][0]["content"]
    (function,) = question["truth"]["functions"]
    assert function["parameters"]["properties"]["controller"]["type"] == "any"
    for row in everything:
        several = row["data_source"] in MULTI_TURN
        assert row["agent_name"] == (bfcl_v3.AGENT if several else "single_turn_agent")


def test_the_prompt_is_that_of_the_training_rows(tmp_path):
    tools = [prompt.tool_block("add", "Adds.", {"a": {"type": "integer"}})] * 2
    frame = prompt.PromptFrame("Help.\n\nTools:\n", "\nThink, then call.")
    row = training_row(prompt.messages(tools, ["<user> 1+1? </user>"], frame))
    other = training_row([{"role": "user", "content": "1+1?"}])
    write_dataset(tmp_path / "own", {"train": [row, other]}, {})
    file = str(tmp_path / "own" / "train.parquet")
    assert bfcl_v3.frame_of(file) == frame
    found = bfcl_v3.prepare(tmp_path / "out", source=file)
    assert found["prompt"] == file
    assert {name: each["rows"] for name, each in found["files"].items()} == {
        "test.parquet": 3641,
        "multi_turn.parquet": 800,
    }
    (question, *_) = bfcl_v3.rows("simple_python", frame)
    system = question["prompt"][0]["content"]
    assert system.startswith("Help.\n\nTools:\n")
    assert system.endswith("\n\nThink, then call.")
    assert prompt.HEADER not in system


# ------------------------------------------------------------------ what an answer is worth


@pytest.mark.parametrize(
    ("category", "text", "error"),
    [
        ("simple_python", "", "NO_CALL"),
        ("simple_python", "<tool_call>\n{}\n</tool_call>", "NOT_A_CALL"),
        # An argument is missing.
        ("simple_python", calling(("calculate_triangle_area", {"base": "ten"})), "NONE"),
        # What the checker itself fails on.
        ("simple_java", calling(("GeometryPresentation.createPresentation", {"x": 3})), "NONE"),
        ("irrelevance", calling(("anything", {})), "NONE"),
        ("live_relevance", DONE, "NO_CALL"),
    ],
)
def test_it_says_what_is_wrong_with_an_answer(questions, category, text, error):
    found = score(questions[category][0], text)
    form = float(error == "NONE")
    code = int(ParseError[error])
    assert found == {"score": form, "format": form, "correctness": 0.0, "parse_error": code}


def test_a_ground_truth_that_is_none_earns_nothing():
    for truth in ("", "3", "{}", '{"category": "x"}'):
        found = reward.compute_score("simple_python", DONE, truth)
        assert found["parse_error"] == ParseError.GROUND_TRUTH
        assert found["score"] == 0


# ------------------------------------------------------------------ dialogues


def test_the_history_has_the_form_of_the_training_data(questions):
    row = questions["multi_turn_base"][0]
    steps, chats, found = held(row, right_steps(row))
    (first_words,), (next_words,) = row["truth"]["entry"]["question"][:2]
    assert chats[0] == row["prompt"]
    assert len(steps) == len(chats)
    history = chats[2][1]["content"]
    assert history.startswith(
        f"{prompt.HISTORY}\n<user> {first_words['content']} </user>\n\n<think> call </think>\n"
        '<tool_call>\n{"name": "cd", "parameters": {"folder": "document"}}\n'
    )
    seen = '{\\"current_working_directory\\": \\"document\\"}'
    assert f'</tool_call>\n<obs> [{{"name": "cd", "results": "{seen}"}}' in history
    assert history.endswith(f"{DONE}\n\n<user> {next_words['content']} </user>")
    assert found["correctness"] == 1


def test_no_dialogue_knows_another_of_the_same_question(questions):
    row = questions["multi_turn_base"][0]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: held(row, right_steps(row)), range(8)))
    assert [each[2]["correctness"] for each in found] == [1] * 8
    assert all(chats == found[0][1] for _, chats, _ in found)
    assert not [name for name in vars(bfcl_turns.simulator) if name.startswith("gdpo_verl")]


def test_what_the_model_writes_is_never_run_as_python(questions, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    harmful = [
        ("open", {"file": "harm", "mode": "w"}),
        ("open('harm', 'w') or ls", {}),
        ("ls", {"a=open('harm', 'w'), a": 1}),
        ("cd", {"folder": "' + str(open('harm', 'w')) + '"}),
    ]
    steps = [calling(call) for call in harmful] + [DONE] * 20
    _, chats, _ = held(questions["multi_turn_base"][0], steps)
    assert chats[4][1]["content"].count("Error during execution") == 3  # there is no such folder
    assert not list(tmp_path.iterdir())


def test_the_calculator_is_not_asked_for_more_digits_than_it_can_give(questions):
    dialogues = [row for category in MULTI_TURN for row in questions[category]]
    calculating = [
        row for row in dialogues if "MathAPI" in row["truth"]["entry"]["involved_classes"]
    ]
    small, large = {"base": 2, "exponent": 10}, {"base": 9, "exponent": 10**9}
    steps = [calling(("power", small), ("power", large)), *[DONE] * 20]
    _, chats, _ = held(calculating[0], steps)
    observed = chats[1][1]["content"]
    assert '{\\"result\\": 1024}' in observed
    assert observed.count("Error during execution") == 1


def test_a_dialogue_that_outgrows_the_model_ends_and_is_wrong(questions):
    row = questions["multi_turn_base"][0]
    steps, _, found = held(row, [next(right_steps(row)), None])
    assert (len(steps), found["correctness"], found["format"]) == (1, 0, 0)


def test_a_failure_of_the_simulated_apis_costs_one_dialogue(questions, monkeypatch, caplog):
    rows = questions["multi_turn_base"][:2]
    execute = vars(bfcl_turns._base)["execute_multi_turn_func_call"]

    def fail_for_one(*given, **options):
        if given[0] and rows[0]["extra_info"]["id"] in given:
            raise RuntimeError("a fault of the simulation")
        return execute(*given, **options)

    monkeypatch.setitem(vars(bfcl_turns._base), "execute_multi_turn_func_call", fail_for_one)
    found = [held(row, right_steps(row))[2]["correctness"] for row in rows]
    assert found == [0, 1]
    assert "a fault of the simulation" in caplog.text


# ------------------------------------------------------------------ the averages


def test_accuracies_and_averages_are_those_of_bfcl_evals_own_evaluation(questions, tmp_path):
    """Four answers of each category, some wrong, through ours and through bfcl-eval's `runner`."""
    values, sources, said = {}, {}, {}
    for number, category in enumerate(CATEGORIES):
        for place, row in enumerate(questions[category][:4]):
            name = row["extra_info"]["id"]
            right = place >= number % 4
            if category in MULTI_TURN:
                steps, _, found = held(row, right_steps(row) if right else [DONE] * 20)
                turns = [[]]  # each ends with what is no call
                for step in steps:
                    turns[-1].append(step.text)
                    if step.text == DONE:
                        turns.append([])
                said[name] = turns[:-1]
            else:
                wrong = calling(("f", {})) if "irrelevance" in category else DONE
                said[name] = right_answer(row) if right else wrong
                found = score(row, said[name])
            values[name] = found["correctness"]
            sources[name] = category
    ours = {
        row: result.estimate_row(values, sources, parts)["mean"]
        for row, parts in result.aggregate_rows(sources.values()).items()
    }
    for number, category in enumerate(CATEGORIES):
        # Java's and JavaScript's lists and maps want literals of these languages, not JSON.
        assert category in HINTED or ours[category] == 1 - number % 4 / 4

    theirs = evaluated_by_bfcl_eval(said, tmp_path)
    assert {name: ours[name] for name in CATEGORIES} == theirs
    with (tmp_path / "score" / "data_overall.csv").open() as file:
        (table,) = csv.DictReader(file)
    columns = {
        "Non-Live AST Acc": "v4_non_live",
        "Live Acc": "v4_live",
        "Multi Turn Acc": "multi_turn",
    }
    for column, row in columns.items():
        assert table[column] == f"{100 * ours[row]:.2f}%"

    # Version 3: https://gorilla.cs.berkeley.edu/blogs/13_bfcl_v3_multi_turn.html
    simple = mean(ours[f"simple_{name}"] for name in ("python", "java", "javascript"))
    others = [ours[name] for name in ("multiple", "parallel", "parallel_multiple", "irrelevance")]
    live = mean(ours[name] for name in SINGLE_TURN if name.startswith("live"))  # four each
    multi_turn = mean(ours[name] for name in MULTI_TURN)
    assert ours["average"] == pytest.approx(mean([mean([simple, *others]), live, multi_turn]))
    assert len(set(ours.values())) > 5


def evaluated_by_bfcl_eval(said, directory):
    """{category: accuracy} that bfcl-eval finds in result files."""
    results, scores = directory / "result", directory / "score"
    speaker = bfcl_turns.Handler()
    for name, text in said.items():
        speaker.write({"id": name, "result": text}, results)
    documents = (reward.package() / "data" / "multi_turn_func_doc").glob("*.json")
    simulated = []
    for file in documents:
        simulated += [json.loads(line)["name"] for line in file.read_text().splitlines()]
    about = SimpleNamespace(
        model_name=reward.MODEL,
        model_handler=lambda model_name, **_: bfcl_turns.Handler(model_name, names=simulated),
        display_name="",
        url="",
        org="",
        license="",
        input_price=None,
        output_price=None,
        is_fc_model=False,
        underscore_to_dot=False,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(reward.MODELS, reward.MODEL, about)
        bfcl_turns.runner.runner(
            [reward.MODEL], list(CATEGORIES), results, scores, allow_missing=True
        )
    found = {}
    for file in scores.rglob("*_score.json"):
        category = file.name.removeprefix("BFCL_v4_").removesuffix("_score.json")
        found[category] = json.loads(file.read_text().splitlines()[0])["accuracy"]
    return found


# ------------------------------------------------------------------ verl


@pytest.mark.real
@pytest.mark.slow
def test_questions_and_dialogues_are_asked_through_verl(questions, policy, tmp_path):
    chosen = {"test": [], "multi_turn": []}
    for category in CATEGORIES:
        row = questions[category][0]
        columns = {key: value for key, value in row.items() if key != "truth"}
        chosen["multi_turn" if category in MULTI_TURN else "test"].append(columns)
    write_dataset(tmp_path, chosen, {})
    model = tmp_path / "model"
    shutil.copytree(policy, model)
    # A token of this policy is a character or two, and prompts have 16,000 characters.
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 16384}))
    out = tmp_path / "out"
    files = [f"--data={tmp_path}/{name}.parquet" for name in chosen]
    settings = (
        "hardware=cpu data.max_prompt_length=16320 data.max_response_length=64 "
        "actor_rollout_ref.rollout.max_model_len=16384"
    )
    recipe = ["--recipe", "tool_call/leaderboard", *settings.split()]
    table = run_cli("evaluate", str(model), *recipe, *files, "--out", str(out))
    assert "could not be read" in table
    assert set(answers.read(out).sources.values()) == set(CATEGORIES)
    results = json.loads((out / "evaluation.json").read_text())["results"]
    assert {"non_live", "live", "multi_turn", "average"} <= results.keys()
    lines = (out / "validation" / "0.jsonl").read_text().splitlines()
    assert len(lines) == len(CATEGORIES)
