"""Whether the time that a text takes grows linearly with it."""

from __future__ import annotations

import time
from collections.abc import Callable

BUSY = 0.45
"""Seconds for 1 MB. scripts/benchmark_rewards.py has the figures of a quiet machine, 0.15 and 13
times the time of 100 kB; the rest is for busy ones, where caches are shared."""


def seconds(judge: Callable[[str], object], text: str) -> float:
    """Processor time, the best of three: other people share the machine."""
    times = []
    for _ in range(3):
        started = time.process_time()
        judge(text)
        times.append(time.process_time() - started)
    return min(times)


def assert_linear(judge: Callable[[str], object], text: Callable[[int], str]) -> None:
    """A quadratic rule would need 100 times as long for 10 times the text."""
    large, small = seconds(judge, text(1_000_000)), seconds(judge, text(100_000))
    assert large < BUSY
    assert large < 30 * small + 0.05
