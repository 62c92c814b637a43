"""Places to run a sandbox in, as many as the machine has cores, shared by a user's processes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path


class SandboxError(RuntimeError):
    """The sandbox itself does not work: neither the program's fault nor its verdict."""


@contextlib.contextmanager
def core_slot(count: int | None = None) -> Iterator[None]:
    """Wait for one of the machine's places to run a sandbox in, as many as it has cores.

    All reward workers of a user share them, so that a program's seconds by the clock are not
    spent waiting for a core. A place is a lock on a file: the kernel gives it back.
    """
    count = count or len(os.sched_getaffinity(0))
    with slot_directory() as directory:
        while (file := _free_slot(directory, count)) is None:
            time.sleep(0.02)
    try:
        yield
    finally:
        os.close(file)


def _free_slot(directory: int, count: int) -> int | None:
    # A few of them at a time: hundreds of threads may be waiting here.
    for number in random.sample(range(count), min(count, 8)):
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(str(number), flags, 0o600, dir_fd=directory)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file
        except BlockingIOError:
            os.close(file)
    return None


@contextlib.contextmanager
def slot_directory() -> Iterator[int]:
    """Open the directory of the places, or raise SandboxError where others may write it.

    Its path can be foreseen, and anyone may have made it.
    """
    path = Path(tempfile.gettempdir()) / f"gdpo-verl-slots-{os.geteuid()}"
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    try:  # opened once and asked then, so that nobody can put another in its place in between
        directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise SandboxError(_refusal(path, error.strerror or str(error))) from error
    try:
        found = os.fstat(directory)
        if found.st_uid != os.geteuid() or found.st_mode & 0o022:
            whose = f"user {found.st_uid}'s with mode {found.st_mode & 0o7777:04o}"
            raise SandboxError(_refusal(path, whose))
        yield directory
    finally:
        os.close(directory)


def _refusal(path: Path, found: str) -> str:
    return (
        f"{path}: expected a directory that user {os.geteuid()} alone may write, found {found}. "
        "Remove it, or set TMPDIR to your own directory."
    )
