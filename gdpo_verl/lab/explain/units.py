"""One reward in several scales, and the effect of a static weight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gdpo_verl.lab.explain.charts import Table, number
from gdpo_verl.lab.explain.toy import GRPO, Figure, Method, Skills, Training, over_seeds, train

UNITS = (0.1, 0.333, 1.0, 3.0, 10.0, 30.0)
# Each weight cancels one of the scales.
WEIGHTS = (0.033, 0.1, 0.333, 1.0, 3.0, 10.0)
START = 0.3
SEEDS = 10


def training(unit: float, method: Method) -> Training:
    """Return two equal skills; a success of the first gives `unit`, one of the other 1."""
    return train(Skills(start=(START, START), scales=(unit, 1.0)), method, seeds=SEEDS)


def weighted(weight: float) -> Method:
    """Return GRPO with a static weight on the first reward."""
    return replace(GRPO, name=f"GRPO, weight {number(weight)}", weights=(weight, 1.0))


def averages(unit: float, method: Method) -> tuple[Figure, Figure]:
    """Return the means of both skills over all epochs."""
    skills = training(unit, method)
    first = over_seeds(skills.each(0).mean(dim=0))
    other = over_seeds(skills.each(1).mean(dim=0))
    return first, other


def table(units: Sequence[float], methods: Sequence[Method]) -> Table:
    """Return head and rows: the averages of both skills at each scale, mean ± its error."""
    head = ["scale of the first", "method", "first skill, all epochs", "other skill, all epochs"]
    rows = []
    for unit in units:
        for method in methods:
            first, other = averages(unit, method)
            rows.append([number(unit), method.name, str(first), str(other)])
    return head, rows
