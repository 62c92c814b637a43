"""The end of a sandbox, by its deadline and whatever is killed, and the places to run one in."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import psutil
import pytest
from test_sandbox import FOUND, HOLDS, still_works
from test_sandbox import sandbox as sandbox
from waiting import HANGS, is_alive, wait_for

from gdpo_verl.sandbox import Limits, Sandbox, Status, core_slot, slots
from gdpo_verl.sandbox.protection import unprotected


def test_nothing_is_left_when_it_is_closed(sandbox):
    assert still_works(sandbox)
    assert sandbox.process is not None
    started = [sandbox.process.pid, *children(sandbox.process.pid)]
    sandbox.close()
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in started))


# Fills the pipe that its arguments come through: it says that it is loaded and never reads.
DEAF = """
import os, time
for channel in range(3, 64):
    try: os.write(channel, b"loaded\\n")
    except OSError: pass
while True: time.sleep(1)
"""
BUSY = "def f(x):\n    while True: pass"
TRAINER = """
import json, sys
from gdpo_verl.sandbox import Limits, Protection, Sandbox
protection, code, timeout = json.loads(sys.stdin.readline())
limits = Limits(timeout=timeout, deadline=2 * timeout + 9)
sandbox = Sandbox(Protection(**protection), limits)
sandbox.load("", code, "f")
print("ready", flush=True)
print(sandbox.call(json.dumps([[list(range(30_000))], {"dict": []}])).status.name, flush=True)
sandbox.close()
sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("code", "end"),
    [
        (DEAF, "trainer killed"),
        (DEAF, "server killed"),
        (DEAF, "deadline"),
        (BUSY, "trainer killed"),
    ],
)
@pytest.mark.parametrize("protection", [*FOUND, unprotected(None)], ids=lambda found: found.name)
def test_no_process_is_left_however_it_ends(protection, code, end):
    command, pipe = [sys.executable, "-c", TRAINER], subprocess.PIPE
    trainer = subprocess.Popen(command, stdin=pipe, stdout=pipe)
    settings = [asdict(protection), code, 2 if end == "deadline" else 60]
    trainer.stdin.write(json.dumps(settings).encode() + b"\n")
    trainer.stdin.flush()
    try:
        assert trainer.stdout.readline() == b"ready\n"
        time.sleep(0.3)
        started = children(trainer.pid)
        assert len(started) >= 2, "a server and a program"
        if end == "trainer killed":
            trainer.kill()
            trainer.wait()
        elif end == "server killed":
            os.kill(started[-2], signal.SIGKILL)  # the program's parent
            assert trainer.stdout.readline() == b"EXCEPTION\n"
        else:
            assert trainer.stdout.readline() in (b"TIMEOUT\n", b"DEADLINE\n")
        wait_for(lambda: not any(map(is_alive, started)))
    finally:
        for pid in (trainer.pid, *children(trainer.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        trainer.communicate()


def children(of):
    """The processes below one, grandchildren too, parents first."""
    if not psutil.pid_exists(of):
        return []
    return [process.pid for process in psutil.Process(of).children(recursive=True)]


@HOLDS
def test_an_answer_has_one_deadline_for_all_its_tests():
    with Sandbox(FOUND[0], Limits(timeout=1, deadline=2.5)) as sandbox:
        ended = [sandbox.run("while True: pass").status for _ in range(5)]
    assert ended[0] in (Status.TIMEOUT, Status.DEADLINE)  # the machine may be busy
    assert ended[-1] is Status.DEADLINE


# ---------------------------------------------------------------- the places to run one in


NO_CORE = 1_000_000  # and above: cores on which nothing else runs a sandbox


def test_no_more_sandboxes_run_at_once_than_there_are_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {NO_CORE, NO_CORE + 1})
    running, most, lock, pair = 0, 0, threading.Lock(), threading.Barrier(2)

    def work(_):
        nonlocal running, most
        with core_slot():
            with lock:
                running += 1
                most = max(most, running)
            pair.wait(HANGS)  # which needs a second core at the same time
            time.sleep(0.05)
            with lock:
                running -= 1

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(work, range(6)))
    assert most == 2
    assert not pair.broken


def test_a_long_wait_for_a_core_is_logged(monkeypatch, caplog):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {NO_CORE})
    monkeypatch.setattr(slots, "_PATIENCE_SECONDS", 0.05)

    def wait():
        with core_slot():
            pass

    with ThreadPoolExecutor(1) as thread, core_slot():
        waiting = thread.submit(wait)
        while not caplog.messages and not waiting.done():
            time.sleep(0.01)
    assert "a sandbox has waited 0.05 seconds for one of 1 cores" in caplog.text


HOLDER = f"""
import os, sys
from gdpo_verl.sandbox import core_slot
os.sched_getaffinity = lambda pid: {{{NO_CORE}}}
with core_slot():
    print("taken", flush=True)
    sys.stdin.read()
"""


def test_another_process_waits_for_a_core_until_it_is_free_however_its_holder_ended(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {NO_CORE})
    command, pipe = [sys.executable, "-c", HOLDER], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as holder:
        assert holder.stdout.readline() == b"taken\n"
        killer = threading.Timer(0.2, holder.kill)
        killer.start()
        with core_slot():
            assert holder.wait(HANGS) == -signal.SIGKILL
