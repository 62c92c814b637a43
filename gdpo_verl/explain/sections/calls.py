"""Seven answers with real tool calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import marimo as mo

from gdpo_verl.explain import calls, charts, compare, conclusions
from gdpo_verl.explain.sections import layout


def heading() -> str:
    return charts.block(
        "calls-heading",
        charts.heading(2, "2. The same with real tool calls"),
        f"“{calls.PROMPT}” There is one tool, future_value(principal, rate, years, per_year), and "
        "seven answers. Their format (0 or 1) and correctness (−3 to 3) come from this package's "
        "own reward for tool calls, and every call that can be read has been executed.",
        charts.table(*calls.table(), prose=True),
    )


def form() -> Any:
    return mo.ui.dictionary(
        {key: layout.slider(0, 8, 0.1, 1, f"weight of the {key}") for key in calls.KEYS}
    )


def show(chosen: Mapping[str, float]) -> str:
    names = [str(i) for i in range(1, len(calls.ANSWERS) + 1)]
    weights = [chosen[key] for key in calls.KEYS]
    try:
        group = compare.compare(names, calls.rewards(), calls.KEYS, weights=weights)
    except ValueError as error:
        return charts.block("calls", f"No advantages: {error}")
    pairs = compare.tied_pairs(group, weights=weights)
    return charts.block(
        "calls",
        conclusions.collapse_sentence(group),
        charts.bars(group, texts=[calls.ANSWERS[int(each.name) - 1] for each in group]),
        *[conclusions.pair_sentence(pair, calls.KEYS) for pair in pairs],
        calls.order_sentence(group),
    )
