"""Groups taken for equal: the trade of one reward for another, ranges, and exact counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import marimo as mo
import torch
from markupsafe import Markup

from gdpo_verl.explain import charts, compare, conclusions
from gdpo_verl.explain.examples import ANSWERS, RANGES, RANKINGS
from gdpo_verl.explain.sections import layout


def trades() -> str:
    size = len(ANSWERS)
    gaps = compare.gaps_of_a_trade(size)
    return charts.block(
        "trades",
        charts.heading(2, "3. [1, 0, 1] and [0, 1, 1]: when they look the same"),
        "Both sums are 2, and a sum is all that GRPO sees. To GDPO it matters how many of the "
        f"{size} rollouts earn the first reward, n₁, and the second, n₂: a reward that few "
        "earn, or few miss, varies less and weighs more. The table holds GDPO's advantage of "
        "[1, 0, 1] minus that of [0, 1, 1], before whitening.",
        charts.gaps(gaps),
        "GRPO tells the two apart for no pair (n₁, n₂). GDPO does unless n₁ = n₂ or "
        f"n₁ + n₂ = {size}: there both rewards vary equally.",
    )


# ---------------------------------------------------------------- ranges


def ranking_heading() -> str:
    return charts.block(
        "ranking-heading",
        charts.heading(2, "4. Rewards with different ranges"),
        "Five rankings of the same videos, judged by relevance (NDCG, 0 to 1), rating "
        "(1 to 5 stars) and watch time (0 to 60 minutes). Nobody has chosen weights: each "
        "reward comes in its own unit.",
    )


def ranking_form() -> Any:
    return mo.ui.dictionary(
        {
            f"{name} {range_.name}": layout.slider(
                range_.low,
                range_.high,
                range_.step,
                value,
                f"{name}: {range_.name} ({range_.unit})",
            )
            for name, values in RANKINGS.items()
            for range_, value in zip(RANGES, values, strict=True)
        }
    )


def ranking_widgets(form: Any) -> Any:
    return layout.rows(*[[form[f"{name} {range_.name}"] for range_ in RANGES] for name in RANKINGS])


def ranking(chosen: Mapping[str, float]) -> str:
    keys = [range_.name for range_ in RANGES]
    rewards = torch.tensor(
        [[chosen[f"{name} {key}"] for key in keys] for name in RANKINGS], dtype=torch.float64
    )
    group = compare.compare(list(RANKINGS), rewards, keys)
    return charts.block("ranking", conclusions.ranking_sentence(group, keys), charts.bars(group))


# ---------------------------------------------------------------- counts


def distinct() -> str:
    return charts.block(
        "distinct",
        charts.heading(2, "5. How many groups each method can tell apart"),
        "Every group of binary rewards there is, order aside, and the number of different "
        "advantages they get, before whitening. Counted by going through all of them.",
        _counts("2 rewards, rollouts:", {size: (2, size) for size in compare.ROLLOUTS}),
        _counts("4 rollouts, rewards:", {count: (count, 4) for count in compare.REWARDS}),
    )


def _counts(title: str, columns: Mapping[int, tuple[int, int]]) -> Markup:
    counts = [compare.count_distinct(*pair) for pair in columns.values()]
    rows = [
        ["different groups", *[each.groups for each in counts]],
        ["GRPO", *[each.grpo for each in counts]],
        ["GRPO without σ", *[each.grpo_unscaled for each in counts]],
        ["GDPO", *[each.gdpo for each in counts]],
    ]
    return charts.table([title, *map(str, columns)], rows)


def count_form() -> Any:
    return mo.ui.dictionary(
        {
            "rewards": layout.slider(1, 5, 1, 3, "rewards"),
            "rollouts": layout.slider(2, 12, 1, 6, "rollouts"),
        }
    )


def count(chosen: Mapping[str, int]) -> str:
    return charts.block("count", conclusions.count_sentence(chosen["rewards"], chosen["rollouts"]))
