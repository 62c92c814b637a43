"""Two recipes over the same seeds: from where to where each went, and their difference."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, stdev

from gdpo_verl.report.recipes import Recipe
from gdpo_verl.report.survey import Survey
from gdpo_verl.report.table import Row
from gdpo_verl.rundir.run import Run

# Student's t for an interval of 95 %, by the number of pairs; the last one for more, too wide.
_T = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}
_FEW = 5

# One run's value at its start, if it has one, and at its end.
Ends = tuple[float | None, float] | None


@dataclass(frozen=True)
class Comparison:
    """A table of two recipes.

    Attributes:
      names: of its columns.
      rows: a quantity, each recipe's mean ± standard deviation, and the difference.
      seeds: how many pairs of runs.
    """

    names: tuple[str, str, str]
    rows: tuple[Row, ...]
    seeds: int


def compare(
    recipes: Sequence[Recipe], components: Sequence[str], surveys: Sequence[Survey]
) -> Comparison | None:
    """Pair the runs of two recipes by ``data.seed``.

    Of training metrics the means over the first and the last five steps are taken (fewer for
    runs of less than ten) and over all, of held-out scores the first and the last. The difference
    is that of the last values, its mean over the pairs ± the half of a 95 % interval by Student's
    t.

    Args:
      recipes: anything but two gives None.
      components: to be compared.
      surveys: what the dumps of all runs show.

    Returns:
      None, too, where the seeds are not known, not the same, or one alone.
    """
    by_seed = [{run.setting("data.seed"): run for run in recipe.runs} for recipe in recipes]
    if len(by_seed) != 2 or None in by_seed[0] or set(by_seed[0]) != set(by_seed[1]):
        return None
    if len(by_seed[0]) < 2 or any(len(recipe.runs) != len(by_seed[0]) for recipe in recipes):
        return None
    pairs = [(run, by_seed[1][seed]) for seed, run in by_seed[0].items()]
    rows = [
        row
        for label, ends, percent in _quantities(pairs, components, surveys)
        if (row := _row(label, pairs, ends, percent))
    ]
    first, second = (recipe.name for recipe in recipes)
    return Comparison((first, second, f"{first} − {second}"), tuple(rows), len(pairs))


Quantity = tuple[str, Callable[[Run], Ends], bool]


def _quantities(
    pairs: Sequence[tuple[Run, Run]], components: Sequence[str], surveys: Sequence[Survey]
) -> Iterator[Quantity]:
    steps = min(len(run.training_steps) for pair in pairs for run in pair)
    few = max(1, min(_FEW, steps // 2))
    where = f"first → last {few} steps" if few > 1 else "first → last step"

    def metric(label: str, key: str, *, percent: bool = False) -> Quantity:
        def ends(run: Run) -> Ends:
            values = [value for _, value in run.series(key)]
            return (fmean(values[:few]), fmean(values[-few:])) if values else None

        return f"{label}, {where}", ends, percent

    for name in components:
        yield metric(f"training {name}", f"rewards/{name}/mean")
        yield f"training {name}, mean of all steps", _mean(f"rewards/{name}/mean"), False
    for name in components:
        yield f"held-out {name}, before → after", _held_out(name), False
    for name in components:
        yield metric(
            f"groups in which {name} does not vary", f"gdpo/{name}/constant_groups", percent=True
        )
    for name in components:
        yield metric(
            f"share of {name} in the advantage", f"gdpo/{name}/advantage_share", percent=True
        )
    yield metric("rollouts whose rewards conflict", "gdpo/sign_conflicts", percent=True)
    found = {id(each.run): each for each in surveys}
    yield (
        "groups, of all steps, in which GRPO gives the same advantage to rollouts that GDPO "
        "tells apart",
        _groups(found, lambda step: step.collapsed),
        True,
    )
    yield "the other way round", _groups(found, lambda step: step.reverse), True
    yield metric("entropy", "actor/entropy")
    yield metric("response length, tokens", "response_length/mean")


def _mean(key: str) -> Callable[[Run], Ends]:
    def ends(run: Run) -> Ends:
        values = [value for _, value in run.series(key)]
        return (None, fmean(values)) if values else None

    return ends


def _held_out(name: str) -> Callable[[Run], Ends]:
    def ends(run: Run) -> Ends:
        series = list(run.validation_series(name).values())
        # Of several sources a mean would hide more than it shows; the page has each.
        return (series[0][0][1], series[0][-1][1]) if len(series) == 1 else None

    return ends


def _groups(surveys: Mapping[int, Survey], count: Callable[..., int]) -> Callable[[Run], Ends]:
    def ends(run: Run) -> Ends:
        steps = surveys[id(run)].training.values()
        compared = sum(step.compared for step in steps)
        return (None, sum(map(count, steps)) / compared) if compared else None

    return ends


def _row(
    label: str, pairs: Sequence[tuple[Run, Run]], ends: Callable[[Run], Ends], percent: bool
) -> Row | None:
    columns = [[ends(pair[side]) for pair in pairs] for side in (0, 1)]
    known = [[each for each in column if each is not None] for column in columns]
    if any(len(column) < len(pairs) for column in known):
        return None
    cells = [
        " → ".join(
            _spread(values, percent) for values in zip(*column, strict=True) if None not in values
        )
        for column in known
    ]
    differences = [a[1] - b[1] for a, b in zip(*known, strict=True)]
    half = half_interval(differences)
    return Row(label, (*cells, _spread([fmean(differences)], percent, half)))


def half_interval(differences: Sequence[float]) -> float:
    """Half of the 95 % interval around the mean of paired differences, by Student's t.

    t s / sqrt(n); of more than ten pairs that of ten, which is too wide.

    >>> round(half_interval([1.0, 2.0, 3.0]), 3)  # 4.303 / sqrt(3)
    2.484
    """
    count = len(differences)
    return _T[min(count, max(_T))] * stdev(differences) / sqrt(count)


def _spread(values: Sequence[float], percent: bool, around: float | None = None) -> str:
    """
    >>> _spread([1.0, 3.0], False), _spread([-0.5], True, 0.1)
    ('2.000 ± 1.414', '−50.0 ± 10.0 points')
    """
    scale, form = (100, ".1f") if percent else (1, ".3f")
    sign, unit = ("", " %") if around is None else ("+", " points")
    spread = stdev(values) if around is None else around
    mean = f"{fmean(values) * scale:{sign}{form}}".replace("-", "−")
    return f"{mean} ± {spread * scale:{form}}{unit if percent else ''}"
