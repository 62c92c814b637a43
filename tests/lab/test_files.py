"""A file or folder exists completely or not at all."""

import re
import resource

import pytest

from gdpo_verl.lab.files import replacing, write_text


def test_a_block_that_raises_leaves_the_old_file(tmp_path):
    path = tmp_path / "page[1].html"
    write_text(path, "old")

    def fail():
        with replacing(path) as scratch:
            scratch.write_text("half")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    assert path.read_text() == "old"


def test_files_that_a_killed_process_left_are_removed(tmp_path):
    path = tmp_path / "page[1].html"
    (tmp_path / ".page[1].html.1.tmp").write_text("half")
    (tmp_path / ".another.html.1.tmp").write_text("another's")
    write_text(path, "new \ud800")
    assert {file.name for file in tmp_path.iterdir()} == {path.name, ".another.html.1.tmp"}
    assert path.read_text() == "new ?"


def test_a_folder_replaces_a_folder(tmp_path):
    for name in ("old", "new"):
        with replacing(tmp_path / "policy") as scratch:
            scratch.mkdir()
            (scratch / name).touch()
    assert [file.name for file in (tmp_path / "policy").iterdir()] == ["new"]


def test_a_full_disk_is_named_with_the_file(tmp_path):
    path = tmp_path / "launch.json"
    write_text(path, "old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    # this limit acts like an almost full disk
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(OSError, match=re.escape(str(path))):
            write_text(path, "new" * 100)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
