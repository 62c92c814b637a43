"""`gdpo-verl prepare` on small files of our own writing in the published forms."""

import json
from pathlib import Path

import pytest
from fake_verl import word_tokenizer
from gdpo_verl.recipes.code import rows as eurus2_code
from gdpo_verl.recipes.gsm8k import rows as gsm8k
from gdpo_verl.recipes.math_length import rows as deepscaler
from gdpo_verl.recipes.tool_call import prompt
from gdpo_verl.recipes.tool_call import rows as rlla
from prepared import rejected, truths, write, written
from tokenizers import pre_tokenizers

from gdpo_verl.lab import catalog, cli
from gdpo_verl.lab.tasks import build
from gdpo_verl.lab.tasks.source import Record


@pytest.fixture(autouse=True)
def _work(tmp_path, monkeypatch):
    """Work in a folder of the test's own."""
    monkeypatch.chdir(tmp_path)


def problem(number):
    return {"question": f"What is {number} + 1?", "answer": f"Add 1.\n#### {number + 1}"}


OUT = Path("out")
NO_NUMBER = {"question": "?", "answer": "no number"}


# --- GSM8K ----------------------------------------------------------------------------


def test_gsm8k_takes_what_stands_behind_the_hashes_and_the_provenance_says_from_where():
    behind = {"question": " How much? ", "answer": "#1 #### 1\n#### 1,000 "}
    splits = {"train": [problem(1), behind], "validation": [problem(2)], "test": [problem(3)]}
    for split, rows in splits.items():
        write(f"in/{split}.jsonl", rows)
    found = gsm8k.prepare(OUT, source="in", seed=5, validation=9)
    assert truths(OUT, "train") == ["2", "1,000"]
    assert truths(OUT, "validation") == ["3"]
    row = written(OUT, "train")[1]
    assert row["prompt"] == [*gsm8k.turns(), {"role": "user", "content": "How much?"}]
    place = {"index": 1, "split": "train", "file": "train.jsonl", "row": 1}
    assert row["extra_info"] == place
    assert found["source"]["path"] == "in"
    assert list(found["source"]["files"]) == ["test.jsonl", "train.jsonl", "validation.jsonl"]
    assert {len(digest) for digest in found["source"]["files"].values()} == {64}
    assert found["splits"] == {"train": "train", "validation": "validation"}
    settings = {"seed": 5, "validation": 9, "model": None, "max_prompt_length": None}
    assert found["settings"] == settings


@pytest.mark.parametrize("shots", [0, 4])
def test_worked_examples_stand_before_the_questions_of_training_and_evaluation(shots):
    source = write("in.jsonl", [problem(n) for n in range(20)])
    assert gsm8k.prepare(OUT, source=source, shots=shots)["shots"] == shots
    for split in ("train", "validation"):
        *before, last = written(OUT, split)[0]["prompt"]
        assert before[0] == {"role": "system", "content": gsm8k.SYSTEM}
        assert [turn["role"] for turn in before[1:]] == ["user", "assistant"] * shots
        assert last["content"].startswith("What is")


# --- DeepScaleR -----------------------------------------------------------------------


def test_deepscaler_has_a_tenth_held_out_of_what_is_left():
    rows = [{"problem": f"Halve {n}.", "answer": rf"\frac{{{n}}}{{2}}"} for n in range(20)]
    del rows[9]["answer"]
    provenance = deepscaler.prepare(OUT, source=write("in.json", rows))
    assert rejected(provenance) == [(9, "columns")]
    train, (row,) = written(OUT, "train"), written(OUT, "validation")
    assert [row["extra_info"]["index"] for row in train] == list(range(18))
    assert "1 rows held out of train" in provenance["splits"]["validation"]
    source = rows[row["extra_info"]["row"]]
    assert row["reward_model"]["ground_truth"] == source["answer"]
    request = "Reason step by step and put the final answer in \\boxed{}."
    assert row["prompt"] == [{"role": "user", "content": f"{source['problem']}\n\n{request}"}]


# --- Eurus-2 --------------------------------------------------------------------------


def coding(source, truth, text="Double n."):
    return {
        "data_source": source,
        "prompt": [
            {"role": "system", "content": "[ASSESS] [ADVANCE]"},
            {"role": "user", "content": text},
        ],
        "ability": "code",
        "reward_model": {"ground_truth": truth, "style": "rule"},
        "extra_info": {"index": 0, "split": "dummy"},
    }


DOUBLE = json.dumps({"inputs": ["1\n", "2\n"], "outputs": ["2\n", "4\n"]})
CALL = json.dumps({"inputs": [[1]], "outputs": [[2]], "fn_name": "double"})


def test_eurus_takes_the_four_code_sources_and_counts_mathematics():
    sources = ["taco", "apps", "codecontests", "codeforces"]
    fenced = "Write double(n).\n```python\nYour code\n```\nat the end."
    rows = [coding(source, DOUBLE, f"Double n, {source}.") for source in sources]
    rows += [coding("numina_aops_forum", "42", "What is 6 * 7?"), coding("taco", CALL, fenced)]
    write("in/data/train-00000-of-00001.jsonl", rows)
    write("in/data/validation-00000-of-00001.jsonl", [coding("apps", CALL)])
    counts = eurus2_code.prepare(OUT, source="in")["counts"]
    train = written(OUT, "train")
    assert [row["data_source"] for row in train] == [*sources, "taco"]
    assert counts["other_tasks"] == {"numina_aops_forum": 1}
    assert (counts["read"], counts["kept"]) == (7, 6)
    (message,) = train[0]["prompt"]  # Eurus's own system message is gone
    assert message["role"] == "user"
    assert message["content"].startswith("Double n, taco.\n\nWrite a Python program")
    assert train[0]["reward_model"]["ground_truth"] == DOUBLE
    assert train[-1]["prompt"] == [{"role": "user", "content": fenced}]  # says all already
    ((call,),) = (row["prompt"] for row in written(OUT, "validation"))
    assert call["content"].endswith("The tests call the function `double`.")


# --- rlla -----------------------------------------------------------------------------


def calling(number):
    call = f'{{"name": "add", "parameters": {{"a": {number}}}}}'
    return {
        "instruction": "Tools: add(a).",
        "input": f"<user> Add {number}. </user>",
        "output": f"<think> Add. </think>\n<tool_call>\n{call}\n</tool_call>",
    }


def published(number, split, ability="math"):
    raw = calling(number)
    return {
        "data_source": "rlla",
        "prompt": [
            {"role": "system", "content": raw["instruction"]},
            {"role": "user", "content": raw["input"]},
        ],
        "ability": ability,
        "reward_model": {"style": "rule", "ground_truth": raw["output"]},
        "extra_info": {"index": number, "split": split, **raw},
    }


def test_published_rlla_keeps_its_columns_and_raw_rlla_gets_them():
    train = [published(7, "train"), published(3, "train")]
    write("in/train.jsonl", train)
    write("in/test.jsonl", [published(0, "test")])
    rlla.prepare(OUT, source="in")
    assert written(OUT, "train") == train
    assert written(OUT, "validation") == [published(0, "test")]

    raw = [calling(number) for number in range(10)]
    rlla.prepare(Path("raw"), source=write("raw.json", raw))
    (row,) = written(Path("raw"), "validation")
    number = int(row["prompt"][1]["content"].split()[2].rstrip("."))
    expected = published(number, "validation", "tool_call")
    expected["extra_info"]["index"] = 0
    assert row == expected


# --- splits, checks, provenance -------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "row", "kind", "reason"),
    [
        (gsm8k, NO_NUMBER, "ground_truth", "expected a number"),
        (deepscaler, {"problem": "?", "answer": r"\frac{"}, "ground_truth", "found"),
        (deepscaler, {"problem": "?"}, "columns", "expected the column answer, found ['problem']"),
        (eurus2_code, coding("leetcode", DOUBLE), "data_source", "found 'leetcode'"),
        (eurus2_code, coding("taco", "no JSON"), "ground_truth", "found 'no JSON'"),
        (eurus2_code, coding("taco", None), "columns", "reward_model.ground_truth: expected text"),
        (eurus2_code, {"data_source": "taco"}, "columns", "expected the column reward_model"),
        (eurus2_code, coding("taco", DOUBLE, " "), "prompt", "prompt: expected a list"),
        (rlla, {**published(1, "train"), "data_source": "x"}, "data_source", "'rlla', found 'x'"),
        (rlla, {**calling(1), "output": "<think> a </think>\n<tool_call>\n{\n</tool_call>"},
         "ground_truth", "found"),
    ],
)  # fmt: skip
def test_a_bad_row_is_rejected_with_file_row_and_reason(task, row, kind, reason):
    (bad,) = build.sift([Record("a.jsonl", 3, "train", row)], task.convert).rejected
    assert (bad["file"], bad["row"], bad["kind"]) == ("a.jsonl", 3, kind)
    assert reason in bad["reason"]


def rows_of(*prompts):
    return [{"prompt": [{"role": "user", "content": text}]} for text in prompts]


def test_a_tenth_is_held_out_at_most_whatever_the_order_and_rows_of_one_prompt_together():
    rows = rows_of(*map(str, range(40)))
    train, held_out = build.hold_out(rows, 512, seed=0)
    assert (len(train), len(held_out)) == (36, 4)
    assert build.hold_out(rows[::-1], 512, seed=0)[1] == held_out[::-1]
    assert build.hold_out(rows, 512, seed=1)[1] != held_out
    assert len(build.hold_out(rows, 2, seed=0)[1]) == 2
    for seed in range(4):
        parts = build.hold_out(rows_of(*["same"] * 99, "other"), 512, seed=seed)
        assert sorted(map(len, parts)) == [1, 99]


# --- options and tokens ---------------------------------------------------------------

TEMPLATE = (
    "{% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}"
    "{% if add_generation_prompt %}assistant{% endif %}"
)


def word_model(directory, template):
    """A tokenizer that takes every word for a token."""
    words = word_tokenizer("<eos>", "<unk>", pre_tokenizer=pre_tokenizers.WhitespaceSplit())
    words.chat_template = template
    words.save_pretrained(directory)
    return str(directory)


def test_prompts_that_do_not_fit_are_rejected_and_counted():
    # user + n words + a request of eleven words + assistant
    assert len(deepscaler.REQUEST.split()) == 11
    rows = [{"problem": " ".join(["word"] * n), "answer": "1"} for n in (1, 2, 3)]
    source = write("in.jsonl", rows)
    fits = {"model": word_model("words", TEMPLATE), "max_prompt_length": 15}
    provenance = catalog.prepare("deepscaler", OUT, source=source, **fits)
    assert fits.items() <= provenance["settings"].items()
    assert provenance["counts"]["kept"] == 2
    assert rejected(provenance) == [(2, "prompt_too_long")]
    assert provenance["rejected"][0]["reason"] == "the prompt has 16 tokens, 15 fit"


# --- the command ----------------------------------------------------------------------


def asked_with(*headers):
    """Training rows of one question under a system message with each of these headers."""
    tools = [prompt.tool_block("add", "Adds.", {})]
    frames = [prompt.PromptFrame(f"{header}\n", "\nCall.") for header in headers]
    return [{"prompt": prompt.messages(tools, ["1+1?"], frame)} for frame in frames]


REFUSED = {
    "toolbox --from x": "--from: toolbox makes its own rows",
    "bfcl --validation 3": "--validation: bfcl makes its own rows",
    "aime24 --validation 3": "--validation: aime24 is a benchmark, of which nothing is held out",
    "gsm8k --max-prompt-length 3": "counts tokens. Give --model",
    "gsm8k --model /no/such/model": "--model: cannot load a tokenizer from",
    "toolbox --model words --max-prompt-length 5": "tokens, 5 fit",
    "toolbox --model no_template": "has no chat template",
    "gsm8k --shots 5": "--shots: expected 0 to 4 worked examples, found 5",
    "toolbox --shots 2": "expected 0, found 2: toolbox has no worked examples",
    "rlla": "git clone https://github.com/qiancheng0/ToolRL",
    "rubrics": "--from: expected a data set with rubrics",
    "gsm8k --negative avoided": "--negative: gsm8k has no rubrics",
    "gsm8k --from data/a.parquet": "--from: 'data/a.parquet' does not exist",
    "gsm8k --from ~/a": "--from: '~/a' does not exist",
    "gsm8k --from a/b/c": "--from: 'a/b/c' does not exist",
    "bfcl-v3 --from a.parquet": "--from: expected a parquet file of training rows, whose prompt",
}
REFUSED_FILES = [
    # Splits of the wrong rows.
    ("gsm8k --from a.jsonl --validation 0", {"a.jsonl": []}, "expected at least 1 row, found 0"),
    ("gsm8k --from in", {"in/test.jsonl": [problem(1), problem(2)]},
     "--from: expected rows of a training split, found ['test']"),
    ("gsm8k --from in", {"in/train.jsonl": [problem(1)] * 2}, "at least 2 usable rows"),
    ("gsm8k --from in", {"in/train.jsonl": [NO_NUMBER] * 3 + [problem(1)] * 2},
     "of 5 rows 3 cannot be used (3 ground_truth). That is more than half"),
    ("gsm8k --from in", {"in/train.jsonl": [problem(n) for n in range(9)],
     "in/test.jsonl": [NO_NUMBER]}, "test.jsonl row 0: ground_truth"),
    # Files that are none.
    ("gsm8k --from a.txt", {"a.txt": ""}, "--from: expected a file that ends in one of"),
    ("gsm8k --from a.jsonl", {"a.jsonl": "{}\n\n{\n"},
     "'a.jsonl' cannot be read as jsonl, at or after row 0: Expecting property name"),
    ("gsm8k --from a.jsonl", {"a.jsonl": "{}\n[1]"}, "expected an object, found [1]"),
    ("gsm8k --from a.jsonl", {"a.jsonl": r'{"n": "\ud800"}'}, "surrogates not allowed"),
    ("gsm8k --from a.json", {"a.json": '[{"n": 1}, {"n"'}, "'a.json' cannot be read as json"),
    ("gsm8k --from a.parquet", {"a.parquet": "PAR1"}, "'a.parquet' cannot be read as parquet"),
    ("gsm8k --from in", {"in/a.txt": ""}, "--from: expected files of one kind in 'in' (one of"),
    ("gsm8k --from in", {"in/a.jsonl": [], "in/b.json": []}, "found ['.json', '.jsonl']. Give one"),
    # The prompt of training rows.
    ("bfcl-v3 --from a.parquet", {"a.parquet": [problem(1)]},
     "--from: expected a parquet file of training rows, whose prompt is used"),
    ("bfcl-v3 --from a.parquet", {"a.parquet": rows_of("1+1?")}, "prompts of a.parquet, found 0"),
    ("bfcl-v3 --from a.parquet", {"a.parquet": asked_with("a", "b")}, "found 2 texts. Use a file"),
]  # fmt: skip


@pytest.mark.parametrize(("command", "sentence"), REFUSED.items(), ids=REFUSED)
def test_a_command_that_cannot_prepare_rows_is_refused_and_nothing_is_written(
    capsys, command, sentence
):
    if "--model" in command:
        word_model("words", TEMPLATE)
        word_model("no_template", None)
    assert cli.main(["prepare", *command.split()]) == 1
    assert sentence in capsys.readouterr().err
    assert not Path("data").exists()


@pytest.mark.parametrize(("command", "files", "sentence"), REFUSED_FILES)
def test_a_file_that_cannot_be_prepared_is_refused_and_nothing_is_written(
    capsys, command, files, sentence
):
    for name, rows in files.items():
        write(name, rows)
    assert cli.main(["prepare", *command.split()]) == 1
    assert sentence in capsys.readouterr().err
    assert not Path("data").exists()


def test_the_command_prints_files_and_lists_the_first_rejected_rows(capsys):
    rows = [problem(n) for n in range(20)]
    rows[2:9] = [NO_NUMBER] * 7
    source = write("in.jsonl", rows)
    assert cli.main(["prepare", "gsm8k", "--from", source, "--out", "out"]) == 0
    captured = capsys.readouterr()
    assert "out/train.parquet: 12 rows" in captured.out
    assert "7 rows rejected (7 ground_truth):" in captured.err
    assert "  in.jsonl row 6: ground_truth: expected a number" in captured.err
    assert "in.jsonl row 7" not in captured.err
    assert "and 2 more, which provenance.json lists" in captured.err


# --- rubrics --------------------------------------------------------------------------


def criterion(title, weight, text="Essential Criteria: Names it."):
    return {"title": title, "description": text, "weight": weight}


def test_rubrics_of_both_layouts_and_what_negative_weights_mean(capsys):
    failure = "Pitfall Criteria: Claims that the ocean is reflected."
    avoided = "Pitfall Criteria: Avoids jargon."
    unclear = "Pitfall Criteria: Does not name ice."
    question = {"question": "Why?", "reference_answer": "So."}
    rubric = [criterion("a", 5), criterion("b", -2, failure), criterion("b", -1, avoided)]
    health = [{"criterion": "Asks.", "points": 7}, {"criterion": "Avoids care.", "points": -8}]
    rows = [
        question | {"rubric": rubric},
        {"prompt": [{"role": "user", "content": "It hurts."}], "rubrics": health},
        question | {"question": "How?", "rubric": [criterion("a", 1)]},
        question | {"question": "Who?", "rubric": [criterion("a", 3)]},
        question | {"rubric": [criterion("c", -1, unclear)]},
        question | {"rubric": []},
        question | {"rubric": [criterion("c", "5")]},
    ]
    source = write("in.jsonl", rows)
    assert cli.main(["prepare", "rubrics", "--from", source, "--out", "out"]) == 0
    printed = capsys.readouterr().err
    assert "(--negative text): taken 2 as failure, 1 as avoided" in printed
    assert "'Pitfall Criteria: Does not name ice.' has the weight -1" in printed
    kept = {}
    for split in ("train", "validation"):
        kept |= {row["extra_info"]["row"]: row for row in written(OUT, split)}
    graded = kept[0]["extra_info"]["rubric"]
    weights = [(each["name"], each["weight"]) for each in graded]
    assert weights == [("a", 5), ("b", -2), ("b (2)", 1)]
    assert graded[1]["criterion"] == failure
    assert kept[0]["reward_model"]["ground_truth"] == "So."
    # With points, what is met is counted, whatever the text says.
    assert [each["weight"] for each in kept[1]["extra_info"]["rubric"]] == [7, -8]

    found = catalog.prepare("rubrics", OUT, source=source, negative="avoided")
    assert found["negative"] == {"setting": "avoided", "criteria": {"avoided": 3, "failure": 1}}
    assert rejected(found) == [(5, "rubric"), (6, "rubric")]
