"""The places to run a sandbox in."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from waiting import HANGS

from gdpo_verl.sandbox import SandboxError, core_slot, slot_directory


@pytest.fixture
def path(monkeypatch, tmp_path):
    """The directory of places, below a directory of temporary files of the test's own."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"gdpo-verl-slots-{os.geteuid()}"


def test_no_more_sandboxes_run_at_once_than_there_are_places(path):
    running, most, lock, pair = 0, 0, threading.Lock(), threading.Barrier(2)

    def work(_):
        nonlocal running, most
        with core_slot(2):
            with lock:
                running += 1
                most = max(most, running)
            pair.wait(HANGS)  # which needs a second place at the same time
            time.sleep(0.05)
            with lock:
                running -= 1

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(work, range(6)))
    assert most == 2
    assert not pair.broken


def test_a_directory_of_places_that_another_user_could_use_is_refused(path, tmp_path):
    with core_slot(1):
        assert [file.name for file in path.iterdir()] == ["0"]
    path.chmod(0o777)
    with pytest.raises(SandboxError, match=r"alone may write, found user .* with mode 0777\. "):
        slot_directory().__enter__()
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SandboxError, match=f"{path}: expected a directory"), core_slot(1):
        pass


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's directory")
def test_a_directory_of_places_that_another_user_made_is_refused(path, tmp_path):
    path.mkdir(mode=0o700)
    os.chown(path, 65534, 65534)
    with pytest.raises(SandboxError, match="found user 65534's"), core_slot(1):
        pass
    os.chown(path, 0, 0)
    (path / "0").symlink_to(tmp_path / "chosen by an attacker")
    with pytest.raises(OSError, match="symbolic links"), core_slot(1):
        pass
    assert not (tmp_path / "chosen by an attacker").exists()
