"""What the runs kept in docs/evidence/ say: each question's endpoints, by arm and seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from study import arms
from study_rewards import UNITS

from gdpo_verl.report.tables import half_interval

Entry = Mapping[str, Any]
BySeed = Mapping[int, float]
Values = Mapping[str, BySeed]  # of one endpoint, by arm
SIGNS = {"third": "⅓", "1": "1", "3": "3", "10": "10"}
FAMILIES = {"gdpo": "GDPO", "grpo": "GRPO", "whitened": "GRPO, whitened"}
WEIGHTS = {"weight-0.03": 0.03, "weight-0.1": 0.1, "weight-0.3": 0.3, "grpo-10": 1.0}
PART = "correctness's part"
CONSTANT = "groups of constant format"
NAMES = {
    "q1": {f"{f}-{u}": f"{FAMILIES[f]}, × {SIGNS[u]}" for f in FAMILIES for u in SIGNS}
    | {arm: f"GRPO, × 10, weight {weight:g}" for arm, weight in WEIGHTS.items() if weight < 1},
    "q2": {
        "grpo": "GRPO",
        "gdpo": "GDPO",
        "gdpo-condition": "GDPO with the condition",
        "gdpo-gate": "GDPO with the gate",
        "grpo-condition": "GRPO with the condition",
    },
}  # fmt: skip


def series(entry: Entry, name: str) -> list[float]:
    """A metric at each step that has it."""
    return [value for value in entry["metrics"].get(name, []) if value is not None]


def unit(entry: Entry) -> float:
    """The unit in which an arm's reward counts correctness."""
    return UNITS.get(arms(entry["question"])[entry["arm"]]["reward"], 1.0)


def held_out(entry: Entry, component: str) -> list[float]:
    """A component on the held-out prompts, before and after, as the reward counts it."""
    task = arms(entry["question"])[entry["arm"]]["task"]
    return series(entry, f"val-aux/{task}/{component}/mean@1")


def correctness_part(entry: Entry) -> float:
    """Correctness's part of GDPO's terms, or of both rewards' deviations in GRPO's sum."""
    if entry["arm"].startswith("gdpo"):
        return fmean(series(entry, "gdpo/correctness/advantage_share"))
    form, other = (fmean(series(entry, f"rewards/{c}/std")) for c in ("format", "correctness"))
    other *= WEIGHTS.get(entry["arm"], 1.0)
    return other / (form + other)


ENDPOINTS: dict[str, dict[str, Callable[[Entry], float]]] = {
    "q1": {
        "format": lambda e: fmean(series(e, "rewards/format/mean")),
        "correctness": lambda e: fmean(series(e, "rewards/correctness/mean")) / unit(e),
        "held-out format, end": lambda e: held_out(e, "format")[-1],
        "held-out correctness, end": lambda e: held_out(e, "correctness")[-1] / unit(e),
        PART: correctness_part,
        CONSTANT: lambda e: fmean(series(e, "gdpo/format/constant_groups")),
    },
    "q2": {
        "held-out correctness, end": lambda e: held_out(e, "correctness")[-1],
        "before training": lambda e: held_out(e, "correctness")[0],
        "tokens, last step": lambda e: series(e, "response_length/mean")[-1],
        "phantom groups": lambda e: fmean(series(e, "gdpo/phantom_groups")),
    },
}


def measure(question: str, entries: Sequence[Entry]) -> dict[str, Values]:
    """Endpoint to arm to seed to value."""
    return {
        name: {
            arm: {each["seed"]: value(each) for each in entries if each["arm"] == arm}
            for arm in NAMES[question]
        }
        for name, value in ENDPOINTS[question].items()
    }


def minus(first: BySeed, second: BySeed) -> list[float]:
    """First minus second, for each seed that both have."""
    return [first[seed] - second[seed] for seed in sorted(first.keys() & second.keys())]


def around(differences: Sequence[float]) -> tuple[float, float, float]:
    """Mean and both ends of the paired interval."""
    mean, half = fmean(differences), half_interval(differences)
    return mean, mean - half, mean + half


def interquartile_mean(values: ArrayLike, axis: int = -1) -> Any:
    """The mean without the lowest and the highest quarter.

    >>> float(interquartile_mean([0.0, 1.0, 2.0, 3.0, 100.0]))
    2.0
    """
    ordered = np.moveaxis(np.sort(values, axis=axis), axis, 0)
    cut = len(ordered) // 4
    return ordered[cut : len(ordered) - cut].mean(axis=0)
