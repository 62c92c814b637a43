"""The pool of workers with a deadline: what hangs, dies or is killed holds up nothing else."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from waiting import is_alive, wait_for

from gdpo_verl.rewards.deadline import DeadlinePool

WORKER = """
import os, signal, sys, time
from gdpo_verl.rewards.deadline import serve_questions

def answer(question):
    print("libraries print", question)
    match question:
        case ["sleep", seconds]: time.sleep(seconds)
        case ["hang"]: 9 ** 9 ** 9
        case ["raise"]: raise ValueError("as asked")
        case ["memory", size]: bytearray(size)
        case ["die once", path]:
            if not os.path.exists(path):
                open(path, "w").close()
                os.kill(os.getpid(), signal.SIGKILL)
    return os.getpid()

serve_questions(answer)
"""


@pytest.fixture
def pool(tmp_path, monkeypatch):
    (tmp_path / "asked_worker.py").write_text(WORKER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return DeadlinePool("asked_worker", size=2)


def test_one_worker_answers_question_after_question(pool):
    pids = {pool.ask(["é\ud800\0\n", index], deadline=60) for index in range(20)}
    pids.add(pool.ask(["long", "x" * 300_000], deadline=60))
    pids.add(pool.ask(["with patience"], deadline=1e8))
    assert len(pids) == 1
    assert pids != {os.getpid()}


def test_a_question_that_hangs_in_c_code_is_ended_with_its_worker_at_its_deadline(pool):
    pid = pool.ask([], deadline=60)
    start = time.monotonic()
    with pytest.raises(TimeoutError):
        pool.ask(["hang"], deadline=0.5)
    assert 0.5 <= time.monotonic() - start < 600
    assert not is_alive(pid)
    assert pool.ask([], deadline=60) != pid


def test_questions_at_once_get_a_worker_each_and_waiting_for_one_does_not_count(pool):
    with ThreadPoolExecutor(4) as threads:
        pids = list(threads.map(lambda _: pool.ask(["sleep", 1], deadline=5), range(12)))
    assert len(pids) == 12  # the last two began after 5 s
    assert len(set(pids)) == 2


@pytest.mark.parametrize("question", [["raise"], ["memory", 2**31]])
def test_a_question_that_kills_is_reported_and_the_pool_goes_on(pool, question, capfd):
    with pytest.raises(EOFError):
        pool.ask(question, deadline=60)
    assert "Error" in capfd.readouterr().err
    assert pool.ask([], deadline=60)


def test_a_worker_killed_while_it_waits_or_works_is_replaced(pool, tmp_path):
    pid = pool.ask([], deadline=60)
    os.kill(pid, signal.SIGKILL)
    assert pool.ask([], deadline=60) != pid
    assert pool.ask(["die once", str(tmp_path / "died")], deadline=60)


def test_a_forked_child_has_workers_of_its_own(pool):
    pid = pool.ask([], deadline=60)
    readable, writable = os.pipe()
    child = os.fork()
    if not child:
        os.write(writable, str(pool.ask([], deadline=60)).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert int(os.read(readable, 20)) != pid
    assert pool.ask([], deadline=60) == pid


def test_a_module_that_does_not_start_is_an_error(capfd):
    with pytest.raises(RuntimeError, match="python -m no_such_worker: the worker did not start"):
        DeadlinePool("no_such_worker", size=1).ask([], deadline=1)
    assert "No module named no_such_worker" in capfd.readouterr().err


# A script without `if __name__ == "__main__"`, which multiprocessing could not take.
PARENT = """
import sys, threading, time
from gdpo_verl.rewards.deadline import DeadlinePool

pool = DeadlinePool("asked_worker", size=2)
thread = threading.Thread(target=pool.ask, args=(["sleep", 0.2], 60), daemon=True)
thread.start()
pool.ask(["sleep", 0.2], 60)
thread.join()
pids = [worker.pid for worker in pool._places.queue]
threading.Thread(target=pool.ask, args=(["hang"], 1.0), daemon=True).start()
time.sleep(0.2)
print(*pids, flush=True)
time.sleep(float(sys.argv[1]))
"""


@pytest.mark.parametrize("killed", [True, False])
def test_workers_end_with_their_parent(pool, tmp_path, killed):
    (tmp_path / "parent.py").write_text(PARENT)
    command = [sys.executable, str(tmp_path / "parent.py"), "600" if killed else "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        waiting, working = map(int, parent.stdout.readline().split())
        if killed:
            parent.kill()
    # One of them computes in C code, and its deadline of one second has yet to pass.
    wait_for(lambda: not is_alive(waiting) and not is_alive(working))
