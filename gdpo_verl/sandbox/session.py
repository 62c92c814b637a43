"""One sandbox, seen from outside: start it, run programs in it, end it with all it holds."""

from __future__ import annotations

import itertools
import math
import signal
import tempfile
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from gdpo_verl.sandbox import child
from gdpo_verl.sandbox.child_process import ChildProcess
from gdpo_verl.sandbox.protection import Protection, with_user
from gdpo_verl.sandbox.slots import SandboxError

_MEGABYTE = 1 << 20
_numbers = itertools.count()


class Status(Enum):
    """The end of a program, or of one call into it."""

    OK = auto()
    SYNTAX = auto()  # it does not compile
    EXCEPTION = auto()  # it raised, was killed, or left with another status than 0
    TIMEOUT = auto()  # it took longer than a test may
    MEMORY = auto()  # it needed more memory than allowed
    OUTPUT = auto()  # it wrote more than allowed
    NO_FUNCTION = auto()  # it does not define the function that the tests call
    NOT_PLAIN = auto()  # the function returned something else than plain data
    DEADLINE = auto()  # the time for all tests of the answer was over


@dataclass(frozen=True)
class Outcome:
    """The result of a program."""

    status: Status
    text: str = ""  # a script's standard output; a call's value, as JSON of `child.encode`
    error: str = ""  # the built-in exception that a call raised, and its arguments as JSON


@dataclass(frozen=True)
class Limits:
    """The resources that a program may use."""

    timeout: float = 4.0  # seconds of CPU time a test, rounded up; twice as many by the clock
    deadline: float = 15.0  # seconds by the clock for everything that one sandbox does
    memory_mb: float = 1024  # address space of a program, in MiB
    output_mb: float = 4  # of a program's output and of each file that it writes, in MiB
    processes: int = 64  # threads of a program, where they can be counted

    def __post_init__(self) -> None:
        for name in ("timeout", "deadline", "memory_mb", "output_mb", "processes"):
            value = getattr(self, name)
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not number or not 0 < value < math.inf:
                raise ValueError(f"{name}: expected a positive finite number, found {value!r}")

    @property
    def output_bytes(self) -> int:
        """The output limit in bytes."""
        return int(self.output_mb * _MEGABYTE)

    @property
    def cpu_seconds(self) -> int:
        """The time-out in whole seconds, as the kernel takes it."""
        return max(1, math.ceil(self.timeout))


class Sandbox(AbstractContextManager["Sandbox"]):
    """A running sandbox; a context manager, not shared between threads.

    Programs run one after the other, each in a process that inherits nothing from the others;
    `imports` are modules that are loaded once, for programs that all need them.
    """

    def __init__(self, protection: Protection, limits: Limits, imports: Sequence[str] = ()) -> None:
        self.limits = limits
        self.protection = protection
        self.imports = list(imports)
        self.deadline = time.monotonic() + limits.deadline
        self.process: ChildProcess | None = None

    def __exit__(self, *exception: object) -> None:
        self.close()

    def run(self, code: str, stdin: str = "", *, setup: str = "") -> Outcome:
        """Run a program to its end; `setup` first in the same module, as imports are."""
        answer = self._ask({"start": "script", "setup": setup, "code": code, "stdin": stdin})
        if answer is None:
            return Outcome(Status.DEADLINE)
        return Outcome(_status(answer, self.limits), str(answer.get("text", "")))

    def load(self, setup: str, code: str, name: str) -> Outcome:
        """Start a program whose function `name`, or method of `Solution`, `call` then calls.

        `setup` runs first in the same module, as a prompt's imports; its `name` is forgotten.
        """
        request = {"start": "function", "setup": setup, "code": code, "name": name}
        outcome = self._message(request)
        return Outcome(Status.OK) if outcome.status is Status.NOT_PLAIN else outcome

    def call(self, arguments: str) -> Outcome:
        """Call the loaded function; `arguments` is JSON of `child.encode([args, kwargs])`."""
        return self._message({"send": arguments})

    def check(self, setup: str, test: str, name: str) -> str:
        """Start a test; the answer is its first message, see `reply`."""
        request = {"start": "checks", "setup": setup, "code": test, "name": name}
        return self._text({**request, "wall": self.limits.deadline})

    def reply(self, message: str) -> str:
        """Answer a test's call: `C` and the next one's arguments, `P` for passed, or other text."""
        return self._text({"send": message})

    def close(self) -> None:
        """End everything in the sandbox."""
        if self.process is not None:
            self.process.end()
            self.process = None

    def _text(self, request: dict[str, Any]) -> str:
        answer = self._ask(request) or {}
        return str(answer["text"]) if answer.get("event") == "reply" else ""

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
        used = self.process is not None
        try:
            if not used:
                self._start()
            assert self.process
            # "\\u0000" for every character.
            most = 6 * self.limits.output_bytes + 4096
            found = self.process.ask({"wall": wall, **request}, self.deadline, most=most)
            return found if isinstance(found, dict) else {}
        except TimeoutError:
            self.close()
            return None
        except EOFError:
            self.close()  # whatever killed the server, perhaps what the last program left behind
            if used and "start" in request:
                return self._ask(request)
            return {"event": "exit", "status": -signal.SIGKILL}

    def _start(self) -> None:
        protection = with_user(self.protection, next(_numbers))
        limits = self.limits
        settings = protection.settings | {
            "cpu": limits.cpu_seconds,
            "memory": int(limits.memory_mb * _MEGABYTE),
            "output": limits.output_bytes,
            "processes": limits.processes,
            "imports": self.imports,
        }
        if time.monotonic() >= self.deadline:
            raise TimeoutError
        with tempfile.TemporaryFile() as errors:
            self.process = ChildProcess(
                protection.command,
                stderr=errors,
                cwd="/",
                # None of the trainer's, which may hold keys. An arena is 64 MiB of address space.
                env={"LC_ALL": "C.UTF-8", "MALLOC_ARENA_MAX": "1"},
            )
            try:
                self.process.ask(settings, self.deadline)
            except EOFError:
                self.close()
                errors.seek(0)
                said = errors.read()[-400:].decode(errors="replace").strip()
                raise SandboxError(f"{protection.name} does not start: {said}") from None


def read_reply(text: str) -> Outcome:
    """Read a function's message (`child`), but not the value: it may be anything."""
    kind = text[:1]
    rest = text[1:]
    if kind == "V":
        return Outcome(Status.OK, rest)
    if kind == "E":
        known = {"NotPlain": Status.NOT_PLAIN, "MemoryError": Status.MEMORY}
        return Outcome(known.get(rest.partition(" ")[0], Status.EXCEPTION), error=rest)
    return Outcome(Status.NOT_PLAIN)


def _status(answer: dict[str, Any], limits: Limits) -> Status:
    event = answer.get("event")
    code = answer.get("status")
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
