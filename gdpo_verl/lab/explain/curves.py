"""Trainings of the toy policies as curves, which matplotlib draws as SVG."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import matplotlib
from markupsafe import Markup
from matplotlib.figure import Figure
from torch import Tensor

from gdpo_verl.lab.explain.toy import Method
from gdpo_verl.lab.report.svg import BLUE, GRID, VERMILION, inline_svg
from gdpo_verl.lab.report.svg import STYLE as FIGURE_STYLE

_COLORS = {GRID: "var(--gx-grid)", BLUE: "var(--gx-gdpo)", VERMILION: "var(--gx-grpo)"}
EVERY = 3  # epochs from point to point: a third of the markup, and no eye sees the difference


_STYLES: tuple[dict[str, Any], ...] = (
    {"linewidth": 2.2},
    {"linewidth": 1.6, "linestyle": "--"},
    {"linewidth": 1.6, "linestyle": ":"},
)


def styles(methods: Iterable[Method]) -> dict[Method, dict[str, Any]]:
    """GDPO's kin in blue and GRPO's in vermilion; the first of a colour is drawn through."""
    # By kin and not by method: the reader compares the two kinds, dashes tell within one.
    seen: Counter[str] = Counter()
    found = {}
    for method in methods:
        color = BLUE if method.decoupled else VERMILION
        found[method] = {"color": color, **_STYLES[seen[color]]}
        seen[color] += 1
    return found


def curves(title: str, ylabel: str, lines: Mapping[Method, Tensor]) -> Markup:
    """Values from 0 to 1 over the epochs: the mean over seeds and a band of one deviation.

    Args:
      title, ylabel: together unlike any other picture's of the page.
      lines: each method's values, shape (epochs, seeds).
    """
    with matplotlib.rc_context(FIGURE_STYLE):
        figure = Figure(figsize=(4.6, 3.3), layout="constrained")
        axes = figure.subplots()
        for method, style in styles(lines).items():
            epochs = range(0, len(lines[method]), EVERY)
            values = lines[method][::EVERY]
            mean = values.mean(dim=1)
            spread = values.std(dim=1)
            low = (mean - spread).tolist()
            high = (mean + spread).tolist()
            axes.fill_between(epochs, low, high, color=style["color"], alpha=0.15, linewidth=0)
            axes.plot(epochs, mean.tolist(), label=method.name, **style)
        axes.set_xlabel("epoch")
        axes.set_title(title, loc="left", fontweight="bold", fontsize="medium")
        axes.set_ylabel(ylabel)
        axes.set_ylim(0, 1)  # one scale for all pictures: they stand side by side
        axes.grid(axis="y")
        axes.legend(frameon=False, fontsize=8, loc="best")
        return Markup(inline_svg(figure, f"{title}, {ylabel}", _COLORS))
