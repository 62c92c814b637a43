"""End a driver and everything that it started."""

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
    """End the run on SIGTERM or a closed terminal as on Ctrl-C, but not under nohup."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = {sign: signal.getsignal(sign) for sign in (signal.SIGTERM, signal.SIGHUP)}
    for sign, handler in before.items():
        if handler != signal.SIG_IGN:
            signal.signal(sign, interrupt)
    try:
        yield
    finally:
        for sign, handler in before.items():
            signal.signal(sign, handler)


def terminate(driver: subprocess.Popen[bytes]) -> None:
    """End a driver, which leads a session, as Ctrl-C would, and then the processes that it left."""
    if driver.poll() is None:
        os.killpg(driver.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            driver.wait(GRACE_SECONDS)
    # Without a driver, Ray's agents live on for a minute, and vLLM's processes until they notice.
    deadline = time.monotonic() + GRACE_SECONDS  # one that waits for a disk cannot be killed
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

    No other session gets its number while one of them is there.
    """
    processes = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            # proc(5): after the name, which may hold anything, are state, parent, group, session.
            state, _, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(session) == leader and state != "Z":
                processes.append(int(entry.name))
    return processes
