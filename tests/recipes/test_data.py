"""The data sets made here: columns, determinism, disjoint splits, sound ground truths."""

import importlib.metadata
import importlib.util
import json
import sys

import pytest
from gdpo_verl.recipes.gsm8k import reasoning_gym
from gdpo_verl.recipes.gsm8k import rows as gsm8k
from gdpo_verl.recipes.tool_call import bfcl, prompt
from gdpo_verl.recipes.tool_turns import rows as tool_turns
from gdpo_verl.recipes.toolbox import rows as toolbox
from prepared import write, written
from processes import run
from test_prepare import problem

from gdpo_verl.lab import catalog
from gdpo_verl.lab.tasks import generated
from gdpo_verl.lab.tasks import rows as dataset_rows
from gdpo_verl.lab.tasks.examples import Example
from gdpo_verl.lab.tasks.rows import make_row, write_dataset
from gdpo_verl.rewards import gsm8k as gsm8k_reward
from gdpo_verl.rewards.tool_call import correctness_reward, format_reward


def needs(package):
    absent = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(absent, reason=f"needs {package}")


needs_bfcl, needs_sums = needs("bfcl_eval"), needs("reasoning_gym")


def assert_is_its_own_best_answer(truth):
    for strict in (True, False):
        assert format_reward(truth, truth, strict=strict) == 1.0, truth
        assert correctness_reward(truth, truth, strict=strict) == 3.0, truth


def test_a_prompt_numbers_its_tools_and_an_answer_has_one_line_a_call():
    blocks = [prompt.tool_block("f", "Does\n  f.", {"x": {"type": "integer"}})]
    blocks.append(prompt.tool_block("g", "Does g.", {}))
    system, user = prompt.messages(blocks, [prompt.turn("user", "Please f 3.")])
    assert (
        '1. Name: f\nDescription: Does f.\nParameters: {"x": {"type": "integer"}}\n'
        "2. Name: g\nDescription: Does g.\nParameters: {}\n"
    ) in system["content"]
    assert user["content"] == "**Dialogue Records History**\n<user> Please f 3. </user>"
    text = prompt.reference_answer("use f and g", [("f", {"x": 1}), ("g", {})])
    assert '\n{"name": "f", "parameters": {"x": 1}}\n{"name": "g", "parameters": {}}\n' in text
    assert_is_its_own_best_answer(text)


# --- every data set -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "drawn"),
    [
        (toolbox, True),
        (tool_turns, True),
        (gsm8k, False),
        pytest.param(bfcl, False, marks=needs_bfcl),
        pytest.param(reasoning_gym, True, marks=needs_sums),
    ],
)
def test_a_seed_decides_every_byte_and_no_seed_asks_a_held_out_question(tmp_path, module, drawn):
    options = {}
    if drawn:
        options = {"train": 640, "validation": 160}
    if module is gsm8k:
        options = {"source": write(tmp_path / "in.jsonl", [problem(n) for n in range(50)])}
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        module.prepare(tmp_path / name, seed=seed, **options)
    for file in ("train.parquet", "validation.parquet", "provenance.json"):
        contents = [(tmp_path / name / file).read_bytes() for name in "abc"]
        assert contents[0] == contents[1]
        assert contents[0] != contents[2]
    if drawn:  # so that no seed may draw what another holds out
        asked = {"train": set(), "validation": set()}
        for name in "ac":
            for split, size in options.items():
                rows = written(tmp_path / name, split)
                questions = {row["prompt"][-1]["content"] for row in rows}
                assert len(rows) == size
                assert len(questions) == size
                asked[split] |= questions
        assert asked["train"].isdisjoint(asked["validation"])


@pytest.mark.parametrize(
    ("task", "package", "command"),
    [
        ("bfcl", "bfcl_eval", "--no-deps bfcl-eval=="),
        ("reasoning-gym", "reasoning_gym", "reasoning-gym=="),
        pytest.param(
            "bfcl-v3", "bfcl_eval.utils", "--no-deps bfcl-eval.*tenacity", marks=needs_bfcl
        ),
    ],
)
def test_without_its_package_a_task_names_the_command_that_installs_it(
    tmp_path, monkeypatch, task, package, command
):
    monkeypatch.setitem(sys.modules, package, None)
    reasoning_gym.generator.cache_clear()
    with pytest.raises(ModuleNotFoundError, match=f"pip install {command}"):
        catalog.prepare(task, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_importing_the_data_package_imports_neither_torch_nor_verl():
    code = (
        "import sys\n"
        "from gdpo_verl.lab.catalog import DATA_SETS\n"
        "for data_set in DATA_SETS.values(): data_set.module()\n"
        "print(sorted({'torch', 'verl', 'transformers', 'datasets'} & {*sys.modules}))"
    )
    assert run(sys.executable, "-c", code).stdout.strip() == "[]"


# --- toolbox --------------------------------------------------------------------------


def test_toolbox_rows_list_the_needed_tool_and_truths_are_their_own_best_answers(tmp_path):
    # A change here changes everybody's data: raise the version and say so in the changelog.
    first = next(generated.examples("toolbox", "train", toolbox.draw_example, 0))
    assert first.question == "What is 84 in base 6?"
    assert first.calls == (("convert_base", {"number": 84, "base": 6}),)
    catalog.prepare("toolbox", tmp_path)
    for split, size in (("train", 2048), ("validation", 256)):
        rows = written(tmp_path, split)
        assert [row["extra_info"]["index"] for row in rows] == [*range(size)]
        for row in rows:
            truth = row["reward_model"]["ground_truth"]
            assert_is_its_own_best_answer(truth)
            call = json.loads(truth.splitlines()[2])
            assert toolbox.TOOLS[call["name"]].block in row["prompt"][0]["content"]
        assert len({row["prompt"][0]["content"] for row in rows}) > size / 2


def test_more_rows_than_there_are_questions_are_refused():
    tea = Example("Tea?", [], "")
    split = generated.split_of_question("Tea?")
    with pytest.raises(ValueError, match=f"x: no new {split} question after 1"):
        list(generated.examples("x", split, lambda rng: tea, 0))


# --- writing --------------------------------------------------------------------------


def tiny_row(index):
    chat = prompt.messages([], ["Hello."])
    info = {"index": index, "split": "train"}
    return make_row("toolbox", chat, "<think> a </think>", ability="x", extra_info=info)


def test_an_interrupted_write_leaves_the_old_files_and_nothing_of_its_own(tmp_path, monkeypatch):
    splits = {"train": [tiny_row(0), tiny_row(1)], "validation": [tiny_row(2)]}
    provenance = write_dataset(tmp_path, splits, {"license": "none"})
    assert json.loads((tmp_path / "provenance.json").read_text()) == provenance
    old = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    write_rows = dataset_rows._write_rows

    def interrupted(rows, where):
        write_rows(rows, where)
        if "validation" in where.name:
            raise KeyboardInterrupt

    monkeypatch.setattr(dataset_rows, "_write_rows", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_dataset(tmp_path, splits | {"train": [tiny_row(7)]}, {})
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == old


def test_a_value_of_a_kind_absent_from_the_first_thousand_rows_is_kept(tmp_path):
    rows = [tiny_row(index) for index in range(dataset_rows._BATCH + 1)]
    for row in rows:
        row["extra_info"] |= {"note": None, "share": 1}
    rows[-1]["extra_info"] |= {"note": "late", "share": 0.5, "more": 1}
    write_dataset(tmp_path, {"train": rows}, {})
    found = written(tmp_path, "train")
    assert len(found) == len(rows)
    assert found[0]["extra_info"] == rows[0]["extra_info"] | {"more": None}
    assert found[-1]["extra_info"] == rows[-1]["extra_info"]


# --- bfcl -----------------------------------------------------------------------------


@needs_bfcl
def test_bfcl_keeps_every_question_that_the_leaderboards_checker_accepts(tmp_path):
    provenance = bfcl.prepare(tmp_path, seed=0)
    assert "bfcl_eval.constants.model_config" not in sys.modules  # the stub has gone
    assert "row simple_python_" in catalog.provenance_notes(provenance)[1]
    rows = written(tmp_path, "train") + written(tmp_path, "validation")
    for row in rows:
        assert_is_its_own_best_answer(row["reward_model"]["ground_truth"])
    if importlib.metadata.version("bfcl-eval") != "2026.3.23":
        pytest.skip("the counts belong to bfcl-eval 2026.3.23")
    assert (len(rows), len(provenance["rejected"])) == (2342, 9)


# --- Reasoning Gym --------------------------------------------------------------------


def assert_earns_everything(text, truth):
    for strict in (True, False):
        score = gsm8k_reward.compute_score("gsm8k", text, truth, strict=strict)
        assert (score["correctness"], score["integer"], score["format"]) == (1.0, 1.0, 1.0)


def test_what_the_system_message_shows_earns_everything():
    text = gsm8k.SYSTEM.partition("\n")[2].replace("the number", "1000")
    assert_earns_everything(text, "1000")


@needs_sums
@pytest.mark.parametrize("name", ["reasoning-gym", "short-sums", "gsm-symbolic"])
def test_truths_and_worked_examples_earn_everything_and_no_example_is_asked(name, tmp_path):
    few = {"shots": 4, "train": 512, "validation": 64}
    assert reasoning_gym.prepare(tmp_path, name=name, **few)["shots"] == 4
    rows = written(tmp_path, "train") + written(tmp_path, "validation")
    before = rows[0]["prompt"][:-1]
    shown = {turn["content"] for turn in before}
    for asked, answered in zip(before[1::2], before[2::2], strict=True):
        expression = answered["content"].removeprefix("<think>").partition(" =")[0]
        assert name == "gsm-symbolic" or expression in asked["content"]
        assert_earns_everything(answered["content"], str(int(eval(expression))))
    form = "{}" if name == "short-sums" else reasoning_gym.QUESTION  # the policy's phrases know it
    most = 3 if name == "short-sums" else 4
    for row in rows:
        *context, question = row["prompt"]
        truth = row["reward_model"]["ground_truth"]
        assert context == before
        assert question["content"] not in shown
        assert gsm8k_reward.parse_ground_truth(truth) == truth
        assert_earns_everything(f"<think> so </think>\n<answer>{truth}</answer>", truth)
        if name != "gsm-symbolic":
            expression = row["extra_info"]["expression"]
            assert question["content"] == form.format(expression)
            assert truth == str(eval(expression))
            numbers = [int(each) for each in expression.split()[::2]]
            assert max(numbers) <= 30
            assert 2 <= len(numbers) <= most
