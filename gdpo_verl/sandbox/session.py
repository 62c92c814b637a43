"""One sandbox, seen from outside: start it, run programs in it, and end it with its contents."""

from __future__ import annotations

import itertools
import math
import os
import signal
import tempfile
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum
from typing import Any

from gdpo_verl.config.arguments import check_positive
from gdpo_verl.sandbox import child
from gdpo_verl.sandbox.child_process import ChildProcess

_numbers = itertools.count()


class SandboxError(RuntimeError):
    """The sandbox itself does not work, so nothing is known about the program."""


class Status(Enum):
    """The end of a program, or of one call into it.

    The values are the statuses and events that the server (`child`) reports.
    """

    OK = 0
    EXCEPTION = 1  # it raised, was killed, or ended with any other status
    MEMORY = child.MEMORY  # it needed more memory than allowed
    SYNTAX = child.SYNTAX  # it does not compile
    NO_FUNCTION = child.MISSING  # it does not define the function that the tests call
    TIMEOUT = "timeout"  # it took longer than a test may
    OUTPUT = "output"  # it wrote more than allowed
    NOT_PLAIN = "not plain"  # the function returned something that is not plain data
    DEADLINE = "deadline"  # the time for all tests of the response was over

    @classmethod
    def _missing_(cls, value: object) -> Status:
        return cls.EXCEPTION


@dataclass(frozen=True)
class Outcome:
    """The result of a program."""

    status: Status
    text: str = ""  # a script's standard output, or a function's message (`child`)


@dataclass(frozen=True)
class Limits:
    """The resources that a program may use."""

    timeout: float = 4.0  # seconds of CPU time per test, rounded up; twice as many of real time
    deadline: float = 15.0  # seconds of real time for everything that one sandbox does
    memory_limit_mb: float = 1024  # address space of a program, in MiB

    def __post_init__(self) -> None:
        check_positive("timeout", self.timeout, "seconds")
        check_positive("deadline", self.deadline, "seconds")
        check_positive("memory_limit_mb", self.memory_limit_mb, "MiB")

    @property
    def cpu_seconds(self) -> int:
        """The timeout in full seconds, as the kernel expects it."""
        return math.ceil(self.timeout)


@dataclass(frozen=True)
class Protection:
    """A way to start a sandbox."""

    name: str  # bubblewrap (as root or not), landlock or unprotected
    command: tuple[str, ...]  # starts the server
    settings: dict[str, Any]  # what the server must know about it (`child.confine`)
    # The server changes to a user that no other process has. Then its threads can be limited,
    # although this process belongs to root.
    own_user: bool = False


@dataclass
class Sandbox(AbstractContextManager["Sandbox"]):
    """A running sandbox; a context manager, not shared between threads.

    Programs run one after the other, each in a process that inherits nothing from the others.
    `imports` are modules that are loaded once for all programs.
    """

    protection: Protection
    limits: Limits
    imports: Sequence[str] = ()
    process: ChildProcess | None = None

    def __post_init__(self) -> None:
        self.deadline = time.monotonic() + self.limits.deadline

    def __exit__(self, *exception: object) -> None:
        self.close()

    def run(self, code: str, stdin: str = "", *, setup: str = "") -> Outcome:
        """Run a program to its end; `setup` runs first in the same module, for example imports."""
        answer = self._ask({"start": "script", "setup": setup, "code": code, "stdin": stdin})
        return Outcome(self._status(answer), answer.get("text", ""))

    def load(self, setup: str, code: str, name: str) -> Outcome:
        """Start a program whose function `name`, or method of `Solution`, `call` then calls.

        `setup` runs first in the same module, for example the imports of a prompt; a function
        `name` in it is removed.
        """
        request = {"start": "function", "setup": setup, "code": code, "name": name}
        outcome = self._call(request)
        # The content of the first message is ignored.
        return Outcome(Status.OK) if outcome.status is Status.NOT_PLAIN else outcome

    def call(self, arguments: str) -> Outcome:
        """Call the loaded function; `arguments` is JSON of `child.encode([args, kwargs])`.

        It may also answer a call that a test has made, with the message of a function.
        """
        return self._call({"send": arguments})

    def check(self, setup: str, test: str, name: str) -> Outcome:
        """Start a test: `C` and its first call's arguments, `P` for passed, or other text."""
        request = {"start": "checks", "setup": setup, "code": test, "name": name}
        return self._call({**request, "wall": self.limits.deadline})

    def close(self) -> None:
        """End everything in the sandbox."""
        if self.process is not None:
            self.process.end()
            self.process = None

    def _call(self, request: dict[str, Any]) -> Outcome:
        answer = self._ask(request)
        if "message" in answer:
            return read_message(answer["message"])
        status = self._status(answer)
        # It ended before it answered, which is not a success, whatever its status.
        return Outcome(Status.EXCEPTION if status is Status.OK else status)

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the answer of the server: a message or an event."""
        wall = 2 * self.limits.timeout + 1
        # Every character may become "\\u0000".
        most = 6 * child.OUTPUT + 4096
        used = self.process is not None
        try:
            server = self.process or self._started()
            answer: dict[str, Any] = server.ask({"wall": wall, **request}, self.deadline, most=most)
            return answer
        except TimeoutError:
            self.close()
            return {"event": "deadline"}
        except EOFError:
            self.close()  # something killed the server, perhaps an effect of the last program
            if used and "start" in request:
                return self._ask(request)
            return {"event": "exit", "status": -signal.SIGKILL}

    def _started(self) -> ChildProcess:
        if time.monotonic() >= self.deadline:
            raise TimeoutError
        settings = self.protection.settings | {
            "uid": _unused_user() if self.protection.own_user else None,
            "cpu": self.limits.cpu_seconds,
            "memory": int(self.limits.memory_limit_mb * (1 << 20)),
            "imports": self.imports,
        }
        with tempfile.TemporaryFile() as errors:
            self.process = ChildProcess(
                self.protection.command,
                stderr=errors,
                cwd="/",
                # Without the trainer's variables, which may contain keys. An arena is 64 MiB of
                # address space.
                env={"LC_ALL": "C.UTF-8", "MALLOC_ARENA_MAX": "1"},
            )
            try:
                self.process.ask(settings, self.deadline)
            except EOFError:
                self.close()
                errors.seek(0)
                said = errors.read()[-400:].decode(errors="replace").strip()
                text = f"the sandbox {self.protection.name} did not start: {said}"
                raise SandboxError(text) from None
        return self.process

    def _status(self, answer: dict[str, Any]) -> Status:
        if answer["event"] != "exit":
            return Status(answer["event"])
        code = answer["status"]
        # SIGKILL follows where the program ignores the signal. The CPU time that the kernel reports
        # may be less than the time for which it kills, on a busy machine by more than a tick or
        # two.
        spent = answer.get("cpu", 0) >= 0.5 * self.limits.cpu_seconds
        if code == -signal.SIGXCPU or (code == -signal.SIGKILL and spent):
            return Status.TIMEOUT
        return Status(code)


def _unused_user() -> int:
    # Above the ranges that distributions use, and different for each process and sandbox.
    return (1 << 30) + (os.getpid() % (1 << 22)) * 128 + next(_numbers) % 128


def read_message(text: str) -> Outcome:
    """Read the message of a function (`child`), but not the value, which may be anything."""
    if text.startswith("V"):
        return Outcome(Status.OK, text)
    if text.startswith("E"):
        statuses = {"ENotPlain": Status.NOT_PLAIN, "EMemoryError": Status.MEMORY}
        return Outcome(statuses.get(text.partition(" ")[0], Status.EXCEPTION), text)
    return Outcome(Status.NOT_PLAIN, text)
