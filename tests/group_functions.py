"""Functions of a whole group that a user could write for `algorithm.gdpo.derived`."""

from __future__ import annotations

import random
from typing import Any


def brevity(rewards: list[dict[str, Any]], lengths: list[int]) -> list[float | None]:
    """Return 1 for the shortest response of a group; None for a response without correctness."""
    least = min(lengths)
    return [
        None if info["correctness"] is None else float(length == least)
        for info, length in zip(rewards, lengths, strict=True)
    ]


def verbosity(rewards: list[dict[str, Any]], lengths: list[int]) -> list[float]:
    """Return a reward that depends on a diagnostic, which is no component."""
    return [info["words"] / length for info, length in zip(rewards, lengths, strict=True)]


def known(rewards: list[dict[str, Any]], lengths: list[int]) -> list[float]:
    """Return 1 for each response for which a certain component is scored."""
    return [float(info["component_2"] is not None) for info in rewards]


def raising(rewards: Any, lengths: Any) -> Any:
    raise KeyError("nobody")


def too_few(rewards: Any, lengths: Any) -> Any:
    return [1.0] * (len(rewards) - 1)


def text(rewards: Any, lengths: Any) -> Any:
    return ["1.0"] * len(rewards)


def infinite(rewards: Any, lengths: Any) -> Any:
    return [float("inf")] * len(rewards)


def nothing(rewards: Any, lengths: Any) -> Any:
    return None


async def asynchronous(rewards: Any, lengths: Any) -> Any:
    return [1.0] * len(rewards)


def careless(rewards: list[dict[str, Any]], lengths: list[int]) -> list[float]:
    """Seed Python's generator, and modify the arguments."""
    random.seed(0)
    for info in rewards:
        info.clear()
    lengths.clear()
    return [float(place) for place in range(len(rewards))]
