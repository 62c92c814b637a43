"""Texts, whose time grows linearly with them."""

from __future__ import annotations

import time
from collections.abc import Callable


def seconds(work: Callable[[], object]) -> float:
    """Processor time, the best of three: other people share the machine."""
    times = []
    for _ in range(3):
        started = time.process_time()
        work()
        times.append(time.process_time() - started)
    return min(times)


def long() -> float:
    """Seconds in which this machine, at this moment, counts to twenty million.

    No text of 1 MB may take longer.
    """
    return 100 * seconds(lambda: sum(1 for _ in range(200_000)))


def assert_linear(judge: Callable[[str], object], text: Callable[[int], str]) -> None:
    """A quadratic rule would need 100 times as long for 10 times the text, these need 13."""
    texts = text(1_000_000), text(100_000)
    large, small = (seconds(lambda text=text: judge(text)) for text in texts)
    assert large < long()
    assert large < 30 * small + 0.05


def filled(unit: str, start: str = "", end: str = "") -> Callable[[int], str]:
    """Texts of any size, of which all but the ends repeats one unit."""
    return lambda size: start + unit * ((size - len(start) - len(end)) // len(unit)) + end
