"""Keep Python's cyclic garbage collector still while a large text is read.

Reading JSON makes many lists and dicts and no cycles. The collector, which runs whenever
enough of them are new, finds nothing, and walks the whole heap of the process again and again:
on a megabyte of small lists it takes several times as long as the decoder.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_paused = 0  # how many threads want it still
_was_enabled = False


@contextmanager
def collector_paused() -> Iterator[None]:
    """The collector rests until the last of the threads that are in here leaves.

    It belongs to the whole process, so let go of what was made, and soon: cycles of other
    threads stay in memory meanwhile. One that was disabled before stays so.
    """
    global _paused, _was_enabled
    with _lock:
        if not _paused:
            _was_enabled = gc.isenabled()
            gc.disable()
        _paused += 1
    try:
        yield
    finally:
        with _lock:
            _paused -= 1
            if not _paused and _was_enabled:
                gc.enable()
