"""A child process that is asked by lines of JSON, each within a deadline, and can be ended."""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import signal
import subprocess
import time
from collections.abc import Sequence
from typing import Any


class ChildProcess(subprocess.Popen[bytes]):
    """A process that answers each line on its standard input with one on its standard output.

    It heads its own session: Ctrl-C does not reach it, and what it started ends with it.

    Args:
      command: what to run.
      options: of `subprocess.Popen`, for anything but those two channels.
    """

    def __init__(self, command: Sequence[str], **options: Any) -> None:
        pipe = subprocess.PIPE
        super().__init__(
            command, stdin=pipe, stdout=pipe, bufsize=0, start_new_session=True, **options
        )
        assert self.stdin
        # Else a child that does not read would hold us in a write beyond the deadline.
        os.set_blocking(self.stdin.fileno(), False)

    def ask(self, request: Any, until: float, *, most: float = math.inf) -> Any:
        """Send one line and read one, both JSON.

        Args:
          request: what JSON can hold.
          until: the deadline, by `time.monotonic`.
          most: the longest answer, in bytes.

        Raises:
          TimeoutError: there was no answer by then.
          EOFError: the process ended, or its answer is too long or no JSON.
        """
        assert self.stdin
        assert self.stdout
        source = self.stdout.fileno()
        sink = self.stdin.fileno()
        unsent = memoryview(json.dumps(request).encode() + b"\n")
        received = bytearray()
        poll = select.poll()
        poll.register(source, select.POLLIN)
        poll.register(sink, select.POLLOUT)
        while not received.endswith(b"\n"):
            left = max(0.0, until - time.monotonic())
            ready = dict(poll.poll(min(1000 * left, 2**31 - 1)))  # milliseconds, as a C int
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
            return json.loads(received)
        except (ValueError, RecursionError):
            raise EOFError from None

    def end(self) -> None:
        """Kill the whole session, and wait for the process."""
        with self:  # which closes the pipes, and waits
            if self.returncode is None:  # else the number may be another's by now
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.pid, signal.SIGKILL)
