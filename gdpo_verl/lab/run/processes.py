"""End verl's driver and all processes that it started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

GRACE_SECONDS = 20.0


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP (a closed terminal) into KeyboardInterrupt, as Ctrl-C does.

    A signal that is ignored stays ignored, for example SIGHUP under nohup.
    """

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    for number, handler in before.items():
        if handler != signal.SIG_IGN:
            signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def terminate(driver: subprocess.Popen[bytes]) -> None:
    """End a driver as Ctrl-C would, and then kill the processes that it left.

    The driver must be the leader of a session, to which all its processes belong.
    """
    if driver.poll() is None:
        os.killpg(driver.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            driver.wait(GRACE_SECONDS)
    # After the end of the driver, Ray's agents live for another minute, and vLLM's processes live
    # until they notice the end.
    deadline = time.monotonic() + GRACE_SECONDS  # a process that waits for a disk cannot be killed
    left = _session(driver.pid)
    while left and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        driver.poll()
        time.sleep(0.1)
        left = _session(driver.pid)
    driver.wait()


def _session(leader: int) -> list[int]:
    """Return the processes of a session, without zombies.

    The kernel gives the number of the session to no other session while one of them exists.
    """
    processes = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            # The fields of proc(5) after the name: state, parent, group, session. The name itself
            # may contain any character, so the fields are counted from its last parenthesis.
            state, _, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(session) == leader and state != "Z":
                processes.append(int(entry.name))
    return processes
