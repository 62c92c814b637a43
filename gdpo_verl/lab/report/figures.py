"""Pictures: panels side by side as a PNG, or one as SVG for the page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, cycle
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib
from markupsafe import Markup
from matplotlib.artist import Artist
from matplotlib.figure import Figure, SubFigure
from matplotlib.font_manager import fontManager
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from gdpo_verl.lab.files import replacing
from gdpo_verl.lab.report.recipes import Recipe
from gdpo_verl.lab.report.svg import BLUE, GRID, INK, OTHERS, STYLE, VERMILION, inline_svg
from gdpo_verl.lab.rundir.metrics import Series
from gdpo_verl.lab.rundir.run import Run

_NAMED = {"gdpo": BLUE, "grpo": VERMILION}
# For names in characters that matplotlib's own font lacks; it would warn of each family missing.
_CJK = ("Noto Sans CJK SC", "Noto Sans CJK JP", "WenQuanYi Zen Hei", "PingFang SC")
_INSTALLED = fontManager.get_font_names()
_STYLE = STYLE | {"font.family": ["sans-serif"] + [name for name in _CJK if name in _INSTALLED]}


@dataclass(frozen=True)
class Panel:
    """A picture with a title, drawn into a figure or a part of one."""

    title: str
    draw: Callable[[Figure | SubFigure], None]
    height: float = 3.2


def recipe_colors(recipes: Sequence[Recipe]) -> list[str]:
    """One colour a recipe: the estimator's own the first time, then the four others in turn."""
    colors: list[str] = []
    others = cycle(OTHERS)
    for recipe in recipes:
        named = _NAMED.get(recipe.estimator.lower())
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


def write_png(panels: Sequence[Panel], recipes: Sequence[Recipe], path: Path) -> Path:
    """Draw panels side by side into a PNG, with a legend."""
    columns = min(3, max(1, len(panels)))
    rows = max(1, -(-len(panels) // columns))
    height = max((panel.height for panel in panels), default=3.2)
    with matplotlib.rc_context(_STYLE):
        # Not by pyplot, which keeps each figure until it is closed.
        figure = Figure(
            figsize=(max(6.0, 4.6 * columns), height * rows + 0.5), dpi=160, layout="constrained"
        )
        if panels:
            grid = figure.subfigures(rows, columns, squeeze=False, wspace=0.03).ravel()
            for part, panel in zip(grid, panels, strict=False):
                panel.draw(part)
                _title(part, panel.title)
        else:
            figure.text(0.5, 0.5, "no reward components in these runs", ha="center")
        handles, labels = _legend(recipes)
        legend = figure.legend(
            handles, labels, loc="outside upper center", ncols=len(handles), frameon=False
        )
        # A run's name may hold dollar signs, which would be read as a formula.
        for text in legend.get_texts():
            text.set_parse_math(False)
        with replacing(path) as scratch:  # not through a symbolic link of that name
            figure.savefig(scratch, facecolor="white", format="png")
    return path


def panel_svg(panel: Panel) -> Markup:
    """A panel as inline SVG that takes its ink from the page's colours."""
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(4.5, panel.height), layout="constrained")
        panel.draw(figure)
        _title(figure, panel.title)
        # Matplotlib has escaped what the names hold; the rest of the page escapes itself.
        return Markup(inline_svg(figure, panel.title, {GRID: "var(--grid)"}))


def _title(figure: Figure | SubFigure, title: str) -> None:
    figure.axes[0].set_title(title, loc="left", fontweight="bold", fontsize=11, parse_math=False)


def _legend(recipes: Sequence[Recipe]) -> tuple[list[Artist], list[str]]:
    colors = recipe_colors(recipes)
    handles: list[Artist] = [Line2D([], [], color=color, linewidth=2.2) for color in colors]
    labels = [recipe.name for recipe in recipes]
    if any(len(recipe.runs) == 1 for recipe in recipes):
        handles.append(Line2D([], [], color=INK, linewidth=0.8, alpha=0.5))
        labels.append("each step")
    if any(len(recipe.runs) > 1 for recipe in recipes):
        handles.append(Patch(color=INK, alpha=0.2, linewidth=0))
        labels.append("range of the runs")
    dot: dict[str, Any] = {"marker": "o", "linestyle": ":", "markeredgecolor": "white"}
    handles.append(Line2D([], [], color=INK, **dot))
    return handles, [*labels, "held-out prompts"]
