"""The pictures of docs/evidence.md, the same for the same runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from study import plan
from study_numbers import FAMILIES, NAMES, SIGNS, WEIGHTS, Entry, Values, series
from study_rewards import UNITS

from gdpo_verl.report.svg import BLUE, INK, OTHERS, STYLE, VERMILION


def picture_of_units(axes: Sequence[Axes], found: Mapping[str, Values]) -> None:
    """Format and correctness by the unit, and the static weights at their unit."""
    colors = dict(zip(FAMILIES, (BLUE, VERMILION, OTHERS[0]), strict=True))
    for axis, name in zip(axes, ("format", "correctness"), strict=True):
        for family, color in colors.items():
            points = {u: list(found[name][f"{family}-{u}"].values()) for u in SIGNS}
            known = {UNITS[f"times_{u}"]: values for u, values in points.items() if values}
            axis.plot(
                list(known), [fmean(v) for v in known.values()], color=color, label=FAMILIES[family]
            )
            for x, values in known.items():
                axis.plot([x] * len(values), values, ".", color=color, alpha=0.5, markersize=5)
        # Weight 1 is GRPO's own point.
        static = [(arm, weight) for arm, weight in WEIGHTS.items() if weight < 1]
        for x, (arm, weight) in zip((13, 19, 28), static, strict=True):
            if values := list(found[name][arm].values()):
                axis.plot(x, fmean(values), "D", color=INK, markersize=4, fillstyle="none")
                at = (x, fmean(values))
                axis.annotate(f"{weight:g}", at, (0, 6), textcoords="offset points", ha="center")
        axis.set(xscale="log", xlabel="unit of correctness", title=f"{name}, mean of all steps")
        axis.set_xticks([UNITS[f"times_{u}"] for u in SIGNS], SIGNS.values())
        axis.set_xlim(0.27, 36)
        axis.minorticks_off()
    axes[0].plot(
        [], [], "D", color=INK, fillstyle="none", markersize=4, label="GRPO, static weight"
    )


def picture_of_length(axes: Sequence[Axes], entries: Sequence[Entry]) -> None:
    """Correctness in training and the responses' length, step by step, mean over the seeds."""
    colors = (VERMILION, BLUE, OTHERS[0], OTHERS[1], OTHERS[2])
    shown = {
        "rewards/correctness/mean": "correctness in training",
        "response_length/mean": "tokens",
    }
    for axis, (metric, title) in zip(axes, shown.items(), strict=True):
        for (arm, name), color in zip(NAMES["q2"].items(), colors, strict=True):
            curves = [series(each, metric) for each in entries if each["arm"] == arm]
            if curves:
                steps = range(1, len(curves[0]) + 1)
                columns = list(zip(*curves, strict=True))
                axis.plot(steps, [fmean(c) for c in columns], color=color, label=name)
                axis.fill_between(
                    steps, [min(c) for c in columns], [max(c) for c in columns],
                    color=color, alpha=0.15, linewidth=0,
                )  # fmt: skip
        axis.set(xlabel="step", title=title)


def draw(question: str, found: Mapping[str, Values], entries: Sequence[Entry], path: Path) -> None:
    """Two panels as SVG, the same for the same runs."""
    fixed = {"svg.fonttype": "none", "svg.hashsalt": question}
    with matplotlib.rc_context(STYLE | fixed):
        figure = Figure(figsize=(9.2, 3.9), layout="constrained")
        if len(entries) < len(plan([question])):
            figure.suptitle(f"Partial: {len(entries)} of {len(plan([question]))} runs")
        axes = figure.subplots(1, 2)
        if question == "q1":
            picture_of_units(axes, found)
        else:
            picture_of_length(axes, entries)
        for axis in axes:
            axis.grid(axis="y")
            axis.title.set(fontsize=11, fontweight="bold")
        figure.legend(
            *axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False
        )
        path.parent.mkdir(exist_ok=True)
        figure.savefig(path, facecolor="white", metadata={"Date": None})
