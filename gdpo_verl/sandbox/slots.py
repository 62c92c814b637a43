"""Places to run a sandbox, one per core, which all processes of a user share."""

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
    """Wait for one of the cores that this process may use, to run a sandbox on.

    All reward workers of a user share the cores, so that a program does not spend its seconds of
    real time waiting for a core. A process takes a core by binding a socket to its name, which is
    not a file: the kernel keeps the name while the socket is open, and gives it to one process
    only.
    """
    cores = sorted(os.sched_getaffinity(0))
    with socket.socket(socket.AF_UNIX) as place:
        # Only a few at a time, because hundreds of threads may be waiting here.
        said = time.monotonic()
        while not any(_takes(place, core) for core in random.sample(cores, min(len(cores), 8))):
            time.sleep(0.02)
            if time.monotonic() - said > _PATIENCE_SECONDS:
                said = time.monotonic()
                logger.warning(
                    "a sandbox has waited %g seconds for one of %d cores; other processes of this "
                    "user are using all of them",
                    _PATIENCE_SECONDS,
                    len(cores),
                )
        yield


def _takes(place: socket.socket, core: int) -> bool:
    try:
        place.bind(f"\0gdpo-verl-{os.geteuid()}-core-{core}")
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return False
    return True
