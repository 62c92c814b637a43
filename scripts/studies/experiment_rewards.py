"""The rewards of docs/evidence.md, written as a user would extend those of gdpo-verl."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor

from gdpo_verl.advantage.decomposition import Decomposition
from gdpo_verl.config.components import Component, declares
from gdpo_verl.rewards import gsm8k, instructions, tool_call


def _times(unit: float, reward: Any) -> Callable[..., dict[str, float]]:
    """Return one of our rewards with another scale of its correctness."""
    components = []
    for component in reward.components:
        if component.name == "correctness":
            low = unit * component.low
            high = unit * component.high
            component = replace(component, low=low, high=high)
        components.append(component)

    @declares(*components)
    def compute_score(*args: Any, **kwargs: Any) -> dict[str, float]:
        returned = reward(*args, **kwargs)
        correctness = unit * returned["correctness"]
        # The other components stay in the score as they are.
        score = returned["score"] - returned["correctness"] + correctness
        return returned | {"correctness": correctness, "score": score}

    return compute_score


UNITS = {"times_third": 1 / 3, "times_1": 1.0, "times_3": 3.0, "times_10": 10.0}
# The arms' overrides have these names, because verl finds a reward function as an attribute.
times_third, times_1, times_3, times_10 = (
    _times(unit, tool_call.compute_score) for unit in UNITS.values()
)
gsm8k_times_1, gsm8k_times_10 = (_times(unit, gsm8k.compute_score) for unit in (1.0, 10.0))


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
    """Score the correctness of a sum, and 1 minus the response's tokens divided by the limit."""
    correctness = gsm8k.compute_score(data_source, solution_str, ground_truth)["correctness"]
    # Also for wrong responses, because that is the question of the study.
    length = max(0.0, 1 - extra_info["response_length"] / limit)
    return {"score": correctness + length, "correctness": correctness, "length": length}


@declares(*instructions.compute_score.components, Component("named", 0, 80))
def instructions_and_naming(*args: Any, **kwargs: Any) -> dict[str, float | None]:
    """Compute the rewards of instructions, and how often a text names its topic."""
    returned = instructions.compute_score(*args, **kwargs)
    topic = json.loads(kwargs["ground_truth"])["topic"]
    names = {name.rstrip("s") for name in re.findall(r"\w+", topic.lower())} - {"the"}
    words = re.findall(r"\w+", kwargs["solution_str"].lower())
    named = sum(word.rstrip("s") in names for word in words)
    return returned | {"named": float(named)}


def grpo_whitened(batch: Decomposition) -> Tensor:
    """Compute GRPO's advantages, to which GDPO's batch step is then applied."""
    return batch.grpo
