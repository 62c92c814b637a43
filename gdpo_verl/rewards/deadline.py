"""Questions answered by other processes, each within a deadline.

A computation that hangs inside C code listens to no thread and no signal handler, so it runs in
a process that can be killed. Workers are plain interpreters: multiprocessing, and the pools built
on it, run the main module again in each (a user's script without a guard, or Ray's own), and
pebble's pool of 5.2 is broken for good when a worker that waits is killed.

    parent: `DeadlinePool(module).ask(question, deadline)`
    worker: `python -m module`, which calls `serve(answer)`
"""

from __future__ import annotations

import atexit
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from functools import cache
from queue import LifoQueue
from typing import Any

from gdpo_verl.rewards.parse_error import ParseError
from gdpo_verl.sandbox.child import lower_limit
from gdpo_verl.sandbox.child_process import ChildProcess

# Processes of a module at most, in each process that computes rewards. Two at least: while one
# hangs until its deadline, the other judges.
WORKERS = max(2, min(4, os.cpu_count() or 1))
START_SECONDS = 120.0  # that a worker may take for its imports, on a busy machine
MEMORY_BYTES = 2**30  # address space that a worker may take


class DeadlinePool:
    """Worker processes that answer one question at a time. Any thread may ask.

    A worker is started when a question finds none free, and stays. One that was killed is
    replaced. Workers end with their parent: when they wait, at once; when they work, a second
    after the deadline at the latest.

    Args:
      module: run by `python -m`; it calls `serve`.
      size: workers at most. Waiting for a free one does not count against the deadline.
    """

    def __init__(self, module: str, size: int = WORKERS) -> None:
        self.module = module
        self.size = size
        self._start_afresh()
        os.register_at_fork(after_in_child=self._start_afresh)
        atexit.register(self.close)

    def _start_afresh(self) -> None:
        # Of each worker's place the worker, or None before it is started. The one used last comes
        # first, so that workers are started only when they are needed.
        self._places: LifoQueue[ChildProcess | None] = LifoQueue()
        for _ in range(self.size):
            self._places.put(None)

    def ask(self, question: Any, deadline: float) -> Any:
        """The worker's answer.

        Args:
          question: what JSON can hold.
          deadline: in seconds, from when a worker that has started gets the question.

        Raises:
          TimeoutError: there was no answer within the deadline; the worker was killed.
          EOFError: two workers crashed while they were at work on it.
          RuntimeError: no worker can be started.
        """
        try:
            return self._ask_once(question, deadline)
        except EOFError:  # of the question, or killed by anyone just before it
            return self._ask_once(question, deadline)

    def _ask_once(self, question: Any, deadline: float) -> Any:
        worker = self._places.get()
        try:
            if worker is None or worker.poll() is not None:
                worker = _started(self.module)
            return worker.ask([question, deadline], time.monotonic() + deadline)
        except BaseException:
            if worker is not None:
                worker.end()
            raise
        finally:
            self._places.put(worker)

    def close(self) -> None:
        """End the workers that wait. The next question starts new ones."""
        for worker in self._places.queue:
            if worker is not None:
                worker.end()


_pool = cache(DeadlinePool)


def ask(module: str, question: Any, deadline: float) -> tuple[Any, ParseError]:
    """The answer of a module's worker, None with the reason where none came in time.

    Args: as of `DeadlinePool`.
    """
    try:
        return _pool(module).ask(question, deadline), ParseError.NONE
    except TimeoutError:
        return None, ParseError.DEADLINE
    except EOFError:
        return None, ParseError.CRASHED


def _started(module: str) -> ChildProcess:
    worker = ChildProcess([sys.executable, "-m", module])
    try:
        worker.ask("hello", time.monotonic() + START_SECONDS)
    except (TimeoutError, EOFError) as failure:
        worker.end()
        raise RuntimeError(
            f"python -m {module}: the worker did not start ({failure!r}). Its own words are "
            "in this process's standard error."
        ) from failure
    return worker


def serve(answer: Callable[[Any], Any], *, memory: int = MEMORY_BYTES) -> None:
    """Answer the parent's questions until there are no more; crash where `answer` raises.

    What a worker's module calls. A question and its answer are what JSON can hold.

    Args:
      memory: the address space that the worker may take, in bytes.
    """
    lower_limit(resource.RLIMIT_AS, memory)
    # By default the alarm kills, inside C code and without a parent, too.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
    parent = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    print(sys.stdin.readline().rstrip(), file=parent, flush=True)  # it is ready
    for line in sys.stdin:
        question, deadline = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, deadline + 1.0)
        reply = json.dumps(answer(question))
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        print(reply, file=parent, flush=True)
