"""Pictures of the page, as SVG; their colours, and curves smoothed and averaged."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, cycle
from statistics import fmean

import matplotlib
from markupsafe import Markup
from matplotlib.figure import Figure

from gdpo_verl.lab.report.recipes import Recipe
from gdpo_verl.lab.report.svg import BLUE, GRID, OTHERS, STYLE, VERMILION, inline_svg
from gdpo_verl.lab.rundir.metrics import Series
from gdpo_verl.lab.rundir.run import Run

_NAMED = {"gdpo": BLUE, "grpo": VERMILION}


@dataclass(frozen=True)
class Panel:
    """A picture with a title."""

    title: str
    draw: Callable[[Figure], None]
    height: float = 3.2  # in inches


def recipe_colors(recipes: Sequence[Recipe]) -> list[str]:
    """One colour a recipe: the estimator's own the first time, then the four others in turn."""
    colors: list[str] = []
    others = cycle(OTHERS)
    for recipe in recipes:
        named = _NAMED.get(recipe.runs[0].estimator.lower())
        colors.append(named if named and named not in colors else next(others))
    return colors


def smoothing_window(runs: Sequence[Run]) -> int:
    """An odd number of steps, about an eighth of the longest run and at least 3."""
    longest = max((len(run.training_steps) for run in runs), default=0)
    return max(3, longest // 8 // 2 * 2 + 1)


def smooth(series: Series, window: int) -> Series:
    """The mean over each point's neighbours; at the ends over those that there are.

    >>> smooth([(1, 0.0), (2, 3.0), (3, 6.0)], 3)
    [(1, 1.5), (2, 3.0), (3, 4.5)]
    """
    # By running sums a wide window costs as little as a narrow one.
    half = window // 2
    sums = list(accumulate((value for _, value in series), initial=0.0))
    smoothed = []
    for place, (step, _) in enumerate(series):
        start = max(0, place - half)
        end = min(len(series), place + half + 1)
        smoothed.append((step, (sums[end] - sums[start]) / (end - start)))
    return smoothed


def band(series: Iterable[Series]) -> list[tuple[int, float, float, float]]:
    """(step, smallest, mean, largest) of the series, at the steps that all but empty ones have.

    >>> band([[(1, 0.0), (2, 1.0)], [(1, 3.0)], []])
    [(1, 0.0, 1.5, 3.0)]
    """
    # Where one run ends before the others, the mean of those left would jump.
    known = [dict(each) for each in series if each]
    shared = set.intersection(*map(set, known)) if known else set()
    points = []
    for step in sorted(shared):
        values = [each[step] for each in known]
        points.append((step, min(values), fmean(values), max(values)))
    return points


def panel_svg(panel: Panel) -> Markup:
    """A panel as inline SVG that takes its ink from the page's colours."""
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        # The browser's fonts have the characters that matplotlib's own font lacks.
        warnings.filterwarnings("ignore", message="Glyph")
        figure = Figure(figsize=(4.5, panel.height), layout="constrained")
        panel.draw(figure)
        first = figure.axes[0]
        first.set_title(panel.title, loc="left", fontweight="bold", fontsize=11, parse_math=False)
        # Matplotlib has escaped what the names hold; the rest of the page escapes itself.
        return Markup(inline_svg(figure, panel.title, {GRID: "var(--grid)"}))
