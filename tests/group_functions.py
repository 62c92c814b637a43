"""Functions of a whole group, as a user writes them for `algorithm.gdpo.derived`."""

from __future__ import annotations

import random
from typing import Any


def brevity(rewards: list[dict[str, Any]], lengths: list[int]) -> list[float | None]:
    """1 for the shortest of a group, and None for one without a correctness."""
    least = min(lengths)
    return [
        None if info["correctness"] is None else float(length == least)
        for info, length in zip(rewards, lengths, strict=True)
    ]


def verbosity(rewards: list[dict[str, Any]], lengths: list[int]) -> list[float]:
    """A reward from a diagnostic that is no component."""
    return [info["words"] / length for info, length in zip(rewards, lengths, strict=True)]


def known(rewards: list[dict[str, Any]], lengths: list[int]) -> list[float]:
    """1 where a component is scored."""
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
    """Seeds a generator, and changes what it was given."""
    random.seed(0)
    for info in rewards:
        info.clear()
    lengths.clear()
    return [float(place) for place in range(len(rewards))]
