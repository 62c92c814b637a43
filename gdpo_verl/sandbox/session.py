"""One sandbox, seen from outside: start it, run programs in it, end it with all it holds."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import math
import os
import random
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Any

from gdpo_verl.sandbox import child
from gdpo_verl.sandbox.protection import Protection, with_user

_MEGABYTE = 1 << 20
_numbers = itertools.count()


class SandboxError(RuntimeError):
    """The sandbox itself does not work: neither the program's fault nor its verdict."""


class Status(Enum):
    """How a program, or one call into it, ended."""

    OK = auto()
    SYNTAX = auto()
    """It does not compile."""
    EXCEPTION = auto()
    """It raised, was killed, or left with another status than 0."""
    TIMEOUT = auto()
    """It took longer than a test may."""
    MEMORY = auto()
    """It needed more memory than allowed."""
    OUTPUT = auto()
    """It wrote more than allowed."""
    NO_FUNCTION = auto()
    """It does not define the function that the tests call."""
    NOT_PLAIN = auto()
    """The function returned something else than plain data."""
    DEADLINE = auto()
    """The time for all tests of the answer was over."""


@dataclass(frozen=True)
class Outcome:
    """What came of a program.

    Attributes:
      status: how it ended.
      text: a script's standard output; a call's value, as JSON of `child.encode`.
      error: the built-in exception that a call raised, if it raised one.
    """

    status: Status
    text: str = ""
    error: str = ""


@dataclass(frozen=True)
class Limits:
    """What a program may use.

    Attributes:
      timeout: seconds of CPU time a test, rounded up; twice as many by the clock.
      deadline: seconds by the clock for everything that one sandbox does.
      memory_mb: address space of a program, in MiB.
      output_mb: size of a program's output and of each file that it writes, in MiB.
      processes: threads of a program, where they can be counted.
    """

    timeout: float = 4.0
    deadline: float = 15.0
    memory_mb: float = 1024
    output_mb: float = 4
    processes: int = 64

    def __post_init__(self) -> None:
        for name in ("timeout", "deadline", "memory_mb", "output_mb", "processes"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
                raise ValueError(f"{name}: expected a positive number, found {value!r}")
            if math.isinf(value):
                raise ValueError(f"{name}: expected a finite number, found {value!r}")

    @property
    def output_bytes(self) -> int:
        """The output limit in bytes."""
        return int(self.output_mb * _MEGABYTE)

    @property
    def cpu_seconds(self) -> int:
        """The time out as the kernel takes it."""
        return max(1, math.ceil(self.timeout))


class Sandbox:
    """A running sandbox; a context manager. Not shared between threads.

    Programs in it run one after the other, each in a process of its own that inherits
    nothing from the one before.
    """

    def __init__(self, protection: Protection, limits: Limits) -> None:
        self.limits = limits
        self.protection = protection
        self.deadline = time.monotonic() + limits.deadline
        self.process: subprocess.Popen[bytes] | None = None
        self.last_status: int | None = None  # exit status of the last program that ended

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def run(self, code: str, stdin: str = "") -> Outcome:
        """Run a program from its first line to its end."""
        answer = self._ask({"start": "script", "code": code, "stdin": stdin})
        if answer is None:
            return Outcome(Status.DEADLINE)
        return Outcome(_status(answer, self.limits), str(answer.get("text", "")))

    def load(self, setup: str, code: str, name: str) -> Outcome:
        """Start a program whose function `name` is then called by `call`.

        Args:
          setup: run first in the same module, as a prompt's imports; its own `name` is
            forgotten.
          code: the program.
          name: a function, or a method of its class `Solution`.
        """
        request = {"start": "function", "setup": setup, "code": code, "name": name}
        outcome = self._message(request)
        return Outcome(Status.OK) if outcome.status is Status.NOT_PLAIN else outcome

    def call(self, arguments: str) -> Outcome:
        """Call the loaded function; `arguments` is JSON of `child.encode([args, kwargs])`."""
        return self._message({"send": arguments})

    def check(self, setup: str, test: str, name: str) -> dict[str, Any]:
        """Start a test; the answer is its first message, see `reply`."""
        request = {"start": "checks", "setup": setup, "code": test, "name": name}
        return self._plain({**request, "wall": self.limits.deadline})

    def reply(self, message: str) -> dict[str, Any]:
        """Answer a test's call: {"call": …} for the next one or {"passed": bool} at the end.

        A test that ended in any other way gives an empty dict.
        """
        return self._plain({"send": message})

    def close(self) -> None:
        """End everything in the sandbox."""
        if self.process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe
            pipe.close()
        self.process = None

    def _plain(self, request: dict[str, Any]) -> dict[str, Any]:
        answer = self._ask(request)
        if not answer or answer.get("event") != "reply":
            return {}
        message = json.loads(answer["text"])
        return message if isinstance(message, dict) else {}

    def _message(self, request: dict[str, Any]) -> Outcome:
        answer = self._ask(request)
        if answer is None:
            return Outcome(Status.DEADLINE)
        if answer.get("event") != "reply":
            status = _status(answer, self.limits)
            # It left before it answered, which is no success whatever it says.
            return Outcome(Status.EXCEPTION if status is Status.OK else status)
        return read_reply(str(answer["text"]))

    def _ask(self, request: dict[str, Any]) -> dict[str, Any] | None:
        """The server's answer; None when the deadline is over."""
        wall = 2 * self.limits.timeout + 1
        try:
            if self.process is None:
                self._start()
            answer = self._exchange({"wall": wall, **request})
            self.last_status = answer.get("status")
            return answer
        except TimeoutError:
            self.close()
            return None
        except EOFError:
            self.close()  # whatever killed the server; the next test gets another
            return {"event": "exit", "status": -signal.SIGKILL}

    def _start(self) -> None:
        protection = with_user(self.protection, next(_numbers))
        limits = self.limits
        settings = protection.settings | {
            "cpu": limits.cpu_seconds,
            "memory": int(limits.memory_mb * _MEGABYTE),
            "output": limits.output_bytes,
            "processes": limits.processes,
        }
        if time.monotonic() >= self.deadline:
            raise TimeoutError
        with tempfile.TemporaryFile() as errors:
            self.process = subprocess.Popen(
                protection.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                bufsize=0,
                cwd="/",
                # None of the trainer's, which may hold keys. An arena is 64 MiB of address space.
                env={"LC_ALL": "C.UTF-8", "MALLOC_ARENA_MAX": "1"},
                start_new_session=True,
            )
            assert self.process.stdin
            os.set_blocking(self.process.stdin.fileno(), False)
            try:
                self._exchange(settings)
            except EOFError:
                self.close()
                errors.seek(0)
                said = errors.read()[-400:].decode(errors="replace").strip()
                raise SandboxError(f"{protection.name} does not start: {said}") from None

    def _exchange(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send one line and read one, before the deadline, of at most a size."""
        assert self.process
        assert self.process.stdin
        assert self.process.stdout
        source, sink = self.process.stdout.fileno(), self.process.stdin.fileno()
        unsent, received = memoryview(json.dumps(request).encode() + b"\n"), bytearray()
        most = 6 * self.limits.output_bytes + 4096  # "\\u0000" for every character
        poll = select.poll()
        poll.register(source, select.POLLIN)
        poll.register(sink, select.POLLOUT)
        while not received.endswith(b"\n"):
            left = self.deadline - time.monotonic()
            ready = dict(poll.poll(max(0.0, left) * 1000))
            if not ready:
                raise TimeoutError
            if sink in ready:
                try:
                    unsent = unsent[os.write(sink, unsent) :]
                except BrokenPipeError:
                    raise EOFError from None
                if not unsent:
                    poll.unregister(sink)
            if source in ready:
                chunk = os.read(source, 1 << 20)
                received += chunk
                if not chunk or len(received) > most:
                    raise EOFError
        try:
            answer = json.loads(received)
        except (ValueError, RecursionError):
            raise EOFError from None
        return answer if isinstance(answer, dict) else {}


def read_reply(text: str) -> Outcome:
    """What a function's message says (`child`). The value is not read: it may be anything."""
    kind, rest = text[:1], text[1:]
    if kind == "V":
        return Outcome(Status.OK, rest)
    if kind == "E":
        known = {"NotPlain": Status.NOT_PLAIN, "MemoryError": Status.MEMORY}
        return Outcome(known.get(rest, Status.EXCEPTION), error=rest)
    return Outcome(Status.NOT_PLAIN)


def _status(answer: dict[str, Any], limits: Limits) -> Status:
    event, code = answer.get("event"), answer.get("status")
    if event == "output":
        return Status.OUTPUT
    if event == "timeout":
        return Status.TIMEOUT
    if code == 0:
        return Status.OK
    # SIGKILL follows where the program does not listen. What the kernel reports as CPU time may be
    # less than what it kills by, on a busy machine by more than a tick or two.
    spent = answer.get("cpu", 0) >= 0.5 * limits.cpu_seconds
    if code == -signal.SIGXCPU or (code == -signal.SIGKILL and spent):
        return Status.TIMEOUT
    known = {
        child.MEMORY: Status.MEMORY,
        child.SYNTAX: Status.SYNTAX,
        child.MISSING: Status.NO_FUNCTION,
    }
    return known.get(code, Status.EXCEPTION)  # type: ignore[arg-type]


@contextlib.contextmanager
def slot(count: int | None = None) -> Iterator[None]:
    """Wait for one of the machine's places to run a sandbox in, as many as it has cores.

    Held by all reward workers of a user together, so that a program's seconds by the clock
    are not spent waiting for a core. A place is a lock on a file, which the kernel gives
    back whatever becomes of its holder.
    """
    count = count or len(os.sched_getaffinity(0))
    directory = Path(tempfile.gettempdir()) / f"gdpo-verl-slots-{os.getuid()}"
    directory.mkdir(mode=0o700, exist_ok=True)
    while True:
        # A few of them at a time: hundreds of threads may be waiting here.
        for number in random.sample(range(count), min(count, 8)):
            with open(directory / str(number), "a") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue
                yield
                return
        time.sleep(0.02)
