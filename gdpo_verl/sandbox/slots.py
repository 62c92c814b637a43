"""Slots in which a sandbox may run: one for each core, shared by all processes of a user."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import random
import socket
import time
from collections.abc import Iterator

logger = logging.getLogger(__name__)

_PATIENCE_SECONDS = 60.0


@contextlib.contextmanager
def core_slot() -> Iterator[None]:
    """Wait until one of the cores that this process may use has no sandbox, and reserve it.

    All reward workers of a user share the cores. Without slots, a program could spend its real time
    waiting for a core. A process reserves a core by binding a socket to the name of the core. The
    name is in the kernel's abstract namespace, not in the file system. The kernel gives a name to
    one process only, and frees it when the socket is closed.
    """
    cores = sorted(os.sched_getaffinity(0))
    with socket.socket(socket.AF_UNIX) as place:
        # Only a few cores are tried at a time, because hundreds of threads may be waiting here.
        last_warning = time.monotonic()
        while not any(_takes(place, core) for core in random.sample(cores, min(len(cores), 8))):
            time.sleep(0.02)
            if time.monotonic() - last_warning > _PATIENCE_SECONDS:
                last_warning = time.monotonic()
                logger.warning(
                    "a sandbox has waited %g seconds for one of %d cores; other processes of this "
                    "user are using all of them",
                    _PATIENCE_SECONDS,
                    len(cores),
                )
        yield


def _takes(place: socket.socket, core: int) -> bool:
    """Bind the socket to the name of a core; return False if another process has the name."""
    try:
        place.bind(f"\0gdpo-verl-{os.geteuid()}-core-{core}")
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return False
    return True
