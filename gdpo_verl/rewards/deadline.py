"""Questions answered by other processes, each within a deadline.

A computation that hangs inside C code listens to no thread and to no Python signal handler,
so it runs in a process that can be killed. The workers are plain interpreters on a module of
ours: multiprocessing, and the pools built on it, run the main module again in each worker
(a user's script without a guard, or Ray's own), and pebble's pool of 5.2 is broken for good
when a worker that waits is killed, as by the kernel for memory.

    parent: `DeadlinePool(module).ask(question, deadline)`
    worker: `python -m module`, which calls `serve(answer)`
"""

from __future__ import annotations

import atexit
import json
import os
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

START_SECONDS = 120.0
"""Seconds that a worker may take for its imports, on a busy machine."""
MEMORY_BYTES = 2**30
"""Address space that a worker may take."""

_READY = "ready"


class Overdue(Exception):
    """The deadline passed without an answer; the worker was killed."""


class Died(Exception):
    """The worker died of the question."""


class DeadlinePool:
    """Worker processes that answer one question at a time. Any thread may ask.

    A worker is started when a question finds none free, and stays. One that was killed, by
    its deadline or by anyone, is replaced. Workers end with their parent, however it ends:
    when they wait, at once; when they work, a second after the deadline at the latest.

    Args:
      module: run by `python -m`; it calls `serve`.
      size: how many workers at most. More questions than that wait for a free one, which
        does not count against their deadline.
    """

    def __init__(self, module: str, size: int) -> None:
        self.module = module
        self.size = size
        self._start_afresh()
        os.register_at_fork(after_in_child=self._start_afresh)
        atexit.register(self.close)

    def _start_afresh(self) -> None:
        self._places = threading.BoundedSemaphore(self.size)
        # The one used last comes first, so that workers are started only when they are needed.
        self._idle: deque[_Worker] = deque()

    def ask(self, question: Any, deadline: float) -> Any:
        """The worker's answer.

        Args:
          question: what JSON can hold.
          deadline: in seconds, from when a worker that has started gets the question.

        Raises:
          Overdue: there was no answer within the deadline.
          Died: two workers died while they were at work on it.
          RuntimeError: no worker can be started.
        """
        with self._places:
            try:
                return self._ask_once(question, deadline)
            except Died:  # of the question, or killed by anyone just before it
                return self._ask_once(question, deadline)

    def _ask_once(self, question: Any, deadline: float) -> Any:
        worker = self._take_idle() or _Worker(self.module)
        try:
            reply = worker.ask(question, deadline)
        except BaseException:
            worker.close()
            raise
        self._idle.append(worker)
        return reply

    def _take_idle(self) -> _Worker | None:
        with suppress(IndexError):
            while True:
                worker = self._idle.pop()
                if worker.process.poll() is None:
                    return worker
                worker.close()
        return None

    def close(self) -> None:
        """End the workers that wait. The next question starts new ones."""
        while worker := self._take_idle():
            worker.close()


class _Worker:
    def __init__(self, module: str) -> None:
        # In a session of its own Ctrl-C does not reach it; it ends when its input does.
        self.process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            started = json.loads(self._read_line(START_SECONDS))
        except (Overdue, Died) as failure:
            self.close()
            raise RuntimeError(
                f"python -m {module}: the worker did not start ({failure!r}). Its own words are "
                "in this process's standard error."
            ) from failure
        assert started == _READY

    def ask(self, question: Any, deadline: float) -> Any:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps([question, deadline]).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError as failure:
            raise Died from failure
        return json.loads(self._read_line(deadline))

    def _read_line(self, seconds: float) -> bytes:
        assert self.process.stdout is not None
        pipe = self.process.stdout.fileno()
        poll = select.poll()
        poll.register(pipe, select.POLLIN)
        end = time.monotonic() + seconds
        line = b""
        while not line.endswith(b"\n"):
            if not poll.poll(max(0.0, end - time.monotonic()) * 1000):
                raise Overdue
            part = os.read(pipe, 65536)
            if not part:
                raise Died
            line += part
        return line

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):  # of a question that was never read
                pipe.close()


def serve(answer: Callable[[Any], Any]) -> None:
    """Answer the parent's questions until there are no more. What a worker's module calls.

    Args:
      answer: from a question to its answer, both what JSON can hold. When it raises, the
        worker dies of the question.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    soft = MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(MEMORY_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    # By default the alarm kills, inside C code and without a parent, too.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
    parent = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    print(json.dumps(_READY), file=parent, flush=True)
    for line in sys.stdin:
        question, deadline = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, deadline + 1.0)
        reply = json.dumps(answer(question))
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        print(reply, file=parent, flush=True)
