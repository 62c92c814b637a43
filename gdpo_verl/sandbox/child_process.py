"""A child process that answers lines of JSON, each within a deadline, and can be ended."""

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
    """A process that answers each line on its standard input with a line on its standard output.

    It is the leader of its own session, so that Ctrl-C does not reach it, and `end` also ends its
    children.

    Args:
      command: the command to run.
      options: options of `subprocess.Popen`, except for standard input and output.
    """

    def __init__(self, command: Sequence[str], **options: Any) -> None:
        pipe = subprocess.PIPE
        super().__init__(
            command, stdin=pipe, stdout=pipe, bufsize=0, start_new_session=True, **options
        )
        assert self.stdin
        # Otherwise a child that does not read could block a write beyond the deadline.
        os.set_blocking(self.stdin.fileno(), False)

    def ask(self, request: Any, until: float, *, most: float = math.inf) -> Any:
        """Send a line of JSON, and return the line of JSON that the process answers.

        Args:
          request: any value that JSON can represent.
          until: the deadline, as a time of `time.monotonic`.
          most: the largest length of an answer, in bytes.

        Raises:
          TimeoutError: there was no answer before the deadline.
          EOFError: the process ended, or its answer is too long or not JSON.
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
        """Kill the process and its children, and wait for the process."""
        with self:  # this closes the pipes, and waits for the process
            # If the process has already ended, another process may have its id now.
            if self.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.pid, signal.SIGKILL)
