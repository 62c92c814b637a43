"""The rewards of docs/evidence.md, as a user writes them on top of those of gdpo-verl."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from gdpo_verl.advantage.decomposition import Decomposition
from gdpo_verl.rewards import gsm8k, tool_call
from gdpo_verl.rewards.components import Component, declares


def _times(unit: float) -> Callable[..., dict[str, float]]:
    """The two rewards of tool calling, correctness counted in another unit."""

    @declares(
        Component("format", 0, 1),
        Component("correctness", unit * tool_call.LOWEST, unit * tool_call.HIGHEST),
    )
    def compute_score(*args: Any, **kwargs: Any) -> dict[str, float]:
        found = tool_call.compute_score(*args, **kwargs)
        correctness = unit * found["correctness"]
        return found | {"correctness": correctness, "score": found["format"] + correctness}

    return compute_score


UNITS = {"times_third": 1 / 3, "times_1": 1.0, "times_3": 3.0, "times_10": 10.0}
times_third, times_1, times_3, times_10 = map(_times, UNITS.values())


def _gsm8k_times(unit: float) -> Callable[..., dict[str, float]]:
    """GSM8K's three rewards, correctness counted in another unit."""

    @declares(
        Component("correctness", 0, unit), Component("integer", 0, 1), Component("format", 0, 1)
    )
    def compute_score(*args: Any, **kwargs: Any) -> dict[str, float]:
        found = gsm8k.compute_score(*args, **kwargs)
        more = (unit - 1) * found["correctness"]
        return found | {"correctness": unit * found["correctness"], "score": found["score"] + more}

    return compute_score


gsm8k_times_1, gsm8k_times_10 = _gsm8k_times(1.0), _gsm8k_times(10.0)


@declares(Component("correctness", 0, 1), Component("length", 0, 1))
def short_sums(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: dict[str, Any],
    *,
    limit: int,
    **kwargs: Any,
) -> dict[str, float]:
    """Correctness of a sum, and 1 minus the response's tokens over the limit."""
    correctness = gsm8k.compute_score(data_source, solution_str, ground_truth)["correctness"]
    length = max(0.0, 1 - extra_info["response_length"] / limit)
    return {"score": correctness + length, "correctness": correctness, "length": length}


def grpo_whitened(batch: Decomposition) -> Tensor:
    """GRPO's advantages, to which GDPO's own batch step is then applied."""
    return batch.grpo
