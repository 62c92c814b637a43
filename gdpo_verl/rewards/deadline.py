"""Let other processes answer questions, each within a deadline.

A computation that hangs inside C code cannot be stopped by a thread or a signal handler, so it runs
in a process that can be killed. Workers are plain interpreters: multiprocessing, and pools that use
it, run the main module again in each worker (a user's script without a guard, or Ray's own), and
the pool of pebble 5.2 does not work any more after a waiting worker was killed.

    parent: `DeadlinePool(module).ask(question, deadline)`
    worker: `python -m module`, which calls `serve_questions(answer)`
"""

from __future__ import annotations

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

# The most processes of a module in each process that computes rewards; at least two, so that one
# can work while the other one hangs until its deadline.
WORKERS = max(2, min(4, os.cpu_count() or 1))
START_SECONDS = 120.0  # for the imports of a worker, on a busy machine
MEMORY_BYTES = 2**30  # the address space of a worker


class DeadlinePool:
    """Worker processes that answer one question at a time. Any thread may ask.

    A worker is started when no worker is free, and stays. A worker that was killed is replaced.
    Workers end with their parent: a waiting worker at once, a working one at most a second after
    the deadline.

    Args:
      module: the module to run with `python -m`; it calls `serve_questions`.
      size: the largest number of workers. Waiting for a free one does not count against the
        deadline.
    """

    def __init__(self, module: str, size: int = WORKERS) -> None:
        self.module = module
        self.size = size
        self._start_afresh()
        os.register_at_fork(after_in_child=self._start_afresh)

    def _start_afresh(self) -> None:
        # One entry per worker, None before it is started. The worker that was used last comes
        # first, so that workers are started only when they are needed.
        self._places: LifoQueue[ChildProcess | None] = LifoQueue()
        for _ in range(self.size):
            self._places.put(None)

    def ask(self, question: Any, deadline: float) -> Any:
        """Return the answer of a worker.

        Args:
          question: any value that JSON can represent.
          deadline: in seconds, after a started worker got the question.

        Raises:
          TimeoutError: there was no answer within the deadline; the worker was killed.
          EOFError: two workers crashed while they worked on the question.
          RuntimeError: no worker can be started.
        """
        try:
            return self._ask_once(question, deadline)
        except EOFError:  # because of the question, or something killed it just before
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


_pool = cache(DeadlinePool)


def ask(module: str, question: Any, deadline: float) -> tuple[Any, ParseError]:
    """Return the answer of a module's worker, or None and the reason if there was none in time.

    The arguments are those of `DeadlinePool`.
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
            f"python -m {module}: the worker did not start ({failure!r}). The standard error of "
            "this process has its output."
        ) from failure
    return worker


def serve_questions(answer: Callable[[Any], Any], *, memory: int = MEMORY_BYTES) -> None:
    """Answer the parent's questions until there are no more; crash where `answer` raises.

    The module of a worker calls this function. Questions and answers are values that JSON can
    represent.

    Args:
      memory: the address space that the worker may use, in bytes.
    """
    lower_limit(resource.RLIMIT_AS, memory)
    # By default the alarm kills the process, also inside C code and without a parent.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
    parent = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is not an answer
    print(sys.stdin.readline().rstrip(), file=parent, flush=True)  # the worker is ready
    for line in sys.stdin:
        question, deadline = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, deadline + 1.0)
        reply = json.dumps(answer(question))
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        print(reply, file=parent, flush=True)
