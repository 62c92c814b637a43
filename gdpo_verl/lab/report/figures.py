"""Draw the panels of the page as SVG: their colours, and smoothed and averaged curves."""

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
    """A picture with a title, and the function that draws it."""

    title: str
    draw: Callable[[Figure], None]
    height: float = 3.2  # in inches


def recipe_colors(recipes: Sequence[Recipe]) -> list[str]:
    """Return one colour for each recipe.

    The first recipe of GDPO and of GRPO gets the colour of its estimator. The remaining recipes get
    the four other colours in turn.
    """
    colors: list[str] = []
    others = cycle(OTHERS)
    for recipe in recipes:
        named = _NAMED.get(recipe.runs[0].estimator.lower())
        colors.append(named if named and named not in colors else next(others))
    return colors


def smoothing_window(runs: Sequence[Run]) -> int:
    """Return an odd number of steps, about an eighth of the longest run and at least 3."""
    longest = max((len(run.training_steps) for run in runs), default=0)
    return max(3, longest // 8 // 2 * 2 + 1)


def smooth(series: Series, window: int) -> Series:
    """Replace each value by the mean over a window around it; the window is cut at both ends.

    >>> smooth([(1, 0.0), (2, 3.0), (3, 6.0)], 3)
    [(1, 1.5), (2, 3.0), (3, 4.5)]
    """
    # With running sums a wide window costs no more than a narrow one.
    half = window // 2
    sums = list(accumulate((value for _, value in series), initial=0.0))
    smoothed = []
    for place, (step, _) in enumerate(series):
        start = max(0, place - half)
        end = min(len(series), place + half + 1)
        smoothed.append((step, (sums[end] - sums[start]) / (end - start)))
    return smoothed


def band(series: Iterable[Series]) -> list[tuple[int, float, float, float]]:
    """Return (step, smallest, mean, largest) at each step that all non-empty series have.

    >>> band([[(1, 0.0), (2, 1.0)], [(1, 3.0)], []])
    [(1, 0.0, 1.5, 3.0)]
    """
    # Steps that a run lacks are left out: where one run ends before the others, the mean of the
    # remaining runs would jump.
    curves = [dict(curve) for curve in series if curve]
    shared = set.intersection(*map(set, curves)) if curves else set()
    points = []
    for step in sorted(shared):
        values = [curve[step] for curve in curves]
        points.append((step, min(values), fmean(values), max(values)))
    return points


def panel_svg(panel: Panel) -> Markup:
    """Return a panel as inline SVG whose lines and texts have the page's colours."""
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        # The browser's fonts have the characters that matplotlib's own font lacks.
        warnings.filterwarnings("ignore", message="Glyph")
        figure = Figure(figsize=(4.5, panel.height), layout="constrained")
        panel.draw(figure)
        first = figure.axes[0]
        first.set_title(panel.title, loc="left", fontweight="bold", fontsize=11, parse_math=False)
        # Matplotlib has escaped the names in the picture, so that they are safe in HTML.
        return Markup(inline_svg(figure, panel.title, {GRID: "var(--grid)"}))
