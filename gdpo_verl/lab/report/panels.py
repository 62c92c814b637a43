"""The panels of the report: each component, the collapse of groups, and the whole training run."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, cycle
from statistics import fmean

import matplotlib
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from gdpo_verl import names
from gdpo_verl.lab.report.recipes import Recipe
from gdpo_verl.lab.report.svg import BLUE, GRID, OTHERS, STYLE, VERMILION, inline_svg
from gdpo_verl.lab.rundir.metrics import Series
from gdpo_verl.lab.rundir.run import Run, logged_keys

_NAMED = {"gdpo": BLUE, "grpo": VERMILION}
_MARKERS = "oDs^vP"
# Titles of panels and their metrics. A panel is drawn if its metric is logged.
_OF_GROUPS = {
    "Responses with conflicting rewards": names.SIGN_CONFLICTS.key,
    "Shift of 0 by whitening": names.WHITEN_SHIFT.key,
    "Variance of the decoupled sum in a group": names.NOISE_FLOOR.key,
    "Phantom groups": names.PHANTOM_GROUPS.key,
}
_OF_TRAINING = {
    "Response length, tokens": "response_length/mean",
    "Entropy of the policy": "actor/entropy",
    "KL to the reference policy": "actor/kl_loss",
    "KL to the reference policy, in the reward": "actor/reward_kl_penalty",
    "KL over the updates of a step": "actor/ppo_kl",
}
_SHARES = (names.SIGN_CONFLICTS.key, names.PHANTOM_GROUPS.key)


@dataclass(frozen=True)
class Panel:
    """A picture with a title, and the function that draws it."""

    title: str
    draw: Callable[[Figure], None]
    height: float = 3.2  # in inches


class Curves:
    """Draws the curves of recipes, with one colour for each recipe and one smoothing in all panels.

    Attributes:
      recipes: the recipes.
      runs: the runs of all recipes.
      logged: the names of all metrics of the runs.
      colors: the colour of each recipe.
      window: the number of steps over which curves are smoothed.
    """

    def __init__(self, recipes: Sequence[Recipe]) -> None:
        self.recipes = recipes
        self.runs = [run for recipe in recipes for run in recipe.runs]
        self.logged = logged_keys(self.runs)
        self.colors = recipe_colors(recipes)
        self.window = smoothing_window(self.runs)

    def component_panels(self, components: Sequence[str]) -> list[Panel]:
        """Return a panel for each scored component: mean, constant groups, share of advantage."""
        panels = []
        for name in components:
            curves = [
                run.series(names.MEAN.of(name)) or run.validation_series(name) for run in self.runs
            ]
            if any(curves):
                panels.append(Panel(name, partial(self._draw_component, name), 6.2))
        return panels

    def collapse_panels(self) -> list[Panel]:
        """Return panels of distinct advantages by estimator, and of metrics of whole groups."""
        distinct = Panel("Distinct advantages in a group", self._draw_distinct)
        return [distinct, *self._metric_panels(_OF_GROUPS)]

    def training_panels(self) -> list[Panel]:
        """Return panels of response length, entropy and KL."""
        return self._metric_panels(_OF_TRAINING)

    def _metric_panels(self, metrics: Mapping[str, str]) -> list[Panel]:
        return [
            Panel(title, partial(self._draw_metric, key))
            for title, key in metrics.items()
            if key in self.logged
        ]

    def _draw_metric(self, key: str, figure: Figure) -> None:
        axes = figure.subplots()
        self._draw(axes, key)
        _finish(axes, percent=key in _SHARES)

    def _draw_distinct(self, figure: Figure) -> None:
        axes = figure.subplots()
        self._draw(axes, names.DISTINCT_GDPO.key)
        self._draw(axes, names.DISTINCT_GRPO.key, linestyle="--")
        _finish(axes, "solid GDPO, dashed GRPO")

    def _draw_component(self, component: str, figure: Figure) -> None:
        parts = {
            "constant\ngroups": names.CONSTANT_GROUPS,
            "share of\nadvantage": names.ADVANTAGE_SHARE,
            "influence": names.INFLUENCE,
        }
        if names.TURN_SPREAD.of(component) in self.logged:
            parts["spread\nover turns"] = names.TURN_SPREAD
        if names.CRITERIA_VARYING.of(component) in self.logged:
            parts["criteria\nvarying"] = names.CRITERIA_VARYING
            parts["all criteria\nmet"] = names.ALL_CRITERIA_MET
        ratios = [2.4] + [1.0] * len(parts)
        reward, *rest = axes = figure.subplots(len(ratios), 1, sharex=True, height_ratios=ratios)
        self._draw(reward, names.MEAN.of(component))
        self._draw_held_out(reward, component)
        _finish(reward, "mean reward", last=False)
        for part, (label, metric) in zip(rest, parts.items(), strict=True):
            self._draw(part, metric.of(component))
            _finish(part, label, percent=metric.unit == "share", last=part is rest[-1])
        figure.align_ylabels(axes)

    def _draw(self, axes: Axes, key: str, linestyle: str = "-") -> None:
        """Draw a metric: one run as a raw and a smoothed line, several as their mean and range."""
        for recipe, color in zip(self.recipes, self.colors, strict=True):
            curves = [run.series(key) for run in recipe.runs if run.series(key)]
            if len(curves) == 1:  # the raw lines of several runs would hide their mean
                axes.plot(*zip(*curves[0], strict=True), color=color, linewidth=0.8, alpha=0.4)
            points = band(smooth(curve, self.window) for curve in curves)
            if points:
                steps, low, middle, high = zip(*points, strict=True)
                axes.plot(steps, middle, color=color, linewidth=2.2, linestyle=linestyle)
                if len(curves) > 1:
                    axes.fill_between(steps, low, high, color=color, alpha=0.2, linewidth=0)

    def _draw_held_out(self, axes: Axes, component: str) -> None:
        sources = dict.fromkeys(s for run in self.runs for s in run.validation_series(component))
        for recipe, color in zip(self.recipes, self.colors, strict=True):
            for source, marker in zip(sources, _MARKERS * len(sources), strict=False):
                points = band(
                    run.validation_series(component).get(source, []) for run in recipe.runs
                )
                if points:
                    steps, low, middle, high = zip(*points, strict=True)
                    axes.plot(steps, middle, f"{marker}:", color=color, mec="white", ms=7, zorder=4)
                    axes.vlines(steps, low, high, color=color, linewidth=1.2, zorder=3)


def _finish(axes: Axes, label: str = "", *, percent: bool = False, last: bool = True) -> None:
    axes.set_ylabel(label)
    if percent:
        axes.set_ylim(-0.03, 1.03)  # a line at 0 or 1 would lie on the frame
        axes.set_yticks([0.0, 0.5, 1.0])
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    if last:
        axes.set_xlabel("training step")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axes.grid(axis="y")
    axes.set_axisbelow(True)
    if not axes.lines:
        axes.text(0.5, 0.5, "not logged", transform=axes.transAxes, ha="center", va="center")


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
