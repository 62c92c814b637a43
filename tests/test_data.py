"""The data sets: columns, determinism, disjoint splits, sound ground truths."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import random
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from gdpo_verl.policy.demonstrations import demonstrate
from gdpo_verl.rewards.tool_call import correctness_reward, format_reward
from gdpo_verl.tasks import bfcl, catalog, generated, prompt, toolbox
from gdpo_verl.tasks import rows as dataset_rows
from gdpo_verl.tasks.rows import make_row, write_dataset

COLUMNS = ["data_source", "prompt", "ability", "reward_model", "extra_info"]

needs_bfcl = pytest.mark.skipif(
    importlib.util.find_spec("bfcl_eval") is None, reason=f"needs {bfcl.REQUIREMENT}"
)


def read(out_dir: Path, split: str) -> list[dict[str, Any]]:
    table = pq.read_table(out_dir / f"{split}.parquet")
    assert table.column_names == COLUMNS
    return list(table.to_pylist())


def user_texts(rows: list[dict[str, Any]]) -> set[str]:
    return {row["prompt"][1]["content"] for row in rows}


def assert_is_its_own_best_answer(truth: str) -> None:
    for strict in (True, False):
        assert format_reward(truth, truth, strict=strict) == 1.0, truth
        assert correctness_reward(truth, truth, strict=strict) == 3.0, truth


# --- prompt ---------------------------------------------------------------------------


def test_a_prompt_numbers_its_tools_and_an_answer_has_one_line_a_call() -> None:
    blocks = [prompt.tool_block("f", "Does\n  f.", {"x": {"type": "integer"}})]
    blocks.append(prompt.tool_block("g", "Does g.", {}))
    system, user = prompt.messages(blocks, [("user", "Please f 3.")])
    assert (
        '1. Name: f\nDescription: Does f.\nParameters: {"x": {"type": "integer"}}\n'
        "2. Name: g\nDescription: Does g.\nParameters: {}\n"
    ) in system["content"]
    assert user["content"] == "**Dialogue Records History**\n<user> Please f 3. </user>"
    text = prompt.reference_answer("use f and g", [("f", {"x": 1}), ("g", {})])
    assert text == (
        "<think> use f and g </think>\n<tool_call>\n"
        '{"name": "f", "parameters": {"x": 1}}\n'
        '{"name": "g", "parameters": {}}\n'
        "</tool_call>"
    )
    assert_is_its_own_best_answer(text)


# --- toolbox --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def toolbox_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out_dir = tmp_path_factory.mktemp("toolbox")
    toolbox.prepare(out_dir, train=512, validation=128, seed=0)
    return out_dir


def test_toolbox_rows_have_verls_columns_and_truths_that_are_their_own_best_answers(
    toolbox_dir: Path,
) -> None:
    for split, size in (("train", 512), ("validation", 128)):
        rows = read(toolbox_dir, split)
        assert len(rows) == len(user_texts(rows)) == size  # no question twice
        for index, row in enumerate(rows):
            assert row["data_source"] == "toolbox"
            assert [message["role"] for message in row["prompt"]] == ["system", "user"]
            assert row["reward_model"]["style"] == "rule"
            assert (row["extra_info"]["index"], row["extra_info"]["split"]) == (index, split)
            assert_is_its_own_best_answer(row["reward_model"]["ground_truth"])


def test_toolbox_lists_the_needed_tool_among_others_in_every_prompt(toolbox_dir: Path) -> None:
    rows = read(toolbox_dir, "train")
    for row in rows:
        call = json.loads(row["reward_model"]["ground_truth"].splitlines()[2])
        tool = toolbox.TOOLS[call["name"]]
        assert tool.block in row["prompt"][0]["content"]
        assert list(call["parameters"]) == list(tool.parameters)
    assert len({row["prompt"][0]["content"] for row in rows}) > 256


def test_no_toolbox_question_is_in_both_splits_whatever_the_seeds(tmp_path: Path) -> None:
    train, validation = set(), set()
    for seed in (0, 1):
        toolbox.prepare(tmp_path / str(seed), train=1024, validation=256, seed=seed)
        train |= user_texts(read(tmp_path / str(seed), "train"))
        validation |= user_texts(read(tmp_path / str(seed), "validation"))
    assert not train & validation
    assert len(train) > 1024  # the seeds do differ


@pytest.mark.parametrize(
    "task", ["toolbox", "gsm8k", pytest.param("bfcl", marks=needs_bfcl)], ids=str
)
def test_a_data_set_is_byte_identical_for_a_seed_and_differs_for_another(
    tmp_path: Path, task: str
) -> None:
    lines = (json.dumps({"question": f"{n} + 1?", "answer": f"#### {n + 1}"}) for n in range(50))
    (tmp_path / "gsm8k.jsonl").write_text("\n".join(lines))
    options = {"toolbox": {"train": 64, "validation": 16}, "bfcl": {}}
    options["gsm8k"] = {"source": str(tmp_path / "gsm8k.jsonl")}
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        catalog.load_module(task).prepare(tmp_path / name, seed=seed, **options[task])
    for file in ("train.parquet", "validation.parquet", "provenance.json"):
        a, b, c = ((tmp_path / name / file).read_bytes() for name in "abc")
        assert a == b
        assert a != c


def test_first_toolbox_question_of_seed_0_is_pinned() -> None:
    # A change here changes everybody's data: raise the version and say so in the changelog.
    first = next(toolbox.examples("train", seed=0))
    assert first.question == "What is 84 in base 6?"
    assert first.calls == (("convert_base", {"number": 84, "base": 6}),)


def test_toolbox_can_draw_questions_that_need_two_tools() -> None:
    rng = random.Random(0)
    for _ in range(100):
        example = toolbox.draw_example(rng, two_calls=1.0)
        assert len({name for name, _ in example.calls}) == 2
        assert {name for name, _ in example.calls} <= set(example.tools)
        assert_is_its_own_best_answer(example.ground_truth)


def test_toolbox_refuses_sizes_and_splits_that_it_cannot_fill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for sizes in ({"train": 0}, {"validation": -1}):
        with pytest.raises(ValueError, match="expected at least 1 row"):
            toolbox.prepare(tmp_path, **sizes)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="expected one of"):
        next(toolbox.examples("test", seed=0))
    monkeypatch.setattr(toolbox, "draw_example", lambda rng: toolbox.ToolExample("Tea?", (), ()))
    split = generated.split_of("Tea?")
    with pytest.raises(ValueError, match=f"no new {split} question after 1"):
        list(toolbox.examples(split, seed=0))


# --- demonstrations -------------------------------------------------------------------


def test_format_and_calls_go_wrong_independently() -> None:
    rng = random.Random(0)
    wrong_format = wrong_call = 0
    for example in islice(toolbox.examples("train", seed=0), 200):
        truth = example.ground_truth
        assert demonstrate(example, rng, flawed_format=0, flawed_call=0) == truth
        text = demonstrate(example, rng, flawed_format=1, flawed_call=0)
        assert format_reward(text, truth) == 0.0, text
        wrong_format += correctness_reward(text, truth) == 3.0
        text = demonstrate(example, rng, flawed_format=0, flawed_call=1)
        assert format_reward(text, truth) == 1.0, text
        wrong_call += correctness_reward(text, truth) < 3.0
    assert wrong_format > 80  # many a badly formed answer still holds the right call
    assert wrong_call > 180  # a number drawn anew is the old one now and then


# --- writing --------------------------------------------------------------------------


def tiny_row(index: int) -> dict[str, Any]:
    chat = prompt.messages([], [("user", "Hello.")])
    info = {"index": index, "split": "train"}
    return make_row("toolbox", chat, "<think> a </think>", ability="x", extra_info=info)


def test_provenance_holds_the_files_it_describes(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'validation' has no rows"):
        write_dataset(tmp_path / "new", {"train": [tiny_row(0)], "validation": []}, {})
    assert not (tmp_path / "new").exists()
    written = write_dataset(tmp_path, {"train": [tiny_row(0), tiny_row(1)]}, {"license": "none"})
    assert json.loads((tmp_path / "provenance.json").read_text()) == written
    assert written["license"] == "none"
    assert written["files"]["train.parquet"]["rows"] == 2
    assert sorted(os.listdir(tmp_path)) == ["provenance.json", "train.parquet"]


def test_a_killed_write_leaves_the_old_files_and_the_next_one_starts_clean(tmp_path: Path) -> None:
    # The process kills itself, beyond any clean-up, when half of the rows are on the disk.
    code = """
import os, signal, sys
from pathlib import Path
from gdpo_verl.tasks import prompt, rows

class Killed(rows.pq.ParquetWriter):
    batches = 0
    def write_table(self, table):
        super().write_table(table)
        Killed.batches += 1
        if Killed.batches == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)

rows.pq.ParquetWriter = Killed
chat = prompt.messages([], [("user", "Hello.")])
some = [
    rows.make_row("x", chat, sys.argv[3], ability="z", extra_info={"index": index})
    for index in range(4 * rows._BATCH)
]
rows.write_dataset(Path(sys.argv[1]), {"train": some}, {})
"""

    def write(name: str, *, truth: str, kill_at: int = 0) -> tuple[int, dict[str, bytes]]:
        command = [sys.executable, "-c", code, str(tmp_path / name), str(kill_at), truth]
        status = subprocess.run(command, check=False).returncode
        files = {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}
        return status, files

    _, old = write("killed", truth="old")
    status, left = write("killed", truth="new", kill_at=2)
    assert status == -9
    assert {name: left[name] for name in old} == old
    (scratch,) = set(left) - set(old)
    assert scratch.endswith(".tmp")
    assert write("killed", truth="new") == write("fresh", truth="new")


def test_an_interrupted_write_leaves_nothing_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_write = dataset_rows._write_rows

    def interrupted(rows: Any, where: Path) -> None:
        real_write(rows, where)
        if "validation" in where.name:
            raise KeyboardInterrupt

    monkeypatch.setattr(dataset_rows, "_write_rows", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_dataset(tmp_path, {"train": [tiny_row(7)], "validation": [tiny_row(8)]}, {})
    assert list(tmp_path.iterdir()) == []


def test_a_value_of_a_kind_absent_from_the_first_thousand_rows_is_kept(tmp_path: Path) -> None:
    rows = [tiny_row(index) for index in range(dataset_rows._BATCH + 1)]
    for row in rows:
        row["extra_info"] |= {"note": None, "share": 1}
    late = {"index": 1000, "split": "train", "note": "late", "share": 0.5, "more": 1}
    rows[-1]["extra_info"] = late
    write_dataset(tmp_path, {"train": rows}, {})
    written = pq.read_table(tmp_path / "train.parquet").to_pylist()
    assert len(written) == dataset_rows._BATCH + 1
    first = {"index": 0, "split": "train", "note": None, "share": 1.0, "more": None}
    assert written[0]["extra_info"] == first
    assert written[-1]["extra_info"] == late


def test_importing_the_data_package_imports_neither_torch_nor_verl() -> None:
    code = (
        "import sys, gdpo_verl.tasks.toolbox, gdpo_verl.tasks.bfcl, gdpo_verl.tasks.rlla; "
        "import gdpo_verl.tasks.gsm8k, gdpo_verl.tasks.deepscaler, gdpo_verl.tasks.eurus2_code; "
        "print(sorted({'torch', 'verl', 'transformers', 'datasets'} & {*sys.modules}))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


# --- bfcl -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("accepted", "calls"),
    [
        ([{"f": {"x": [3, 3.0]}}], [("f", {"x": 3})]),
        ([{"f": {"x": ["", 1], "y": [2, ""]}}], [("f", {"y": 2})]),
        ([{"f": {"x": [{"u": [1, 2], "v": [""]}]}}], [("f", {"x": {"u": 1}})]),
        ([{"f": {"x": [[{"u": ["a", "b"]}, {"u": [4]}]]}}], [("f", {"x": [{"u": "a"}, {"u": 4}]})]),
        ([{"f": {"x": [["a", "b"]]}}, {"f": {}}], [("f", {"x": ["a", "b"]}), ("f", {})]),
    ],
    ids=["first of several", "omitted", "dict", "list of dicts", "two calls"],
)
def test_first_answer_takes_the_first_listed_value_at_every_level(
    accepted: list[dict[str, Any]], calls: list[tuple[str, dict[str, Any]]]
) -> None:
    assert bfcl.first_answer(accepted) == calls


def test_without_the_package_bfcl_names_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "bfcl_eval", None)
    with pytest.raises(ModuleNotFoundError, match="pip install --no-deps bfcl-eval=="):
        bfcl.prepare(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def bfcl_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out_dir = tmp_path_factory.mktemp("bfcl")
    bfcl.prepare(out_dir, seed=0)
    return out_dir


@needs_bfcl
def test_bfcl_keeps_every_question_that_the_leaderboards_checker_accepts(tmp_path: Path) -> None:
    provenance = bfcl.prepare(tmp_path, seed=0)
    assert provenance["license"] == "Apache-2.0"
    assert all(row["file"] and row["id"] and row["reason"] for row in provenance["rejected"])
    train, validation = read(tmp_path, "train"), read(tmp_path, "validation")
    assert len(train) + len(validation) == provenance["kept"]
    for row in train + validation:
        assert row["data_source"] == "bfcl"
        assert_is_its_own_best_answer(row["reward_model"]["ground_truth"])
    assert not user_texts(train) & user_texts(validation)
    assert 0.05 < len(validation) / provenance["kept"] < 0.15
    if importlib.metadata.version("bfcl-eval") != "2026.3.23":
        pytest.skip("the counts belong to bfcl-eval 2026.3.23")
    kept = {name: count["kept"] for name, count in provenance["categories"].items()}
    assert kept == {
        **{"simple_python": 399, "multiple": 200, "parallel": 200, "parallel_multiple": 199},
        **{"live_simple": 256, "live_multiple": 1048},
        **{"live_parallel": 16, "live_parallel_multiple": 24},
    }
    assert (provenance["kept"], len(provenance["rejected"])) == (2342, 2351 - 2342)


@needs_bfcl
def test_the_import_of_bfcl_eval_leaves_no_stub_behind() -> None:
    before = sys.modules.get("bfcl_eval.constants.model_config"), dict(os.environ)
    bfcl.load_module("eval_checker.ast_eval.ast_checker")
    assert (sys.modules.get("bfcl_eval.constants.model_config"), dict(os.environ)) == before
