"""The panels of the report: each component, the collapse of groups, and the whole training run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from gdpo_verl import names
from gdpo_verl.lab.report.figures import Panel, band, recipe_colors, smooth, smoothing_window
from gdpo_verl.lab.report.recipes import Recipe
from gdpo_verl.lab.rundir.run import logged_keys

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
