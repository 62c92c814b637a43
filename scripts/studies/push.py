"""Write the tables and the picture of docs/evidence/push.md from the committed runs.

    python scripts/studies/push.py

Nothing is trained. Arms without a finished run are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from statistics import fmean
from typing import Any

import numpy as np
from evidence import (
    CORRECTNESS,
    ESTIMATORS,
    EVIDENCE,
    FIRST_STEPS,
    FORMAT,
    PROMPTS_A_STEP,
    Run,
    Runs,
    at_the_end,
    first_steps,
    fisher,
    format_before,
    interval,
    means_of_ten,
    picture,
    push,
    read,
    spread,
    start,
)
from page import markdown_table, replace_block

from gdpo_verl.lab.report.svg import BLUE, VERMILION

PAGE = EVIDENCE / "push.md"
# The line that was found in the kept runs.
LINE = 0.9
RESAMPLES = 10_000
ARMS = {
    "grpo-format-7": "A: GRPO, weight 7 on format",
    "gdpo-correctness-8": "B: GDPO, weight 8 on correctness",
}
PRETRAINED_PROMPTS = 8  # prompts in a step of the check with a pretrained model
KEPT_ARMS = {"grpo-3": "GRPO, kept runs", "gdpo-3": "GDPO, kept runs"}
# The arms of the trade-off by the weight on correctness. Under GRPO, multiplying correctness by 10
# with the weight 0.1 is the same as the weight 1, and 0.3 is nearly ⅓.
GDPO_ARMS = {
    "½": ["gdpo-weight-0.5"],
    "1": ["gdpo-1"],
    "2": ["gdpo-weight-2"],
    "4": ["gdpo-weight-4"],
}
GRPO_ARMS = {
    "⅓": ["grpo-third", "weight-0.03"],
    "1": ["grpo-1", "weight-0.1"],
    "3": ["grpo-3", "weight-0.3"],
    "10": ["grpo-10"],
}


def groups_that_vary(run: Run) -> float:
    """Return the number of a step's groups in which format varies, over the first steps."""
    return PROMPTS_A_STEP * (1 - run["gdpo/format/constant_groups"].head(FIRST_STEPS).mean())


def area(predictions: np.ndarray, learned: np.ndarray) -> float:
    """Return the area under the ROC curve: a learned run is above one that is not learned.

    >>> area(np.array([2.0, 3.0, 1.0, 2.0]), np.array([True, True, False, False]))
    0.875
    """
    gaps = np.subtract.outer(predictions[learned], predictions[~learned])
    above = np.sum(gaps > 0) + np.sum(gaps == 0) / 2
    return float(above / gaps.size)


def kept_table(runs: Runs) -> str:
    """Compare two predictors on the kept runs: the push, and the number of groups alone."""
    seeds = list(runs["gdpo-1"])
    learned_by_arm = []
    for arm in runs.values():
        steps = first_steps(arm)
        learned_by_arm.append([seed in steps for seed in seeds])
    learned = np.array(learned_by_arm)
    rows = []
    for name, predictor in (("push", push), ("groups in which format varies", groups_that_vary)):
        by_arm = []
        for arm in runs.values():
            by_arm.append([predictor(arm[seed]) for seed in seeds])
        predictions = np.array(by_arm)
        generator = np.random.default_rng(0)
        areas = []
        for _ in range(RESAMPLES):
            drawn = generator.integers(len(seeds), size=len(seeds))
            areas.append(area(predictions[:, drawn], learned[:, drawn]))
        low, high = np.quantile(areas, [0.025, 0.975])
        rows.append([name, f"{area(predictions, learned):.3f} [{low:.3f}, {high:.3f}]"])
    return markdown_table(["predictor, mean of steps 1 to 5", "AUC over 72 runs"], rows)


def line_table(runs: Runs, names: Mapping[str, str]) -> str:
    """Count the runs at or above the line, and below it, that learn the format."""
    rows = []
    for arm, name in names.items():
        if arm not in runs:
            continue
        learned = first_steps(runs[arm])
        pushes = {seed: push(run) for seed, run in runs[arm].items()}
        above = [seed in learned for seed, value in pushes.items() if value >= LINE]
        below = [seed in learned for seed, value in pushes.items() if value < LINE]
        counts = [f"{sum(side)} of {len(side)}" for side in (above, below)]
        rows.append([name, f"{fmean(pushes.values()):.2f}", *counts])
    head = ["runs", "push, mean", f"learn it with a push of {LINE} or more", "learn it below"]
    return markdown_table(head, rows)


def arms_table(runs: Runs, kept: Runs) -> str:
    """Compare the arms A and B with the kept runs of GRPO and GDPO."""
    together = {**kept, **runs}
    rows = []
    for arm, name in {**KEPT_ARMS, **ARMS}.items():
        if arm not in together:
            continue
        seeds = together[arm]
        cells = [name, start(seeds)]
        for other in KEPT_ARMS:
            # The kept runs have all seeds; those of an unfinished arm are compared.
            others = {seed: kept[other][seed] for seed in seeds}
            p = fisher(len(first_steps(seeds)), len(first_steps(others)), len(seeds))
            cells.append("–" if arm == other else f"{p:.2g}")
        for metric in ("rewards/format/mean", "rewards/correctness/mean"):
            at_end = at_the_end(metric)
            cells.append(spread([at_end(run) for run in seeds.values()]))
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
    begins = (0, 30, 70, 110, 150)
    rows = []
    for seed, run in sorted(runs.get("grpo-160", {}).items()):
        rows.append([str(seed), *means_of_ten(run, "rewards/format/mean", begins, digits=4)])
    names = [f"steps {begin + 1} to {begin + 10}" for begin in begins]
    return markdown_table(["seed", *names], rows)


def pretrained_table(runs: Runs, task: str = "") -> str:
    """Write a check with a pretrained model: when each run learns the format, and its rewards.

    The names of the arms end with the task.
    """
    last_format = at_the_end("rewards/format/mean")
    last_correctness = at_the_end("rewards/correctness/mean")
    rows = []
    for arm, name in ESTIMATORS.items():
        seeds = runs.get(f"{arm}{task}", {})
        learned = first_steps(seeds)
        for seed, run in sorted(seeds.items()):
            varying = 1 - run["gdpo/correctness/constant_groups"]
            of_five_steps = varying.groupby((varying.index - 1) // 5).mean()
            rows.append(
                [
                    f"{name}, seed {seed}",
                    f"{push(run, PRETRAINED_PROMPTS):.1f}",
                    str(learned.get(seed, "–")),
                    f"{last_format(run):.2f}",
                    f"{last_correctness(run):.2f}".replace("-", "−"),
                    ", ".join(f"{share:.0%}" for share in of_five_steps),
                ]
            )
    head = [
        "run",
        "push, steps 1 to 5",
        "learns the format at step",
        "format, last five steps",
        "correctness, last five steps",
        "groups in which correctness varies, steps 1 to 5, 6 to 10, and so on",
    ]
    return markdown_table(head, rows)


def differences(runs: Runs, arm: str) -> dict[int, float]:
    """Return GDPO's format minus GRPO's at the same correctness, for each seed of an arm.

    GRPO's format is interpolated between its arms. A correctness outside their range has no
    difference.
    """
    by_seed = {}
    for seed, run in runs.get(arm, {}).items():
        correct = CORRECTNESS(run)
        grpo = [runs[other][seed] for other in chain(*GRPO_ARMS.values())]
        points = sorted((CORRECTNESS(other), FORMAT(other)) for other in grpo)
        corrects, formats = zip(*points, strict=True)
        if corrects[0] <= correct <= corrects[-1]:
            by_seed[seed] = FORMAT(run) - float(np.interp(correct, corrects, formats))
    return by_seed


def trade_off_table(runs: Runs) -> str:
    """Write GDPO's format minus GRPO's at equal correctness, for each weight of GDPO."""
    rows = []
    of_seeds: dict[int, list[float]] = {}
    for weight, (arm,) in GDPO_ARMS.items():
        by_seed = differences(runs, arm)
        for seed, difference in by_seed.items():
            of_seeds.setdefault(seed, []).append(difference)
        rows.append([f"GDPO, weight {weight}", str(len(by_seed)), interval([*by_seed.values()])])
    means = [fmean(values) for values in of_seeds.values()]
    rows.append(["all weights, mean of each seed", str(len(means)), interval(means)])
    head = ["arm", "seeds inside GRPO's range", "format minus GRPO's at equal correctness"]
    return markdown_table(head, rows)


def draw_family(
    axis: Any, runs: Runs, family: str, arms: Mapping[str, Sequence[str]], color: str
) -> None:
    """Draw a point for each run of these arms, and a line through the means of each weight."""
    mean_corrects = []
    mean_formats = []
    for weight, names in arms.items():
        of_weight = list(chain(*(runs.get(name, {}).values() for name in names)))
        if not of_weight:
            continue
        corrects = [CORRECTNESS(run) for run in of_weight]
        formats = [FORMAT(run) for run in of_weight]
        axis.plot(corrects, formats, ".", color=color, alpha=0.4, markersize=4)
        mean_corrects.append(fmean(corrects))
        mean_formats.append(fmean(formats))
        place = mean_corrects[-1], mean_formats[-1]
        axis.annotate(weight, place, (6, 5), textcoords="offset points", color=color)
    axis.plot(mean_corrects, mean_formats, "o-", color=color, label=family)


def draw_trade_off(runs: Runs) -> None:
    """Draw format against correctness: GRPO over scales and weights, GDPO over weights."""
    with picture(EVIDENCE / "tradeoff.svg", (6.4, 4.2)) as figure:
        axis = figure.subplots()
        draw_family(axis, runs, "GRPO", GRPO_ARMS, VERMILION)
        draw_family(axis, runs, "GDPO", GDPO_ARMS, BLUE)
        axis.set(xlabel="correctness, mean of all steps", ylabel="format, mean of all steps")
        axis.set_title("The labels are the weights on correctness.")
        axis.legend(frameon=False)


def main() -> None:
    kept = read("rare")
    runs = read("push")
    replace_block(PAGE, "arms", arms_table(runs, kept))
    names = {}
    for rate, share in format_before().items():
        for estimator, name in ESTIMATORS.items():
            names[f"{estimator}-{rate}"] = f"{name}, {share}"
    replace_block(PAGE, "kept", f"{kept_table(kept)}\n\n{line_table(kept, names)}")
    replace_block(PAGE, "line", line_table(runs, ARMS))
    replace_block(PAGE, "long", long_table(read("push_long")))
    pretrained = read("rare_sums")
    replace_block(PAGE, "pretrained", pretrained_table(pretrained))
    replace_block(PAGE, "four_sums", pretrained_table(pretrained, "-four"))
    trade_off = {**read("q1"), **read("tradeoff")}
    replace_block(PAGE, "tradeoff", trade_off_table(trade_off))
    draw_trade_off(trade_off)


if __name__ == "__main__":
    main()
