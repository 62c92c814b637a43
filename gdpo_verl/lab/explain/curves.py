"""Curves of the training of toy policies, which matplotlib draws as SVG."""

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
EVERY = 3  # epochs between points: this takes a third of the markup, and the curves look the same


_STYLES: tuple[dict[str, Any], ...] = (
    {"linewidth": 2.2},
    {"linewidth": 1.6, "linestyle": "--"},
    {"linewidth": 1.6, "linestyle": ":"},
)


def styles(methods: Iterable[Method]) -> dict[Method, dict[str, Any]]:
    """Choose blue for kinds of GDPO and vermilion for kinds of GRPO; the first is a solid line."""
    # Colours show the kind and not the method, because readers compare the two kinds.
    seen: Counter[str] = Counter()
    chosen = {}
    for method in methods:
        color = BLUE if method.decoupled else VERMILION
        chosen[method] = {"color": color, **_STYLES[seen[color]]}
        seen[color] += 1
    return chosen


def curves(title: str, ylabel: str, lines: Mapping[Method, Tensor]) -> Markup:
    """Draw values from 0 to 1 over the epochs: the mean over seeds and a band of one deviation.

    Args:
      title, ylabel: together unique on the page.
      lines: the values of each method, shape (epochs, seeds).
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
        axes.set_ylim(0, 1)  # one scale for all pictures, because they are side by side
        axes.grid(axis="y")
        axes.legend(frameon=False, fontsize=8, loc="best")
        return Markup(inline_svg(figure, f"{title}, {ylabel}", _COLORS))
