"""Write files and folders so that a reader never finds an incomplete one, and digest files."""

from __future__ import annotations

import glob
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_CHUNK_BYTES = 1 << 20


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Lend a path to write a file or a folder to; it gets the name `path` when the block ends.

    When the block raises, what was there stays. What a killed process left next to `path` is
    removed. An OSError, such as that of a full disk, names a file.
    """
    for left in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        _remove(left)
    # Next to it: a name is changed at once only within one file system.
    scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield scratch
        if path.is_dir():  # no call replaces a folder that holds something
            shutil.rmtree(path)
        os.replace(scratch, path)
    except OSError as error:
        if error.filename is None and error.errno:
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    finally:
        _remove(scratch)


def write_text(path: Path, text: str) -> None:
    """Write a text as UTF-8, so that no reader finds an incomplete file.

    Half of a surrogate pair, which a tokenizer can produce, becomes a question mark.
    """
    with replacing(path) as scratch:
        scratch.write_text(text, encoding="utf-8", errors="replace")


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        chunk = file.read(_CHUNK_BYTES)
        while chunk:
            digest.update(chunk)
            chunk = file.read(_CHUNK_BYTES)
    return digest.hexdigest()


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
