"""Learning curves of each reward component, as one picture and as SVG for the page."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, PercentFormatter

from gdpo_verl.report.runs import Run, Series

# Okabe and Ito's palette, which colour-blind readers can tell apart; vermilion is the
# control's, black is left out because it vanishes on a dark page.
_NAMED = {"gdpo": "#0072B2", "grpo": "#D55E00"}
_OTHERS = ("#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_MARKERS = "oDs^vP"
_INK, _GRID = "#24292f", "#d0d7de"
_STYLE: dict[Any, Any] = {
    "font.size": 10.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "text.color": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "grid.color": _GRID,
    "grid.linewidth": 0.6,
}


def run_colors(runs: Sequence[Run]) -> list[str]:
    """One colour a run: the estimator's own the first time, then the rest of the palette."""
    colors: list[str] = []
    for run in runs:
        named = _NAMED.get(run.estimator.lower())
        free = [color for color in (*_OTHERS, *_NAMED.values()) if color not in colors]
        colors.append(named if named and named not in colors else (free or _OTHERS)[0])
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
    half, values = window // 2, [value for _, value in series]
    smoothed = []
    for i, (step, _) in enumerate(series):
        near = values[max(0, i - half) : i + half + 1]
        smoothed.append((step, sum(near) / len(near)))
    return smoothed


def write_curves(runs: Sequence[Run], components: Sequence[str], path: Path) -> Path:
    """Draw all components side by side into a PNG."""
    columns = 2 if len(components) == 4 else min(3, max(1, len(components)))
    rows = max(1, -(-len(components) // columns))
    with matplotlib.rc_context(_STYLE):
        figure = Figure(
            figsize=(max(6.0, 4.6 * columns), 4.5 * rows + 0.5), dpi=160, layout="constrained"
        )
        if components:
            grid = figure.subfigures(rows, columns, squeeze=False, wspace=0.03).ravel()
            for part, component in zip(grid, components, strict=False):
                _draw_component(part, runs, component)
        else:
            figure.text(0.5, 0.5, "no reward components in these runs", ha="center")
        handles, labels = _legend(runs)
        legend = figure.legend(
            handles, labels, loc="outside upper center", ncols=len(handles), frameon=False
        )
        for text in legend.get_texts():
            text.set_parse_math(False)
        figure.savefig(path, facecolor="white")
    return path


def component_svg(runs: Sequence[Run], component: str) -> str:
    """One component as inline SVG that takes its ink from the page's colours."""
    # Fixed ids make the same run give the same page; text stays text, in the reader's font.
    style = {**_STYLE, "svg.fonttype": "none", "svg.hashsalt": f"gdpo {component}"}
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(5.2, 4.5), layout="constrained")
        _draw_component(figure, runs, component)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    # Matplotlib numbers its groups from 1 in every picture; nothing refers to them.
    svg = re.sub(r'<g id="[\w.]+">', "<g>", svg)
    svg = re.sub(r' xmlns(:xlink)?="[^"]*"', "", svg)  # HTML knows what an svg element is
    svg = re.sub(r' (width|height)="[\d.]+pt"', "", svg, count=2)
    return svg.replace(_INK, "currentColor").replace(_GRID, "var(--grid)")


def _draw_component(figure: Figure | SubFigure, runs: Sequence[Run], component: str) -> None:
    reward, constant = figure.subplots(2, 1, sharex=True, height_ratios=[2.4, 1])
    window = smoothing_window(runs)
    for run, color in zip(runs, run_colors(runs), strict=True):
        _draw_curve(reward, run.series(f"gdpo/{component}/mean"), color, window)
        _draw_curve(constant, run.series(f"gdpo/{component}/constant_groups"), color, window)
        sources = run.validation_series(component).values()
        for marker, points in zip(_MARKERS, sources, strict=False):
            style = {"color": color, "marker": marker, "markeredgecolor": "white"}
            reward.plot(
                *zip(*points, strict=True), linestyle="none", markersize=7, zorder=4, **style
            )
    reward.set_title(component, loc="left", fontweight="bold", fontsize=12, parse_math=False)
    reward.set_ylabel("mean reward")
    constant.set_ylabel("constant\ngroups")
    constant.set_xlabel("training step")
    constant.set_ylim(-0.03, 1.03)
    constant.set_yticks([0.0, 0.5, 1.0])
    constant.yaxis.set_major_formatter(PercentFormatter(1.0))
    constant.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    figure.align_ylabels([reward, constant])
    for axes in (reward, constant):
        axes.grid(axis="y")
        axes.set_axisbelow(True)
        if not axes.lines:
            axes.text(0.5, 0.5, "not logged", transform=axes.transAxes, ha="center", va="center")


def _draw_curve(axes: Axes, series: Series, color: str, window: int) -> None:
    if series:
        axes.plot(*zip(*series, strict=True), color=color, linewidth=0.8, alpha=0.4)
        axes.plot(*zip(*smooth(series, window), strict=True), color=color, linewidth=2.2)


def _legend(runs: Sequence[Run]) -> tuple[list[Line2D], list[str]]:
    colors = run_colors(runs)
    handles = [Line2D([], [], color=color, linewidth=2.2) for color in colors]
    labels = [run.name for run in runs]
    handles.append(Line2D([], [], color=_INK, linewidth=0.8, alpha=0.5))
    labels.append("each step")
    handles.append(
        Line2D([], [], color=_INK, marker="o", linestyle="none", markeredgecolor="white")
    )
    labels.append("held-out prompts")
    return handles, labels
