"""Let other processes answer questions, each within a deadline.

A thread or a signal handler cannot stop a computation that hangs inside C code. Therefore it runs
in another process, which can be killed.

The workers are plain interpreters, because the alternatives have faults. multiprocessing, and pools
that use it, run the main module again in each worker; this may be a user's script without a guard,
or Ray's own script. The pool of pebble 5.2 no longer works after a waiting worker was killed.

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

# The largest number of workers of a module, in each process that computes rewards. It is at least
# two, so that one worker can work while another one hangs until its deadline.
WORKERS = max(2, min(4, os.cpu_count() or 1))
START_SECONDS = 120.0  # the time for the imports of a worker, also on a busy machine
MEMORY_BYTES = 2**30  # the limit of a worker's address space


class DeadlinePool:
    """A pool of worker processes, each of which answers one question at a time.

    Any thread may ask. A worker is started if no worker is free, and is then kept. A worker that
    was killed is replaced. Workers end when their parent ends: a waiting worker ends at once, and a
    working one ends at most a second after the deadline.

    Args:
      module: the module to run with `python -m`. It must call `serve_questions`.
      size: the largest number of workers. The time in which a question waits for a free worker does
        not count as part of its deadline.
    """

    def __init__(self, module: str, size: int = WORKERS) -> None:
        self.module = module
        self.size = size
        self._start_afresh()
        os.register_at_fork(after_in_child=self._start_afresh)

    def _start_afresh(self) -> None:
        # The queue has an entry for each worker, which is None before the worker is started. It
        # returns the worker that was used last, so that workers are started only if needed.
        self._places: LifoQueue[ChildProcess | None] = LifoQueue()
        for _ in range(self.size):
            self._places.put(None)

    def ask(self, question: Any, deadline: float) -> Any:
        """Return the answer of a worker.

        Args:
          question: any value that JSON can represent.
          deadline: the time in seconds from when a worker gets the question.

        Raises:
          TimeoutError: there was no answer within the deadline. The worker was killed.
          EOFError: two workers crashed while they worked on the question.
          RuntimeError: no worker can be started.
        """
        try:
            return self._ask_once(question, deadline)
        except EOFError:
            # The question may have crashed the worker, or the worker was killed for another reason.
            # A second worker shows which.
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
    """Return the answer of a module's worker, and a `ParseError`.

    If there was no answer in time, the answer is None, and the `ParseError` is the reason. The
    arguments are those of `DeadlinePool`.
    """
    try:
        return _pool(module).ask(question, deadline), ParseError.NONE
    except TimeoutError:
        return None, ParseError.DEADLINE
    except EOFError:
        return None, ParseError.CRASHED


def _started(module: str) -> ChildProcess:
    """Start a worker, and wait until it has imported its modules."""
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
    """Answer the questions of the parent until there are no more.

    The module of a worker calls this function. Questions and answers are values that JSON can
    represent.

    Args:
      answer: a function that answers a question. If it raises an exception, the worker crashes.
      memory: the limit of the worker's address space, in bytes.
    """
    lower_limit(resource.RLIMIT_AS, memory)
    # With the default handler, the alarm kills this process, even if it is inside C code or its
    # parent has ended.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
    parent = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # texts that libraries print must not be taken for answers
    print(sys.stdin.readline().rstrip(), file=parent, flush=True)  # the worker is ready
    for line in sys.stdin:
        question, deadline = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, deadline + 1.0)
        reply = json.dumps(answer(question))
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        print(reply, file=parent, flush=True)
