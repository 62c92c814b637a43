"""A sandbox from the outside: start it, run programs in it, and end it with its programs."""

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
    """The end of a program, or of a call of its function.

    The values are the statuses and events that the server (`child`) reports.
    """

    OK = 0
    EXCEPTION = 1  # the program raised, was killed, or ended with any other status
    MEMORY = child.MEMORY  # the program needed more memory than allowed
    SYNTAX = child.SYNTAX  # the program does not compile
    NO_FUNCTION = child.MISSING  # the program does not define the function that the tests call
    TIMEOUT = "timeout"  # the program took longer than a test may take
    OUTPUT = "output"  # the program wrote more than allowed
    NOT_PLAIN = "not plain"  # the function returned a value that is not plain data
    DEADLINE = "deadline"  # the time for all tests of the response was over

    @classmethod
    def _missing_(cls, value: object) -> Status:
        return cls.EXCEPTION


@dataclass(frozen=True)
class Outcome:
    """The result of a program."""

    status: Status
    text: str = ""  # the standard output of a script, or the message of a function (see `child`)


@dataclass(frozen=True)
class Limits:
    """The resources that a program may use."""

    # The CPU time for each test, in seconds, which is rounded up. The limit of real time is twice
    # as long.
    timeout: float = 4.0
    deadline: float = 15.0  # the real time for everything that one sandbox does, in seconds
    memory_limit_mb: float = 1024  # the address space of a program, in MiB

    def __post_init__(self) -> None:
        check_positive("timeout", self.timeout, "seconds")
        check_positive("deadline", self.deadline, "seconds")
        check_positive("memory_limit_mb", self.memory_limit_mb, "MiB")

    @property
    def cpu_seconds(self) -> int:
        """The timeout in whole seconds, because the kernel's limit has whole seconds."""
        return math.ceil(self.timeout)


@dataclass(frozen=True)
class Protection:
    """A way to start a sandbox."""

    name: str  # bubblewrap (as root or not), landlock or unprotected
    command: tuple[str, ...]  # the command that starts the server (`child`)
    settings: dict[str, Any]  # the settings with which the server confines itself
    # Whether the server changes to a user that no other process has. Then the kernel can limit the
    # number of its threads, although this process belongs to root.
    own_user: bool = False


@dataclass
class Sandbox(AbstractContextManager["Sandbox"]):
    """A running sandbox. It is a context manager, and must not be shared between threads.

    Programs run one after the other. Each of them has its own process, which inherits nothing from
    earlier programs. `imports` are modules that are loaded once for all programs.
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
        """Run a program to its end. `setup`, such as imports, runs first in the same module."""
        answer = self._ask({"start": "script", "setup": setup, "code": code, "stdin": stdin})
        return Outcome(self._status(answer), answer.get("text", ""))

    def load(self, setup: str, code: str, name: str) -> Outcome:
        """Start a program, so that `call` can call its function.

        Args:
          setup: code that runs first in the same module, such as the imports of a prompt. A
            function with the same name in it is removed.
          code: the program.
          name: the name of the function, or of a method of the class `Solution`.
        """
        request = {"start": "function", "setup": setup, "code": code, "name": name}
        outcome = self._call(request)
        # The content of the first message is ignored.
        return Outcome(Status.OK) if outcome.status is Status.NOT_PLAIN else outcome

    def call(self, arguments: str) -> Outcome:
        """Call the loaded function. `arguments` is JSON of `child.encode([args, kwargs])`.

        After `check`, this answers a call of the test. `arguments` is then the message of the
        function that was called.
        """
        return self._call({"send": arguments})

    def check(self, setup: str, test: str, name: str) -> Outcome:
        """Start a test, and return its first message.

        The message is `C` and the arguments of the first call, `P` if the test passed, or any other
        text if it failed.
        """
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
        # The program ended before it answered, which is not a success, whatever its status is.
        return Outcome(Status.EXCEPTION if status is Status.OK else status)

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the answer of the server: a message or an event."""
        wall = 2 * self.limits.timeout + 1
        # In JSON a character may become six characters, such as "\\u0000".
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
            self.close()
            # The server was killed. The cause may be the previous program, so a new program is
            # tried again in a new server.
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
                # The trainer's variables are left out, because they may contain keys. Each arena of
                # malloc takes 64 MiB of the address space, so there is only one.
                env={"LC_ALL": "C.UTF-8", "MALLOC_ARENA_MAX": "1"},
            )
            try:
                self.process.ask(settings, self.deadline)
            except EOFError:
                self.close()
                errors.seek(0)
                output = errors.read()[-400:].decode(errors="replace").strip()
                text = f"the sandbox {self.protection.name} did not start: {output}"
                raise SandboxError(text) from None
        return self.process

    def _status(self, answer: dict[str, Any]) -> Status:
        if answer["event"] != "exit":
            return Status(answer["event"])
        code = answer["status"]
        # If a program ignores SIGXCPU, the kernel kills it with SIGKILL. The CPU time that the
        # kernel reports may be less than the limit at which it killed the program. On a busy
        # machine the difference may be more than a few ticks, so half of the limit is enough.
        spent = answer.get("cpu", 0) >= 0.5 * self.limits.cpu_seconds
        if code == -signal.SIGXCPU or (code == -signal.SIGKILL and spent):
            return Status.TIMEOUT
        return Status(code)


def _unused_user() -> int:
    """Return a user id that no other process has."""
    # It is above the ranges that distributions use, and different for each process and sandbox.
    return (1 << 30) + (os.getpid() % (1 << 22)) * 128 + next(_numbers) % 128


def read_message(text: str) -> Outcome:
    """Read the status in the message of a function (see `child`).

    The value in the message is not read, because it may be anything.
    """
    if text.startswith("V"):
        return Outcome(Status.OK, text)
    if text.startswith("E"):
        statuses = {"ENotPlain": Status.NOT_PLAIN, "EMemoryError": Status.MEMORY}
        return Outcome(statuses.get(text.partition(" ")[0], Status.EXCEPTION), text)
    return Outcome(Status.NOT_PLAIN, text)
