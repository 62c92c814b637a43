"""The report's panels: each component, the collapse, and the training as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from gdpo_verl.report.figures import Panel, recipe_colors, smooth, smoothing_window
from gdpo_verl.report.recipes import Recipe
from gdpo_verl.report.table import seconds_by_phase
from gdpo_verl.rundir.run import Run

_MARKERS = "oDs^vP"
_KL = {
    "actor/kl_loss": "KL to the reference policy",
    "actor/reward_kl_penalty": "KL to the reference policy, in the reward",
    "actor/ppo_kl": "KL over the updates of a step",
}


def component_panels(recipes: Sequence[Recipe], components: Sequence[str]) -> list[Panel]:
    """For each component its mean, its constant groups, and its share of the advantage."""
    return [_component_panel(recipes, component) for component in components]


def collapse_panels(recipes: Sequence[Recipe]) -> list[Panel]:
    """Panels of distinct advantages by estimator, and of conflicts between components.

    Where an outcome is known, also of the groups in which others are trained without it.
    """

    def distinct(figure: Figure | SubFigure) -> None:
        axes = figure.subplots()
        _draw(axes, recipes, "gdpo/distinct_advantages/gdpo")
        _draw(axes, recipes, "gdpo/distinct_advantages/grpo", linestyle="--")
        _finish(axes, "solid GDPO, dashed GRPO")

    logged = {key for run in _runs(recipes) for data in run.metrics.values() for key in data}
    phantom = _metric_panel(
        recipes, "Groups that train without an outcome", "gdpo/phantom_groups", percent=True
    )
    return [
        Panel("Distinct advantages in a group", distinct),
        _metric_panel(
            recipes, "Rollouts with conflicting rewards", "gdpo/sign_conflicts", percent=True
        ),
        _metric_panel(recipes, "Shift of 0 by whitening", "gdpo/whiten_shift"),
        *([phantom] if "gdpo/phantom_groups" in logged else []),
    ]


def training_panels(recipes: Sequence[Recipe]) -> list[Panel]:
    """Length, entropy, KL and time per phase."""
    logged = {key for run in _runs(recipes) for data in run.metrics.values() for key in data}
    kl = next((key for key in _KL if key in logged), "actor/ppo_kl")
    return [
        _metric_panel(recipes, "Response length, tokens", "response_length/mean"),
        _metric_panel(recipes, "Entropy of the policy", "actor/entropy"),
        _metric_panel(recipes, _KL[kl], kl, label=kl),
        Panel("Seconds a step by phase", lambda figure: _draw_phases(figure, recipes)),
    ]


def _component_panel(recipes: Sequence[Recipe], component: str) -> Panel:
    def draw(figure: Figure | SubFigure) -> None:
        reward, constant, share = figure.subplots(3, 1, sharex=True, height_ratios=[2.4, 1, 1])
        _draw(reward, recipes, f"rewards/{component}/mean")
        _draw_held_out(reward, recipes, component)
        _draw(constant, recipes, f"gdpo/{component}/constant_groups")
        _draw(share, recipes, f"gdpo/{component}/advantage_share")
        _finish(reward, "mean reward", last=False)
        _finish(constant, "constant\ngroups", percent=True, last=False)
        _finish(share, "share of\nadvantage", percent=True)
        figure.align_ylabels([reward, constant, share])

    return Panel(component, draw, 5.2, held_out=True)


def _metric_panel(
    recipes: Sequence[Recipe], title: str, key: str, *, percent: bool = False, label: str = ""
) -> Panel:
    def draw(figure: Figure | SubFigure) -> None:
        axes = figure.subplots()
        _draw(axes, recipes, key)
        _finish(axes, label, percent=percent)

    return Panel(title, draw)


def _draw(axes: Axes, recipes: Sequence[Recipe], key: str, linestyle: str = "-") -> None:
    """One run: each step thin and smoothed thick. Several: their mean and range, smoothed."""
    window = smoothing_window(_runs(recipes))
    for recipe, color in zip(recipes, recipe_colors(recipes), strict=True):
        found = [series for run in recipe.runs if (series := run.series(key))]
        if len(found) == 1:
            axes.plot(*zip(*found[0], strict=True), color=color, linewidth=0.8, alpha=0.4)
        band = recipe.band([smooth(series, window) for series in found])
        if band:
            steps, low, middle, high = zip(*band, strict=True)
            axes.plot(steps, middle, color=color, linewidth=2.2, linestyle=linestyle)
            if len(found) > 1:
                axes.fill_between(steps, low, high, color=color, alpha=0.2, linewidth=0)


def _draw_held_out(axes: Axes, recipes: Sequence[Recipe], component: str) -> None:
    sources = held_out_sources(_runs(recipes), component)
    for recipe, color in zip(recipes, recipe_colors(recipes), strict=True):
        for source, marker in zip(sources, _MARKERS * len(sources), strict=False):
            found = [run.validation_series(component).get(source, []) for run in recipe.runs]
            if not (band := recipe.band(found)):
                continue
            steps, low, middle, high = zip(*band, strict=True)
            style: dict[str, Any] = {"color": color, "marker": marker, "markeredgecolor": "white"}
            axes.plot(steps, middle, linestyle=":", markersize=7, zorder=4, **style)
            axes.vlines(steps, low, high, color=color, linewidth=1.2, zorder=3)


def held_out_sources(runs: Sequence[Run], component: str) -> list[str]:
    """The data sources that any run validated the component on, as they were first logged."""
    return list(dict.fromkeys(s for run in runs for s in run.validation_series(component)))


def _draw_phases(figure: Figure | SubFigure, recipes: Sequence[Recipe]) -> None:
    axes = figure.subplots()
    times = [seconds_by_phase(recipe.runs) for recipe in recipes]
    phases = list(dict.fromkeys(phase for each in times for phase in each))
    thick = 0.8 / max(1, len(recipes))
    for i, (each, color) in enumerate(zip(times, recipe_colors(recipes), strict=True)):
        places = [n - 0.4 + (i + 0.5) * thick for n in range(len(phases))]
        axes.barh(places, [each.get(phase, 0.0) for phase in phases], thick, color=color)
    axes.set_yticks(range(len(phases)), phases, parse_math=False)
    axes.invert_yaxis()
    axes.grid(axis="x")
    axes.set_axisbelow(True)
    if not phases:
        axes.text(0.5, 0.5, "not logged", transform=axes.transAxes, ha="center", va="center")


def _finish(axes: Axes, label: str = "", *, percent: bool = False, last: bool = True) -> None:
    axes.set_ylabel(label)
    if percent:
        axes.set_ylim(-0.03, 1.03)
        axes.set_yticks([0.0, 0.5, 1.0])
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    if last:
        axes.set_xlabel("training step")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axes.grid(axis="y")
    axes.set_axisbelow(True)
    if not axes.lines:
        axes.text(0.5, 0.5, "not logged", transform=axes.transAxes, ha="center", va="center")


def _runs(recipes: Sequence[Recipe]) -> list[Run]:
    return [run for recipe in recipes for run in recipe.runs]
