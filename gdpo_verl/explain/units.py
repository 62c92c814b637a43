"""One reward counted in several units, and what a static weight does about it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from gdpo_verl.explain.conclusions import number
from gdpo_verl.explain.toy import (
    GDPO,
    GRPO,
    Figure,
    Method,
    Skills,
    Training,
    over_seeds,
    train,
    verdict,
)

UNITS = (0.1, 0.333, 1.0, 3.0, 10.0, 30.0)
WEIGHTS = (0.033, 0.1, 0.333, 1.0, 3.0, 10.0)
START = 0.3
SEEDS = 10


@dataclass(frozen=True)
class Averages:
    """Both skills' means over all epochs."""

    first: Figure
    other: Figure

    @property
    def worse(self) -> Figure:
        return min(self.first, self.other, key=lambda figure: figure.mean)


def training(unit: float, method: Method) -> Training:
    """Two equal skills, a success of the first worth `unit` and of the other 1."""
    return train(Skills(start=(START, START), scales=(unit, 1.0)), method, seeds=SEEDS)


def weighted(weight: float) -> Method:
    """GRPO with a static weight on the first reward."""
    return replace(GRPO, name=f"GRPO, weight {number(weight)}", weights=(weight, 1.0))


@lru_cache(maxsize=64)
def averages(unit: float, method: Method) -> Averages:
    found = training(unit, method)
    return Averages(*(over_seeds(found.each(k).mean(dim=0)) for k in range(2)))


def unit_sentence(unit: float) -> str:
    """Say what the unit does to both skills, and how far it moves each method's other skill."""
    grpo, gdpo = averages(unit, GRPO), averages(unit, GDPO)
    moved = {
        method.name: max(values) - min(values)
        for method in (GDPO, GRPO)
        for values in [[averages(each, method).other.mean for each in UNITS]]
    }
    return (
        f"A success of the first skill counts {number(unit)}, of the other 1. Over all epochs "
        f"they average {grpo.first} and {grpo.other} with GRPO, {gdpo.first} and {gdpo.other} "
        f"with GDPO. From unit {number(UNITS[0])} to unit {number(UNITS[-1])} the other skill's "
        f"average moves by {moved['GDPO']:.4f} with GDPO and by {moved['GRPO']:.4f} with GRPO."
    )


def weight_sentence(unit: float, weight: float) -> str:
    """Say whether a static weight makes up for the unit, by the worse of the two skills."""
    gdpo, tuned = averages(unit, GDPO).worse, averages(unit, weighted(weight)).worse
    text = (
        f"To GRPO the weight {number(weight)} and the unit {number(unit)} are one factor, "
        f"{number(weight * unit)}: the worse of the two skills averages {tuned}, with GDPO {gdpo}. "
    )
    return (
        text
        + {
            0: "This weight does as well as GDPO, as long as nobody changes the unit.",
            1: "This weight does not make up for the unit.",
            -1: "With this weight GRPO is ahead.",
        }[verdict(gdpo, tuned)]
    )


def table() -> tuple[list[str], list[list[str]]]:
    """Head and rows: both skills' averages at each unit, mean over seeds ± its error."""
    head = ["unit of the first"]
    head += [f"{skill}, {m.name}" for m in (GRPO, GDPO) for skill in ("first", "other")]
    rows = []
    for unit in UNITS:
        found = [averages(unit, method) for method in (GRPO, GDPO)]
        figures = [str(figure) for each in found for figure in (each.first, each.other)]
        rows.append([number(unit), *figures])
    return head, rows
