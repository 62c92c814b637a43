"""Rows of files, folders and the hub: their order, their provenance, and errors."""

import hashlib
import json
import os
import sys
from pathlib import Path

import datasets
import pyarrow.parquet as pq
import pytest
from prepared import write
from processes import run
from servers import Handler, serving

from gdpo_verl.lab.tasks.source import open_source, split_of_file

ROWS = [{"n": 1}, {"n": 2}, {"n": 3}]


def values(source):
    return [(r.file, r.row, r.split, r.values["n"]) for r in open_source(source).records]


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl", ".json"])
def test_files_are_read_in_the_order_of_names_with_their_splits_and_rows_in_order(tmp_path, suffix):
    for name, number in (("test", 9), ("train-00001-of-00002", 2), ("train-00000-of-00002", 1)):
        write(tmp_path / f"data/{name}{suffix}", [{"n": number}])
    assert values(str(tmp_path)) == [
        (f"data/test{suffix}", 0, "test", 9),
        (f"data/train-00000-of-00002{suffix}", 0, "train", 1),
        (f"data/train-00001-of-00002{suffix}", 0, "train", 2),
    ]


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("test.parquet", ROWS),
        ("test.json", '{"n": 1}\n{"n": 2}\n{"n": 3}\n'),  # one object per line
    ],
)
def test_the_name_of_a_single_file_tells_no_split(tmp_path, name, rows):
    expected = [(name, 0, None, 1), (name, 1, None, 2), (name, 2, None, 3)]
    assert values(write(tmp_path / name, rows)) == expected


def test_a_data_set_that_datasets_saved_is_read_and_named_when_damaged(tmp_path):
    rows = datasets.Dataset.from_list(ROWS)
    datasets.DatasetDict({"train": rows, "test": rows.select([2])}).save_to_disk(tmp_path)
    found = [(split, number) for _, _, split, number in values(str(tmp_path))]
    assert found == [("test", 3), ("train", 1), ("train", 2), ("train", 3)]
    (file,) = (tmp_path / "test").glob("*.arrow")
    os.truncate(file, file.stat().st_size - 20)
    with pytest.raises(ValueError, match=r"\.arrow' cannot be read as arrow, at or after row 0"):
        values(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("gsm8k-train.jsonl", "train"),
        ("parquet-validation-00000-of-00003.jsonl", "validation"),
        ("train-00000-of-00001-a09b74b3ef9c3b56.jsonl", "train"),
        ("dev.jsonl", "validation"),
        ("test/part.jsonl", "test"),
        ("contest.jsonl", None),
    ],
)
def test_the_name_of_a_file_tells_its_split(name, split):
    assert split_of_file(Path(name)) == split


def test_files_without_a_splits_name_are_left_out_of_a_configurations_folder(tmp_path):
    for name in ("train", "train_socratic", "example_model_solutions"):
        write(tmp_path / f"main/{name}.jsonl", [{"n": 1}])
    write(tmp_path / "other/train.parquet", ROWS)
    source = open_source(str(tmp_path), config="main")  # the configuration has a folder
    assert [record.file for record in source.records] == ["train.jsonl"]
    left_out = ["example_model_solutions.jsonl", "train_socratic.jsonl"]
    assert source.provenance["files_left_out"] == left_out


# --- hub ------------------------------------------------------------------------------

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPO = "datasets/openai/gsm8k"


class Hub(Handler):
    """A server with the part of the hub's protocol that one public data set needs."""

    def do_GET(self):
        path = self.path.partition("?")[0]
        body = self.pages.get(path, b"")
        self.send_response(200 if path in self.pages else 404)
        if path not in self.pages:
            absent = "EntryNotFound" if "/resolve/" in path else "RepoNotFound"
            self.send_header("X-Error-Code", absent)
        # This is the client's name for the file; a path could lead outside of its cache.
        self.send_header("ETag", hashlib.sha256(body).hexdigest())
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET


CARD = """---
configs:
- config_name: main
  data_files:
  - {split: train, path: main-train.parquet}
  - {split: test, path: main-test.parquet}
- config_name: socratic
  data_files: socratic.parquet
---
"""


@pytest.fixture
def hub(tmp_path):
    """Serve a hub that has openai/gsm8k with two configurations; yield its address."""
    files = {"README.md": CARD.encode()}
    for name in ("main-train", "main-test", "socratic"):
        rows = [{"question": f"{name} {n}?", "answer": f"#### {n}"} for n in (1, 2)]
        file = write(tmp_path / "hub" / f"{name}.parquet", rows)
        files[f"{name}.parquet"] = Path(file).read_bytes()
    Hub.pages = {}
    tree = []
    for name, body in files.items():
        Hub.pages[f"/{REPO}/resolve/{COMMIT}/{name}"] = body
        tree.append({"type": "file", "path": name, "oid": "0" * 40, "size": len(body)})
    info = {"id": "openai/gsm8k", "sha": COMMIT, "siblings": []}
    Hub.pages[f"/api/{REPO}"] = json.dumps(info).encode()
    Hub.pages[f"/api/{REPO}/revision/{COMMIT}"] = json.dumps(info).encode()
    Hub.pages[f"/api/{REPO}/tree/{COMMIT}"] = json.dumps(tree).encode()
    with serving(Hub) as address:
        yield address


NOWHERE = "http://127.0.0.1:9"


def prepare(tmp_path, *arguments, **environment):
    """Run the command in a separate process: the hub's libraries read settings only once."""
    variables = {"HF_HUB_DISABLE_XET": "1", "HF_HOME": str(tmp_path / "home")} | environment
    command = [sys.executable, "-m", "gdpo_verl.lab.cli", "prepare", *arguments]
    return run(*command, environment=variables, cwd=tmp_path)


def test_a_hub_id_is_loaded_at_its_commit_or_from_the_cache_or_else_a_remedy_is_named(
    tmp_path, hub
):
    done = prepare(tmp_path, "gsm8k", HF_ENDPOINT=hub)
    assert done.returncode == 0, done.stderr
    out = tmp_path / "data/gsm8k"
    rows = pq.read_table(out / "train.parquet").to_pylist()
    assert [row["prompt"][1]["content"] for row in rows] == ["main-train 1?", "main-train 2?"]
    assert rows[1]["extra_info"]["file"] == "openai/gsm8k:train"
    source = json.loads((out / "provenance.json").read_text())["source"]
    assert source == {"hub": "openai/gsm8k", "revision": COMMIT, "config": "main"}
    before = {path.name: path.read_bytes() for path in out.iterdir()}

    done = prepare(tmp_path, "gsm8k", HF_ENDPOINT=NOWHERE, HF_HUB_OFFLINE="1")
    assert done.returncode == 0, done.stderr
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before

    refused = prepare(tmp_path, "gsm8k", "--from", "no/such", HF_ENDPOINT=hub)
    assert "the hub rejects 'no/such': 404" in refused.stderr
    unreachable = prepare(tmp_path, "deepscaler", HF_ENDPOINT=NOWHERE)
    name = "agentica-org/DeepScaleR-Preview-Dataset"
    assert f"--from: cannot load '{name}' from the hub: " in unreachable.stderr
    assert f"`hf download --repo-type dataset {name} --local-dir DIR`" in unreachable.stderr
    for failed in (refused, unreachable):
        assert failed.returncode == 1
        assert "Traceback" not in failed.stderr
    assert list((tmp_path / "data").iterdir()) == [out]
