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
    """Yield a temporary path for a file or a folder, which is renamed to `path` at the end.

    If the block raises an error, an earlier file at `path` stays as it is. Temporary files that a
    killed process has left next to `path` are removed. An OSError, for example about a full disk,
    names a file.
    """
    for left in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        _remove(left)
    # The temporary path is in the same folder, because a rename is atomic only within one file
    # system.
    scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield scratch
        if path.is_dir():  # os.replace cannot replace a folder that is not empty
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
