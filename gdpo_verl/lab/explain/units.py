"""One reward counted in several units, and what a static weight does about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gdpo_verl.lab.explain.charts import Table, number
from gdpo_verl.lab.explain.toy import GRPO, Figure, Method, Skills, Training, over_seeds, train

UNITS = (0.1, 0.333, 1.0, 3.0, 10.0, 30.0)
# Each undoes one of the units.
WEIGHTS = (0.033, 0.1, 0.333, 1.0, 3.0, 10.0)
START = 0.3
SEEDS = 10


def training(unit: float, method: Method) -> Training:
    """Two equal skills, a success of the first worth `unit` and of the other 1."""
    return train(Skills(start=(START, START), scales=(unit, 1.0)), method, seeds=SEEDS)


def weighted(weight: float) -> Method:
    """GRPO with a static weight on the first reward."""
    return replace(GRPO, name=f"GRPO, weight {number(weight)}", weights=(weight, 1.0))


def averages(unit: float, method: Method) -> tuple[Figure, Figure]:
    """Both skills' means over all epochs."""
    found = training(unit, method)
    first, other = (over_seeds(found.each(k).mean(dim=0)) for k in range(2))
    return first, other


def table(units: Sequence[float], methods: Sequence[Method]) -> Table:
    """Head and rows: both skills' averages at each unit, mean over seeds ± its error."""
    head = ["unit of the first", "method", "first skill, all epochs", "other skill, all epochs"]
    rows = [
        [number(unit), method.name, *map(str, averages(unit, method))]
        for unit in units
        for method in methods
    ]
    return head, rows
