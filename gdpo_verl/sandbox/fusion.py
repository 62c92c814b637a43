"""Run programs on a Sandbox Fusion service (https://github.com/bytedance/SandboxFusion).

Each program and each call is one POST request to `run_code`. A request has the code and the inputs,
but not the expected output.
"""

from __future__ import annotations

import functools
import inspect
import json
import time
import urllib.error
import urllib.request
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from gdpo_verl.sandbox import child
from gdpo_verl.sandbox.protection import used
from gdpo_verl.sandbox.session import Limits, Outcome, SandboxError, Status, read_message

_PAUSES = (1, 2, 0)  # the pause after each attempt, in seconds
# The HTTP statuses after which a request is repeated. None means that the service was not reached.
_BUSY = (None, 429, 502, 503, 504)


class ServiceError(SandboxError):
    """The service does not work, or there is no service at the address."""

    argument = "sandbox_fusion_url"  # the text of the error begins with the name of this argument


@dataclass
class FusionSandbox:
    """A service with the interface of `Sandbox`.

    A function keeps no state from one call to the next, because each call runs a new program.
    """

    url: str
    limits: Limits
    semaphore: AbstractContextManager[Any] | None = None  # it is held during a request
    program: str = ""  # the program that `call` sends

    def __post_init__(self) -> None:
        self.deadline = time.monotonic() + self.limits.deadline

    def run(self, code: str, stdin: str = "", *, setup: str = "") -> Outcome:
        """Run `setup` and then a program, from its first line to its end."""
        # The service limits the time of each program. The time of all programs is limited here.
        if time.monotonic() >= self.deadline:
            return Outcome(Status.DEADLINE)
        answer = self._post(
            {
                "code": f"{setup}\n{code}" if setup else code,
                "stdin": stdin,
                "language": "python",
                "run_timeout": self.limits.timeout,
                "memory_limit_MB": self.limits.memory_limit_mb,
            }
        )
        result = answer.get("run_result") or answer.get("compile_result") or {}
        output = str(result.get("stdout") or "")
        if answer.get("status") == "SandboxError" or not result:
            raise _fault(self.url, answer.get("message") or answer)
        if result.get("status") == "TimeLimitExceeded":
            return Outcome(Status.TIMEOUT)
        if len(output) > child.OUTPUT:
            return Outcome(Status.OUTPUT)
        return Outcome(Status(result.get("return_code")), output)

    def load(self, setup: str, code: str, name: str) -> Outcome:
        """Store the program, which `call` sends each time."""
        function = {"setup": setup, "code": code, "name": name}
        self.program = _caller() + f"_call_once({function!r})\n"
        return Outcome(Status.OK)

    def call(self, arguments: str) -> Outcome:
        """Run the program and call its function once."""
        outcome = self.run(self.program, arguments)
        if outcome.status is not Status.OK:
            return outcome
        # The last complete line is the reply. The line before it says that the function is loaded.
        *_, reply = outcome.text.split("\n")[:-1] or [""]
        return read_message(reply)

    def _post(self, request: dict[str, Any]) -> dict[str, Any]:
        body = json.dumps(request).encode()
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        # The service itself reports a slow program, so this timeout is longer than the service may
        # need.
        patience = 10 + 2 * self.limits.timeout
        for pause in _PAUSES:
            try:
                sent = urllib.request.Request(self.url, body, headers)
                with (
                    self.semaphore or nullcontext(),
                    urllib.request.urlopen(sent, timeout=patience) as response,
                ):
                    answer = json.load(response)
                if not isinstance(answer, dict):
                    raise ValueError(f"expected an object, found {answer!a:.200}")
                return answer
            except (OSError, ValueError) as error:
                fault = _fault(self.url, f"{type(error).__name__}: {error}")
                if getattr(error, "code", None) not in _BUSY:
                    raise fault from error
            time.sleep(pause)
        raise fault


@functools.cache
def check_service(url: str) -> None:
    """Run a small program on the service; raise ServiceError if the service does not work.

    The result is cached, so that this happens only once in a process.
    """
    outcome = FusionSandbox(url, Limits()).run("print(6 * 7)")
    if outcome.text.strip() != "42":
        raise _fault(url, f"print(6 * 7) gave {outcome}. Is it `…/run_code`?")
    used.add(f"Sandbox Fusion at {url}")


@functools.cache
def _caller() -> str:
    """Return the source of a program that serves a function on its stdin and stdout.

    It is the source of `child`, without its last lines that start the server.
    """
    source = inspect.getsource(child)
    return source[: source.rindex("\n\nif __name__")] + (
        "\n\ndef _call_once(request):\n"
        "    reply = os.dup(1)\n"
        "    os.dup2(2, 1)  # what the program prints is no reply\n"
        "    _serve_function(request, 0, reply)\n\n\n"
    )


def _fault(url: str, problem: object) -> ServiceError:
    return ServiceError(f"{ServiceError.argument}={url}: {str(problem)[:300]}")
