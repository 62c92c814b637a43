"""Write the tables and the picture of docs/evidence/push.md from the committed runs.

    python scripts/studies/push.py

Nothing is trained. Arms without a finished run are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from statistics import fmean
from typing import Any

import matplotlib
import numpy as np
from evidence import (
    CORRECTNESS,
    ESTIMATORS,
    EVIDENCE,
    FORMAT,
    NAMES,
    PROMPTS_A_STEP,
    RATES,
    WEIGHTS,
    Run,
    Runs,
    first_steps,
    fisher,
    read,
    series,
    spread,
    start,
)
from matplotlib.figure import Figure
from page import markdown_table, replace_block

from gdpo_verl.lab.report.svg import BLUE, STYLE, VERMILION
from gdpo_verl.lab.statistics import half_interval

PAGE = EVIDENCE / "push.md"
# The line that was found in the kept runs, and the steps whose mean it is compared with.
LINE = 0.9
FIRST_STEPS = 5
RESAMPLES = 10_000
ARMS = {
    "grpo-format-7": "A: GRPO, weight 7 on format",
    "gdpo-correctness-8": "B: GDPO, weight 8 on correctness",
}
KEPT_ARMS = {"grpo-3": "GRPO, kept runs", "gdpo-3": "GDPO, kept runs"}
TRADE_OFF = {
    "gdpo-weight-0.5": "½",
    "gdpo-1": "1",
    "gdpo-weight-2": "2",
    "gdpo-weight-4": "4",
}
GRPO_ARMS = ("grpo-third", "grpo-1", "grpo-3", "grpo-10", *WEIGHTS)


def push(run: Run) -> float:
    """Return the mean push on format over the first steps of a run.

    The push is the influence, a mean over all groups of a step, times the number of groups.
    """
    influences = series(run, "gdpo/format/influence")[:FIRST_STEPS]
    return PROMPTS_A_STEP * fmean(influences)


def groups_that_vary(run: Run) -> float:
    """Return the number of a step's groups in which format varies, over the first steps."""
    constant = series(run, "gdpo/format/constant_groups")[:FIRST_STEPS]
    return PROMPTS_A_STEP * (1 - fmean(constant))


def area(learned: Sequence[float], not_learned: Sequence[float]) -> float:
    """Return the area under the ROC curve: a learned run is above one that is not learned.

    >>> area([2.0, 3.0], [1.0, 2.0])
    0.875
    """
    above = 0.0
    for high in learned:
        for low in not_learned:
            if high > low:
                above += 1
            elif high == low:
                above += 0.5
    return above / (len(learned) * len(not_learned))


def kept_table(runs: Runs) -> str:
    """Compare two predictors on the kept runs: the push, and the number of groups alone."""
    rows = []
    for name, predictor in (("push", push), ("groups in which format varies", groups_that_vary)):
        by_seed: dict[int, list[tuple[float, bool]]] = {}
        for arm, seeds in runs.items():
            steps = first_steps(runs, arm)
            for seed, run in seeds.items():
                by_seed.setdefault(seed, []).append((predictor(run), steps[seed] < inf))
        values = list(by_seed.values())
        generator = np.random.default_rng(0)
        areas = []
        for _ in range(RESAMPLES):
            drawn = generator.integers(len(values), size=len(values))
            areas.append(area_of([values[i] for i in drawn]))
        low, high = np.quantile(areas, [0.025, 0.975])
        rows.append([name, f"{area_of(values):.3f} [{low:.3f}, {high:.3f}]"])
    return markdown_table(["predictor, mean of steps 1 to 5", "AUC over 72 runs"], rows)


def area_of(seeds: Sequence[Sequence[tuple[float, bool]]]) -> float:
    """Return the area for the runs of these seeds: pairs of a prediction and whether it learned."""
    learned = []
    not_learned = []
    for runs in seeds:
        for value, did_learn in runs:
            if did_learn:
                learned.append(value)
            else:
                not_learned.append(value)
    return area(learned, not_learned)


def line_table(runs: Runs, names: Mapping[str, str]) -> str:
    """Count the runs at or above the line, and below it, that learn the format."""
    rows = []
    for arm, name in names.items():
        if arm not in runs:
            continue
        steps = first_steps(runs, arm)
        above = []
        below = []
        for seed, run in runs[arm].items():
            side = above if push(run) >= LINE else below
            side.append(steps[seed] < inf)
        pushes = [push(run) for run in runs[arm].values()]
        rows.append(
            [
                name,
                f"{fmean(pushes):.2f}",
                f"{sum(above)} of {len(above)}",
                f"{sum(below)} of {len(below)}",
            ]
        )
    head = ["runs", "push, mean", f"learn it with a push of {LINE} or more", "learn it below"]
    return markdown_table(head, rows)


def arms_table(runs: Runs, kept: Runs) -> str:
    """Compare the arms A and B with the kept runs of GRPO and GDPO."""
    together = {**kept, **runs}
    rows = []
    for arm, name in {**KEPT_ARMS, **ARMS}.items():
        if arm not in together:
            continue
        steps = first_steps(together, arm)
        learned = sum(step < inf for step in steps.values())
        cells = [name, start(steps.values())]
        for other in KEPT_ARMS:
            seeds = steps.keys() & first_steps(kept, other).keys()
            others = first_steps(kept, other)
            count = sum(others[seed] < inf for seed in seeds)
            same = arm == other or len(steps) != len(seeds)
            cells.append("–" if same else f"{fisher(learned, count, len(seeds)):.2g}")
        for metric in ("rewards/format/mean", "rewards/correctness/mean"):
            ends = [fmean(series(run, metric)[-5:]) for run in together[arm].values()]
            cells.append(spread(ends))
        rows.append(cells)
    head = [
        "arm",
        "seeds that learn the format",
        "Fisher's p against GRPO",
        "against GDPO",
        "format, last five steps",
        "correctness, last five steps",
    ]
    return markdown_table(head, rows)


def long_table(runs: Runs) -> str:
    """Write arm C: the share of responses with the format over stretches of its 160 steps."""
    stretches = [(0, 10), (30, 40), (70, 80), (110, 120), (150, 160)]
    rows = []
    for seed, run in sorted(runs.get("grpo-160", {}).items()):
        values = series(run, "rewards/format/mean")
        cells = [f"{fmean(values[first:last]):.4f}" for first, last in stretches]
        rows.append([str(seed), *cells])
    names = [f"steps {first + 1} to {last}" for first, last in stretches]
    return markdown_table(["seed", *names], rows)


def points(runs: Runs, arms: Sequence[str], seed: int) -> list[tuple[float, float]]:
    """Return correctness and format of each arm with this seed, sorted by correctness."""
    pairs = []
    for arm in arms:
        if seed in runs.get(arm, {}):
            run = runs[arm][seed]
            pairs.append((CORRECTNESS(run), FORMAT(run)))
    return sorted(pairs)


def differences(runs: Runs) -> dict[str, dict[int, float]]:
    """Return GDPO's format minus GRPO's at the same correctness, by arm of GDPO and seed.

    GRPO's format is interpolated between its arms. A correctness outside their range has no
    difference.
    """
    by_arm: dict[str, dict[int, float]] = {}
    for arm in TRADE_OFF:
        by_arm[arm] = {}
        for seed in runs.get(arm, {}):
            (gdpo,) = points(runs, [arm], seed)
            curve = points(runs, GRPO_ARMS, seed)
            corrects = [correct for correct, _ in curve]
            formats = [shares for _, shares in curve]
            if corrects[0] <= gdpo[0] <= corrects[-1]:
                by_arm[arm][seed] = gdpo[1] - float(np.interp(gdpo[0], corrects, formats))
    return by_arm


def trade_off_table(runs: Runs) -> str:
    """Write GDPO's format minus GRPO's at equal correctness, for each weight of GDPO."""
    by_arm = differences(runs)
    rows = []
    for arm, weight in TRADE_OFF.items():
        rows.append([f"GDPO, weight {weight}", *difference_cells(list(by_arm[arm].values()))])
    means = []
    for seed in sorted({seed for seeds in by_arm.values() for seed in seeds}):
        means.append(fmean(seeds[seed] for seeds in by_arm.values() if seed in seeds))
    rows.append(["all weights, mean of each seed", *difference_cells(means)])
    head = ["arm", "seeds inside GRPO's range", "format minus GRPO's at equal correctness"]
    return markdown_table(head, rows)


def difference_cells(values: Sequence[float]) -> list[str]:
    """Write the number of differences, and their mean with its 95 % interval."""
    if len(values) < 2:
        return [str(len(values)), "–"]
    mean = fmean(values)
    half = half_interval(values)
    interval = f"{mean:+.3f} [{mean - half:+.3f}, {mean + half:+.3f}]"
    return [str(len(values)), interval.replace("-", "−")]


def draw_trade_off(runs: Runs) -> None:
    """Draw format against correctness: GRPO over scales and weights, GDPO over weights."""
    fixed: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "tradeoff"}
    with matplotlib.rc_context(STYLE | fixed):
        figure = Figure(figsize=(6.4, 4.2), layout="constrained")
        axis = figure.subplots()
        families = {"GRPO": (GRPO_ARMS, VERMILION, NAMES), "GDPO": (TRADE_OFF, BLUE, TRADE_OFF)}
        for family, (arms, color, labels) in families.items():
            means = []
            for arm in arms:
                if arm not in runs:
                    continue
                corrects = [CORRECTNESS(run) for run in runs[arm].values()]
                formats = [FORMAT(run) for run in runs[arm].values()]
                axis.plot(corrects, formats, ".", color=color, alpha=0.4, markersize=4)
                means.append((fmean(corrects), fmean(formats), labels[arm]))
            means.sort()
            axis.plot(
                [mean[0] for mean in means],
                [mean[1] for mean in means],
                "o-",
                color=color,
                label=family,
            )
            for correct, share, label in means:
                text = label.removeprefix("GRPO, ")
                axis.annotate(
                    text, (correct, share), (5, 5), textcoords="offset points", fontsize=8
                )
        axis.set(xlabel="correctness, mean of all steps", ylabel="format, mean of all steps")
        axis.legend(frameon=False)
        figure.savefig(EVIDENCE / "tradeoff.svg", metadata={"Date": None})


def main() -> None:
    kept = read("rare")
    runs = read("push")
    replace_block(PAGE, "arms", arms_table(runs, kept))
    names = {}
    for rate in RATES:
        for estimator, name in ESTIMATORS.items():
            names[f"{estimator}-{rate}"] = f"{name}, {rate} %"
    replace_block(PAGE, "kept", f"{kept_table(kept)}\n\n{line_table(kept, names)}")
    replace_block(PAGE, "line", line_table(runs, ARMS))
    replace_block(PAGE, "long", long_table(read("push_long")))
    trade_off = {**read("q1"), **read("tradeoff")}
    replace_block(PAGE, "tradeoff", trade_off_table(trade_off))
    draw_trade_off(trade_off)


if __name__ == "__main__":
    main()
