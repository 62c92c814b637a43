"""The last values of a recipe's runs: mean and spread over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean, stdev

from gdpo_verl.report.recipes import Recipe
from gdpo_verl.report.table import NOTHING, Row


def recipe_table(recipes: Sequence[Recipe], components: Sequence[str]) -> list[Row]:
    """Mean and standard deviation over seeds of where each run ended; without seeds no rows.

    Of a run's training metrics the mean over its last steps is taken, five where the shortest
    run allows it, of its held-out scores the last.
    """
    if all(len(recipe.runs) == 1 for recipe in recipes):
        return []
    rows = [Row("runs", tuple(str(len(recipe.runs)) for recipe in recipes))]
    for name in components:
        rows.append(_ends(f"training {name}", recipes, f"rewards/{name}/mean"))
        sources = dict.fromkeys(
            source for r in recipes for run in r.runs for source in run.validation_series(name)
        )
        for source in sources:
            where = f" ({source})" if len(sources) > 1 else ""
            ends = (
                [
                    run.validation_series(name)[source][-1][1]
                    for run in recipe.runs
                    if source in run.validation_series(name)
                ]
                for recipe in recipes
            )
            rows.append(Row(f"held-out {name}{where}", tuple(map(_spread, ends))))
        rows.append(
            _ends(
                f"share of groups without variation in {name}",
                recipes,
                f"gdpo/{name}/constant_groups",
            )
        )
    rows.append(_ends("response length, tokens", recipes, "response_length/mean"))
    return [row for row in rows if any(cell != NOTHING for cell in row.cells)]


def _ends(label: str, recipes: Sequence[Recipe], key: str) -> Row:
    found = [[[v for _, v in run.series(key)] for run in recipe.runs] for recipe in recipes]
    shortest = min((len(values) for each in found for values in each if values), default=0)
    few = max(1, min(5, shortest // 2))
    return Row(
        label, tuple(_spread([mean(values[-few:]) for values in each if values]) for each in found)
    )


def _spread(values: Sequence[float]) -> str:
    """
    >>> _spread([1.0, 3.0]), _spread([1.0]), _spread([])
    ('2.000 ± 1.414', '1.000', '–')
    """
    if len(values) < 2:
        return f"{values[0]:.3f}" if values else NOTHING
    return f"{mean(values):.3f} ± {stdev(values):.3f}"
