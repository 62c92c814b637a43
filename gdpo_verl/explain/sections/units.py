"""One reward in another unit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import marimo as mo

from gdpo_verl.explain import charts, curves, toy, units
from gdpo_verl.explain.sections import layout


def heading() -> str:
    return charts.block(
        "units-heading",
        charts.heading(2, "8. Units"),
        f"Two skills that are equally hard; both start at {units.START}. A reward function may "
        "count a success of the first as 1, as 10 points or as a tenth: the skill is the same. "
        "Choose the unit, and a static weight on that reward for GRPO. "
        f"Every number is a mean over {units.SEEDS} seeds.",
    )


def form() -> Any:
    return mo.ui.dictionary(
        {
            "unit": layout.stepped_slider(units.UNITS, 10.0, "a success of the first counts"),
            "weight": layout.stepped_slider(units.WEIGHTS, 0.333, "GRPO's weight on it"),
        }
    )


def show(chosen: Mapping[str, float]) -> str:
    unit, weight = chosen["unit"], chosen["weight"]
    methods = (toy.GRPO, toy.GDPO, units.weighted(weight))
    found = {method: units.training(unit, method) for method in methods}
    both = (toy.GRPO, toy.GDPO)
    return charts.block(
        "units",
        units.unit_sentence(unit),
        units.weight_sentence(unit, weight),
        curves.figures(
            [
                *[
                    curves.curves(title, "success", {m: t.each(k) for m, t in found.items()})
                    for k, title in enumerate(("First skill", "Other skill"))
                ],
                curves.over_units(
                    "Other skill, mean of all epochs",
                    "success",
                    units.UNITS,
                    {m: [units.averages(u, m).other.mean for u in units.UNITS] for m in both},
                ),
            ]
        ),
        charts.folded("Every unit in numbers", charts.table(*units.table())),
    )
