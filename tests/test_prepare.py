"""`gdpo-verl prepare` on small files of our own writing in the published forms."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from gdpo_verl import cli
from gdpo_verl.rewards import code as code_reward
from gdpo_verl.rewards import gsm8k as gsm8k_reward
from gdpo_verl.rewards import math_length as math_reward
from gdpo_verl.rewards import tool_call as tool_reward
from gdpo_verl.tasks import benchmark, build, catalog, deepscaler, eurus2_code, gsm8k, rlla

COLUMNS = ["data_source", "prompt", "ability", "reward_model", "extra_info"]
RECIPES = Path(__file__).parents[1] / "recipes"


def write_lines(path: Path, rows: list[Any]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = (row if isinstance(row, str) else json.dumps(row) for row in rows)
    path.write_text("".join(f"{line}\n" for line in text), encoding="utf-8")
    return str(path)


def written(out_dir: Path, split: str) -> list[dict[str, Any]]:
    table = pq.read_table(out_dir / f"{split}.parquet")
    assert table.column_names == COLUMNS
    return list(table.to_pylist())


def truths(out_dir: Path, split: str) -> list[str]:
    return [row["reward_model"]["ground_truth"] for row in written(out_dir, split)]


def problem(number: int) -> dict[str, Any]:
    return {"question": f"What is {number} + 1?", "answer": f"Add 1.\n#### {number + 1}"}


# --- GSM8K ----------------------------------------------------------------------------


def test_gsm8k_takes_what_stands_behind_the_hashes(tmp_path: Path) -> None:
    rows = [problem(1), {"question": " How much? ", "answer": "#1 #### 1\n#### 1,000 "}]
    write_lines(tmp_path / "in/train.jsonl", rows)
    write_lines(tmp_path / "in/test.jsonl", [problem(5)])
    provenance = gsm8k.prepare(tmp_path / "out", source=str(tmp_path / "in"))
    assert truths(tmp_path / "out", "train") == ["2", "1,000"]
    assert truths(tmp_path / "out", "validation") == ["6"]
    row = written(tmp_path / "out", "train")[1]
    assert row["data_source"] == "gsm8k"
    assert row["prompt"] == [
        {"role": "system", "content": gsm8k.SYSTEM},
        {"role": "user", "content": "How much?"},
    ]
    info = {"index": 1, "split": "train", "file": "train.jsonl", "row": 1}
    assert row["extra_info"] == info
    assert provenance["splits"] == {"train": "train", "validation": "test"}


def test_an_answer_in_the_form_that_the_gsm8k_prompt_shows_earns_everything() -> None:
    form = gsm8k.SYSTEM.partition("\n")[2]
    answer = form.replace("the number", "1000")
    for strict in (True, False):
        score = gsm8k_reward.compute_score("gsm8k", answer, "1000", strict=strict)
        assert score["score"] == 3.0


def test_worked_examples_of_gsm8k_are_turns_that_earn_everything(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", [problem(n) for n in range(20)])
    for shots in (0, 2, 4):
        out_dir = tmp_path / str(shots)
        assert gsm8k.prepare(out_dir, source=source, shots=shots)["shots"] == shots
        system, *worked, asked = written(out_dir, "train")[0]["prompt"]
        assert system["content"] == gsm8k.SYSTEM
        assert [turn["role"] for turn in worked] == ["user", "assistant"] * shots
        assert asked["content"].startswith("What is")
        for (_, thought, answer), turn in zip(gsm8k.WORKED, worked[1::2], strict=False):
            assert thought.endswith(f"= {answer}")
            assert eval(thought.partition(" =")[0]) == int(answer)
            for strict in (True, False):
                score = gsm8k_reward.compute_score("gsm8k", turn["content"], answer, strict=strict)
                assert score["score"] == 3.0


def test_gsm8k_is_asked_behind_the_worked_examples_of_the_training(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in/test.jsonl", [problem(1)])
    rows = write_lines(tmp_path / "in.jsonl", [problem(n) for n in range(20)])
    for shots in (0, 2):
        gsm8k.prepare(tmp_path / str(shots), source=rows, shots=shots)
    files = [str(tmp_path / str(shots) / "train.parquet") for shots in (0, 2)]

    def asked(*prompt_from: str) -> list[Any]:
        opened = benchmark.open_benchmark("gsm8k", prompt_from=prompt_from)
        return list(opened.load(source).items[0].messages)

    question = {"role": "user", "content": "What is 1 + 1?"}
    assert asked() == asked(files[0]) == [*gsm8k.turns(), question]
    assert asked(files[1]) == [*written(tmp_path / "2", "train")[0]["prompt"][:-1], question]
    with pytest.raises(ValueError, match=r"--prompt-from: .*one kind of worked.*found 2"):
        asked(*files)


# --- DeepScaleR -----------------------------------------------------------------------


def test_deepscaler_has_rows_held_out_and_rejects_missing_and_unreadable_answers(
    tmp_path: Path,
) -> None:
    rows: list[Any] = [
        {"problem": f"Halve {n}.", "answer": rf"\frac{{{n}}}{{2}}", "solution": "."}
        for n in range(20)
    ]
    rows[3]["answer"] = ""
    rows[7]["answer"] = r"\frac{"
    del rows[9]["answer"]
    (tmp_path / "deepscaler.json").write_text(json.dumps(rows))
    provenance = deepscaler.prepare(tmp_path / "out", source=str(tmp_path))
    assert [(row["row"], row["kind"]) for row in provenance["rejected"]] == [
        (3, "columns"),
        (7, "ground_truth"),
        (9, "columns"),
    ]
    assert {row["file"] for row in provenance["rejected"]} == {"deepscaler.json"}
    assert provenance["counts"]["read"] == 20
    assert provenance["counts"]["kept"] == 17
    train, held_out = written(tmp_path / "out", "train"), written(tmp_path / "out", "validation")
    assert (len(train), len(held_out)) == (16, 1)  # a tenth of 17, rounded down
    assert "1 rows held out of train" in provenance["splits"]["validation"]
    assert [row["extra_info"]["index"] for row in train] == list(range(16))
    (row,) = held_out
    source_row = rows[row["extra_info"]["row"]]
    assert row["reward_model"]["ground_truth"] == source_row["answer"]
    text = (
        f"{source_row['problem']}\n\nReason step by step and put the final answer in \\boxed{{}}."
    )
    assert row["prompt"] == [{"role": "user", "content": text}]
    math_reward.parse_ground_truth(row["reward_model"]["ground_truth"])


# --- Eurus-2 --------------------------------------------------------------------------


def coding(source: str, truth: Any, text: str = "Double n.") -> dict[str, Any]:
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


def test_eurus_takes_the_four_code_sources_and_counts_mathematics(tmp_path: Path) -> None:
    sources = ["taco", "apps", "codecontests", "codeforces"]
    rows = [coding(source, DOUBLE, f"Double n, {source}.") for source in sources]
    rows.insert(2, coding("numina_aops_forum", "42", "What is 6 * 7?"))
    write_lines(tmp_path / "in/data/train-00000-of-00001.jsonl", rows)
    write_lines(tmp_path / "in/data/validation-00000-of-00001.jsonl", [coding("apps", CALL)])
    provenance = eurus2_code.prepare(tmp_path / "out", source=str(tmp_path / "in"))
    train = written(tmp_path / "out", "train")
    assert [row["data_source"] for row in train] == sources
    assert provenance["counts"]["other_tasks"] == {"numina_aops_forum": 1}
    assert provenance["counts"]["read"] == 6
    assert provenance["counts"]["kept"] == 5
    (message,) = train[0]["prompt"]  # Eurus's own system message is gone
    assert message["role"] == "user"
    assert message["content"].startswith("Double n, taco.\n\nWrite a Python program")
    assert train[0]["reward_model"]["ground_truth"] == DOUBLE
    ((call,),) = (row["prompt"] for row in written(tmp_path / "out", "validation"))
    assert call["content"].endswith("The tests call the function `double`.")


def test_what_eurus_already_asks_for_is_not_said_twice() -> None:
    text = "Write double(n).\n```python\nYour code\n```\nat the end."
    record = build.Record("f", 0, None, coding("apps", CALL, text))
    assert eurus2_code.convert(record)["prompt"] == [{"role": "user", "content": text}]


def test_the_block_that_the_code_prompt_asks_for_is_the_one_that_runs() -> None:
    answer = "First:\n```python\nprint(0)\n```\nBetter:\n```python\nprint(1)\n```\n"
    assert "last block fenced with ```python" in eurus2_code.REQUEST
    for strict in (True, False):
        assert code_reward.find_code(answer, strict=strict).strip() == "print(1)"


@pytest.mark.parametrize(
    ("row", "kind", "reason"),
    [
        (coding("leetcode", DOUBLE), "data_source", "found 'leetcode'"),
        (coding("taco", "no JSON"), "ground_truth", "expected a JSON object"),
        (coding("taco", '{"inputs": [], "outputs": []}'), "ground_truth", "at least one"),
        (coding("taco", '{"inputs": ["1"], "outputs": []}'), "ground_truth", "1 and 0"),
        (coding("taco", None), "columns", "reward_model.ground_truth: expected text"),
        ({"data_source": "taco"}, "columns", "expected the column reward_model"),
        (coding("taco", DOUBLE, " "), "prompt", "prompt: expected a list"),
    ],
    ids=["unknown source", "no JSON", "no test", "output missing", "none", "column", "no prompt"],
)
def test_a_bad_coding_row_is_rejected_with_file_row_and_reason(
    tmp_path: Path, row: dict[str, Any], kind: str, reason: str
) -> None:
    rows = [coding("taco", DOUBLE, f"Task {n}.") for n in range(3)]
    source = write_lines(tmp_path / "code.jsonl", [*rows[:2], row, rows[2]])
    provenance = eurus2_code.prepare(tmp_path / "out", source=source)
    (rejected,) = provenance["rejected"]
    assert (rejected["file"], rejected["row"], rejected["kind"]) == ("code.jsonl", 2, kind)
    assert reason in rejected["reason"]
    assert provenance["counts"]["rejected"] == {kind: 1}
    assert provenance["counts"]["kept"] == 3


# --- rlla -----------------------------------------------------------------------------


def calling(number: int, thought: str = "Add.") -> dict[str, str]:
    call = f'{{"name": "add", "parameters": {{"a": {number}}}}}'
    return {
        "instruction": "Tools: add(a).",
        "input": f"<user> Add {number}. </user>",
        "output": f"<think> {thought} </think>\n<tool_call>\n{call}\n</tool_call>",
    }


def published(number: int, split: str) -> dict[str, Any]:
    raw = calling(number)
    return {
        "data_source": "rlla",
        "prompt": [
            {"role": "system", "content": raw["instruction"]},
            {"role": "user", "content": raw["input"]},
        ],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": raw["output"]},
        "extra_info": {"index": number, "split": split, **raw},
    }


def test_published_rlla_keeps_its_columns_as_they_are(tmp_path: Path) -> None:
    rows = {
        "train": [published(7, "train"), published(3, "train")],
        "test": [published(0, "test")],
    }
    for split, some in rows.items():
        write_lines(tmp_path / f"in/{split}.jsonl", some)
    rlla.prepare(tmp_path / "out", source=str(tmp_path / "in"))
    assert written(tmp_path / "out", "train") == rows["train"]
    assert written(tmp_path / "out", "validation") == rows["test"]


def test_raw_rlla_gets_the_published_columns(tmp_path: Path) -> None:
    (tmp_path / "raw.json").write_text(json.dumps([calling(n) for n in range(10)]))
    rlla.prepare(tmp_path / "out", source=str(tmp_path / "raw.json"))
    (row,) = written(tmp_path / "out", "validation")
    number = int(row["prompt"][1]["content"].split()[2].rstrip("."))
    expected = published(number, "validation")
    expected["extra_info"]["index"] = 0
    assert row == {**expected, "ability": "tool_call"}


def test_rlla_rejects_other_sources_and_calls_that_cannot_be_read(tmp_path: Path) -> None:
    foreign = {**published(1, "train"), "data_source": "gsm8k"}
    broken = {**calling(1), "output": "<think> a </think>\n<tool_call>\n{\n</tool_call>"}
    rows = [published(0, "train"), foreign, calling(2), broken, calling(4)]
    source = write_lines(tmp_path / "mixed.jsonl", rows)
    provenance = rlla.prepare(tmp_path / "out", source=source)
    kinds = [(row["row"], row["kind"]) for row in provenance["rejected"]]
    assert kinds == [(1, "data_source"), (3, "ground_truth")]


def test_rlla_lists_rows_that_only_the_strict_rules_can_read(tmp_path: Path) -> None:
    rows = [calling(0), calling(1, thought="I use <tool_call> here."), calling(2)]
    provenance = rlla.prepare(tmp_path / "out", source=write_lines(tmp_path / "raw.jsonl", rows))
    assert provenance["counts"]["kept"] == 3
    ((place, row),) = [(row["file"], row["row"]) for row in provenance["suspicious"]]
    assert (place, row) == ("raw.jsonl", 1)
    (line,) = [line for line in catalog.provenance_notes(provenance) if "raw.jsonl" in line]
    assert line.startswith("  raw.jsonl row 1: under the published rules (strict: false)")


def test_rlla_says_where_it_is_published(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"git clone https://github\.com/qiancheng0/ToolRL"):
        rlla.prepare(tmp_path / "out")


def test_toolrls_own_dialogues_are_all_kept(tmp_path: Path) -> None:
    file = Path(__file__).parents[1] / ".." / "shared/data/toolrl/rlla_sft.json"
    if not file.exists():
        pytest.skip("ToolRL's dialogues are not here")
    provenance = rlla.prepare(tmp_path / "out", source=str(file))
    assert provenance["rejected"] == []
    assert provenance["files"]["train.parquet"]["rows"] == 360
    assert provenance["files"]["validation.parquet"]["rows"] == 40
    assert len(provenance["suspicious"]) == 17  # tags in the thought
    for truth in truths(tmp_path / "out", "train") + truths(tmp_path / "out", "validation"):
        score = tool_reward.compute_score("rlla", truth, truth)
        assert score["format"] == 1.0
        assert score["correctness"] in (0.0, 3.0)


# --- splits, checks, provenance -------------------------------------------------------


def rows_of(*prompts: str) -> list[dict[str, Any]]:
    return [{"prompt": [{"role": "user", "content": text}]} for text in prompts]


def test_a_tenth_is_held_out_at_most_whatever_the_order() -> None:
    rows = rows_of(*(f"q{n}" for n in range(40)))
    train, held_out = build.hold_out(rows, 512, seed=0)
    assert (len(train), len(held_out)) == (36, 4)
    again = build.hold_out(rows[::-1], 512, seed=0)[1]
    assert again == held_out[::-1]
    assert build.hold_out(rows, 512, seed=1)[1] != held_out
    assert len(build.hold_out(rows, 2, seed=0)[1]) == 2


def test_rows_of_one_prompt_are_never_held_apart() -> None:
    rows = rows_of(*["same"] * 99, "other")
    for seed in range(4):
        train, held_out = build.hold_out(rows, 512, seed=seed)
        assert sorted([len(train), len(held_out)]) == [1, 99]


def test_one_prompt_cannot_be_split() -> None:
    with pytest.raises(ValueError, match="at least 2 usable rows"):
        build.hold_out(rows_of("same", "same"), 512, seed=0)


def test_the_same_source_gives_the_same_bytes(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "all.jsonl", [problem(n) for n in range(50)])
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        gsm8k.prepare(tmp_path / name, source=source, seed=seed)
    for file in ("train.parquet", "validation.parquet", "provenance.json"):
        a, b, c = ((tmp_path / name / file).read_bytes() for name in "abc")
        assert a == b
        assert a != c


def test_the_provenance_names_source_hash_settings_and_counts(tmp_path: Path) -> None:
    write_lines(tmp_path / "in/train.jsonl", [problem(1), problem(2)])
    write_lines(tmp_path / "in/test.jsonl", [problem(2)])
    source = str(tmp_path / "in")
    gsm8k.prepare(tmp_path / "out", source=source, seed=5, validation=9)
    found = json.loads((tmp_path / "out/provenance.json").read_text())
    assert found["source"]["path"] == source
    assert list(found["source"]["files"]) == ["test.jsonl", "train.jsonl"]
    assert all(len(digest) == 64 for digest in found["source"]["files"].values())
    assert found["settings"] == {
        "seed": 5,
        "validation": 9,
        "model": None,
        "max_prompt_length": None,
    }
    assert found["counts"] == {
        "read": 3,
        "kept": 3,
        "rejected": {},
        "of_unused_splits": {},
        "suspicious": 0,
        "other_tasks": {},
        "validation_prompts_in_train": 1,
    }


def test_a_test_split_beside_a_validation_split_is_counted_as_unused(tmp_path: Path) -> None:
    for split, number in (("train", 1), ("validation", 2), ("test", 3)):
        write_lines(tmp_path / f"in/{split}.jsonl", [problem(number)])
    provenance = gsm8k.prepare(tmp_path / "out", source=str(tmp_path / "in"))
    assert truths(tmp_path / "out", "validation") == ["3"]
    assert provenance["counts"]["of_unused_splits"] == {"test": 1}


def test_a_folder_with_a_test_split_alone_is_refused(tmp_path: Path) -> None:
    write_lines(tmp_path / "in/test.jsonl", [problem(1), problem(2)])
    with pytest.raises(ValueError, match=r"a training split, found \['test'\]"):
        gsm8k.prepare(tmp_path / "out", source=str(tmp_path / "in"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("bad", [3, 5], ids=["most", "all"])
def test_the_wrong_data_is_an_error_and_nothing_is_written(tmp_path: Path, bad: int) -> None:
    rows: list[Any] = [problem(n) for n in range(5)]
    rows[:bad] = [{"question": "?", "answer": "no number"}] * bad
    source = write_lines(tmp_path / "wrong.jsonl", rows)
    with pytest.raises(ValueError, match=f"of 5 rows {bad} cannot be used") as caught:
        gsm8k.prepare(tmp_path / "out", source=source)
    assert "wrong.jsonl row 0: ground_truth: expected a number" in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_split_of_bad_rows_alone_is_an_error_however_small(tmp_path: Path) -> None:
    write_lines(tmp_path / "in/train.jsonl", [problem(n) for n in range(9)])
    write_lines(tmp_path / "in/test.jsonl", [{"question": "?", "answer": "no number"}])
    with pytest.raises(ValueError, match=r"test\.jsonl row 0"):
        gsm8k.prepare(tmp_path / "out", source=str(tmp_path / "in"))


# --- tokens ---------------------------------------------------------------------------

TEMPLATE = (
    "{% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}"
    "{% if add_generation_prompt %}assistant{% endif %}"
)


@pytest.fixture(scope="session")
def word_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str | None], str]:
    """A tokenizer that takes every word for a token."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    def make(template: str | None) -> str:
        tokenizer = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        directory = tmp_path_factory.mktemp("words")
        fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="?")
        fast.chat_template = template
        fast.save_pretrained(directory)
        return str(directory)

    return make


def test_prompts_that_do_not_fit_are_rejected_and_counted(
    tmp_path: Path, word_model: Callable[[str | None], str], capsys: pytest.CaptureFixture[str]
) -> None:
    # user + n words + a request of eleven words + assistant
    request = len(deepscaler.REQUEST.split())
    assert request == 11
    problems = [" ".join(["word"] * n) for n in (1, 2, 3)]
    rows = [{"problem": text, "answer": "1"} for text in problems]
    source = write_lines(tmp_path / "in.jsonl", rows)
    model = word_model(TEMPLATE)
    command = ["prepare", "deepscaler", "--from", source, "--out", str(tmp_path / "out")]
    assert cli.main([*command, "--model", model, "--max-prompt-length", "15"]) == 0
    captured = capsys.readouterr()
    assert "1 rows rejected (1 prompt_too_long)" in captured.err
    assert "in.jsonl row 2: the prompt has 16 tokens, 15 fit" in captured.err
    provenance = json.loads((tmp_path / "out/provenance.json").read_text())
    assert provenance["settings"]["model"] == model
    assert provenance["settings"]["max_prompt_length"] == 15
    assert provenance["counts"]["kept"] == 2


def test_the_toolbox_refuses_a_model_whose_prompts_do_not_fit(
    tmp_path: Path, word_model: Callable[[str | None], str]
) -> None:
    model = word_model(TEMPLATE)
    with pytest.raises(ValueError, match="tokens, 5 fit"):
        catalog.prepare("toolbox", tmp_path, model=model, max_prompt_length=5)
    assert os.listdir(tmp_path) == []


def test_a_model_without_a_chat_template_is_refused(
    tmp_path: Path, word_model: Callable[[str | None], str]
) -> None:
    with pytest.raises(ValueError, match="has no chat template"):
        catalog.prepare("toolbox", tmp_path, model=word_model(None))


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("toolbox", {"source": "x"}, "--from: toolbox makes its own rows"),
        ("bfcl", {"validation": 3}, "--validation: bfcl makes its own rows"),
        ("gsm8k", {"max_prompt_length": 3}, "give --model too"),
        ("gsm8k", {"model": "/no/such/model"}, "--model: cannot load a tokenizer from"),
        ("gsm8k", {"source": "/no/such.jsonl"}, "'/no/such.jsonl' does not exist"),
        ("gsm8k", {"source": __file__, "validation": 0}, "expected a file that ends in"),
        ("gsm8k", {"shots": 5}, "--shots: expected 0 to 4 worked examples, found 5"),
        ("toolbox", {"shots": 2}, "expected 0, found 2: toolbox has no worked examples"),
    ],
    ids=["from", "validation", "tokens", "model", "path", "suffix", "shots", "without shots"],
)
def test_an_option_that_cannot_be_used_is_refused_by_name(
    tmp_path: Path, name: str, options: dict[str, Any], reason: str
) -> None:
    with pytest.raises((ValueError, FileNotFoundError), match=reason):
        catalog.prepare(name, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


# --- the command and the recipes ------------------------------------------------------


def test_the_command_prints_files_and_lists_the_first_rejected_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows: list[Any] = [problem(n) for n in range(20)]
    rows[2:9] = [{"question": "?", "answer": "no number"}] * 7
    source = write_lines(tmp_path / "in.jsonl", rows)
    assert cli.main(["prepare", "gsm8k", "--from", source, "--out", str(tmp_path / "out")]) == 0
    captured = capsys.readouterr()
    assert f"{tmp_path / 'out' / 'train.parquet'}: 12 rows" in captured.out
    assert "7 rows rejected (7 ground_truth):" in captured.err
    assert "  in.jsonl row 6: ground_truth: expected a number" in captured.err
    assert "in.jsonl row 7" not in captured.err
    assert "and 2 more, which provenance.json lists" in captured.err


@pytest.mark.parametrize("task", sorted(path.parent.name for path in RECIPES.glob("*/task.yaml")))
def test_every_recipes_data_is_what_a_command_writes(task: str) -> None:
    data = yaml.safe_load((RECIPES / task / "task.yaml").read_text())["data"]
    for key, split in (("train_files", "train"), ("val_files", "validation")):
        path = Path(data[key])
        assert path.name == f"{split}.parquet"
        command = catalog.prepare_command_of(path)
        assert command is not None
        assert command.startswith(f"gdpo-verl prepare {path.parent.name}")
    dataset = catalog.DATASETS[Path(data["train_files"]).parent.name]
    assert dataset.max_prompt_length == data["max_prompt_length"]
