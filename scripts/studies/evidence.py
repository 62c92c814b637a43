"""Write the tables and pictures of docs/evidence/*.md from the committed runs.

    python scripts/studies/evidence.py

The same runs give exactly the same pages; nothing is trained.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from math import comb
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib
import pandas as pd
from experiment_rewards import UNITS
from matplotlib.figure import Figure
from page import ROOT, markdown_table, replace_block

from gdpo_verl.lab.replay.capacity import varies
from gdpo_verl.lab.report.svg import BLUE, INK, OTHERS, STYLE, VERMILION
from gdpo_verl.lab.statistics import half_interval

Run = pd.DataFrame  # a row for each step, with the arm and the metrics; NaN where one is missing
Runs = Mapping[str, Mapping[int, Run]]  # by arm and seed
Values = Mapping[str, Mapping[str, Mapping[int, float]]]  # by endpoint, arm and seed

EVIDENCE = ROOT / "docs/evidence"
FAMILIES = {"gdpo": "GDPO", "grpo": "GRPO", "whitened": "GRPO, whitened"}
SIGNS = {"third": "⅓", "1": "1", "3": "3", "10": "10"}
WEIGHTS = {"weight-0.03": 0.03, "weight-0.1": 0.1, "weight-0.3": 0.3}
NAMES = {
    **{f"{f}-{u}": f"{FAMILIES[f]}, × {SIGNS[u]}" for f in FAMILIES for u in SIGNS},
    **{arm: f"GRPO, × 10, weight {weight:g}" for arm, weight in WEIGHTS.items()},
    "grpo": "GRPO",
    "gdpo": "GDPO",
    "gdpo-condition": "GDPO with the condition",
    "gdpo-gate": "GDPO with the gate",
    "grpo-condition": "GRPO with the condition",
    "gdpo-conditioned": "GDPO, conditioned",
    "grpo-conditioned": "GRPO, conditioned",
    "gdpo-threshold": "GDPO, limit alone",
    "gdpo-relative": "GDPO, brevity too",
    "grpo-relative": "GRPO, brevity too",
}
KINDS = (
    "rewards/length/mean",
    "rewards/case/mean",
    "rewards/punctuation/mean",
    "rewards/keywords/mean",
    "rewards/start_end/mean",
    "rewards/format/mean",
)
# The study of a rare reward: its arms are named ESTIMATOR-RATE.
ESTIMATORS = {"gdpo": "GDPO", "grpo": "GRPO", "dara": "DARA"}
RATES = ("3", "1", "0.3")
PROMPTS_A_STEP = 16
FIRST_STEPS = 5  # over which the push is averaged
GROUP = 8
POLICIES = 10  # of the study for the quickstart
FIRST = 0
LAST = -1


def unit(run: Run) -> float:
    """Return the factor by which the arm's reward function multiplies correctness."""
    arm = run["arm"].iloc[0]
    if arm.startswith("gdpo-weight-"):  # the arms of the trade-off
        return 1.0
    # Fixed weights and the variants of question 3 have no factor in their name: it was 10.
    return UNITS.get(f"times_{arm.rpartition('-')[2]}", 10.0)


def mean(metric: str) -> Callable[[Run], float]:
    """Return the mean over the steps of a run that have the metric."""
    return lambda run: fmean(run[metric].dropna())


def at_the_end(*metrics: str) -> Callable[[Run], float]:
    """Return the mean of metrics over the last five steps of a run that have them."""
    return lambda run: run.tail(5).reindex(columns=metrics).mean().mean()


def value_at(metric: str, place: int) -> Callable[[Run], float]:
    """Return the value at a place of a run: 0 is before the training for held-out prompts."""
    return lambda run: run[metric].dropna().iloc[place]


def per_unit(endpoint: Callable[[Run], float]) -> Callable[[Run], float]:
    """Divide an endpoint of correctness by the factor, so that arms can be compared."""
    return lambda run: endpoint(run) / unit(run)


def correctness_part(run: Run) -> float:
    """Return the share of correctness in GDPO's terms, or in the deviations of GRPO's sum."""
    if run["arm"].iloc[0].startswith("gdpo"):
        return run["gdpo/correctness/advantage_share"].mean()
    # GRPO logs no shares. In a sum, the spread of a reward is its weight.
    parts = {}
    for name in ("format", "correctness", "integer"):
        metric = f"rewards/{name}/std"
        if metric in run:
            parts[name] = run[metric].mean()
    parts["correctness"] *= WEIGHTS.get(run["arm"].iloc[0], 1.0)
    return parts["correctness"] / sum(parts.values())


FORMAT = mean("rewards/format/mean")
CORRECTNESS = per_unit(mean("rewards/correctness/mean"))
ENDPOINTS: dict[str, dict[str, Callable[[Run], float]]] = {
    "q1": {
        "format": FORMAT,
        "correctness": CORRECTNESS,
        "held-out format, end": value_at("val-aux/toolbox/format/mean@1", LAST),
        "held-out correctness, end": per_unit(value_at("val-aux/toolbox/correctness/mean@1", LAST)),
        "correctness's part": correctness_part,
        "groups of constant format": mean("gdpo/format/constant_groups"),
    },
    "q2": {
        "held-out correctness, end": value_at("val-aux/reasoning-gym/correctness/mean@1", LAST),
        "before training": value_at("val-aux/reasoning-gym/correctness/mean@1", FIRST),
        "tokens, last step": value_at("response_length/mean", LAST),
        "phantom groups": mean("gdpo/phantom_groups"),
    },
    "q3-units": {"format at × 10": FORMAT, "correctness at × 10": CORRECTNESS},
    "q3-length": {
        "correctness of the sums": value_at("val-aux/reasoning-gym/correctness/mean@1", LAST),
        "before training": value_at("val-aux/reasoning-gym/correctness/mean@1", FIRST),
        "their length reward": value_at("val-aux/reasoning-gym/length/mean@1", LAST),
    },
    "pretrained": {
        "format": FORMAT,
        "integer": mean("rewards/integer/mean"),
        "correctness": CORRECTNESS,
        "correctness's part": correctness_part,
    },
    "quiet": {
        "relevance": at_the_end("rewards/relevance/mean"),
        "times the topic is named": at_the_end("rewards/named/mean"),
        "own words": at_the_end("rewards/own_words/mean"),
        "constraints": at_the_end(*KINDS),
    },
    "relative": {
        "correctness": at_the_end("rewards/correctness/mean"),
        "within the limit": at_the_end("rewards/length/mean"),
        "tokens": at_the_end("response_length/mean"),
    },
}
EXPLAINING = ("correctness's part", "groups of constant format")  # not compared between arms
Q1_PAIRS = [(f"gdpo-{unit}", "gdpo-1") for unit in SIGNS if unit != "1"]
Q1_PAIRS += [
    ("gdpo-10", "gdpo-third"),
    ("grpo-10", "grpo-third"),
    ("whitened-10", "whitened-third"),
]
Q1_PAIRS += [(f"grpo-{unit}", f"gdpo-{unit}") for unit in SIGNS]
Q1_PAIRS += [(arm, "gdpo-10") for arm in WEIGHTS]
PAIRS = {
    "q1": Q1_PAIRS,
    "q2": [
        ("gdpo-condition", "gdpo"),
        ("gdpo-gate", "gdpo"),
        ("grpo-condition", "grpo"),
        ("gdpo", "grpo"),
        ("gdpo-condition", "grpo-condition"),
    ],
    "pretrained": [
        ("gdpo-1", "grpo-1"),
        ("gdpo-10", "grpo-10"),
        ("gdpo-10", "gdpo-1"),
        ("grpo-10", "grpo-1"),
    ],
    "quiet": [
        ("gdpo", "grpo"),
        ("gdpo-conditioned", "gdpo"),
        ("grpo-conditioned", "grpo"),
        ("gdpo-conditioned", "grpo-conditioned"),
    ],
    "relative": [
        ("gdpo-relative", "gdpo-threshold"),
        ("gdpo-relative", "grpo-relative"),
    ],
}


def read(name: str, folder: Path = EVIDENCE) -> Runs:
    """Read the stored runs of an experiment: one line per run with a list for each metric."""
    runs: dict[str, dict[int, Run]] = {}
    archive = folder / f"{name}.jsonl.gz"
    if archive.exists():
        with gzip.open(archive, "rt", encoding="utf-8") as lines:
            for run in map(json.loads, lines):
                steps = pd.DataFrame(run["metrics"], index=run["steps"]).assign(arm=run["arm"])
                runs.setdefault(run["arm"], {})[run["seed"]] = steps
    return runs


def measure(name: str, runs: Runs) -> Values:
    """Compute every endpoint of every run."""
    values: dict[str, dict[str, dict[int, float]]] = {}
    for endpoint, value in ENDPOINTS[name].items():
        values[endpoint] = {}
        for arm, seeds in runs.items():
            values[endpoint][arm] = {seed: value(run) for seed, run in seeds.items()}
    return values


def around(first: Mapping[int, float], second: Mapping[int, float], digits: int = 3) -> str:
    """Write the mean of first minus second, paired by seed, and its interval."""
    # Both arms of a seed saw the same prompts in the same order, so that part of the noise cancels.
    return interval([first[seed] - second[seed] for seed in first.keys() & second.keys()], digits)


def interval(differences: Sequence[float], digits: int = 3) -> str:
    """Write the mean of paired differences and its 95 % interval (Student's t)."""
    if len(differences) < 2:
        return "–"
    middle, half = fmean(differences), half_interval(differences)
    low, high = middle - half, middle + half
    text = f"{middle:+.{digits}f} [{low:+.{digits}f}, {high:+.{digits}f}]"
    return text.replace("-", "−")


def spread(values: Collection[float]) -> str:
    """Write mean, lowest and highest value."""
    text = f"{fmean(values):.3f} ({min(values):.3f} to {max(values):.3f})"
    return text.replace("-", "−")


def tables(name: str, runs: Runs) -> str:
    """Write the arms of an experiment, and their paired differences."""
    if name == "q3":
        return variants(runs)
    runs = {arm: runs[arm] for arm in NAMES if arm in runs}
    endpoints = measure(name, runs)
    rows = []
    for arm, seeds in runs.items():
        cells = [spread(values[arm].values()) for values in endpoints.values()]
        rows.append([NAMES[arm], str(len(seeds)), *cells])
    compared = {name: v for name, v in endpoints.items() if name not in EXPLAINING}
    # Also for an unfinished experiment: missing runs are left out.
    gaps = []
    for a, b in PAIRS[name]:
        if a in runs and b in runs:
            cells = [around(values[a], values[b]) for values in compared.values()]
            gaps.append([f"{NAMES[a]} − {NAMES[b]}", *cells])
    arms = markdown_table(["arm", "seeds", *endpoints], rows)
    return f"{arms}\n\n{markdown_table(['difference', *compared], gaps)}"


def variants(runs: Runs) -> str:
    """Write the table of question 3: one row per variant, with its two tasks side by side."""
    rows: dict[str, list[str]] = {}
    # An arm is named VARIANT-units or VARIANT-length; both parts of a row come in this order.
    for place in ("units", "length"):
        part = {arm: seeds for arm, seeds in runs.items() if arm.endswith(f"-{place}")}
        for values in measure(f"q3-{place}", part).values():
            for arm, seeds in values.items():
                variant = arm.removesuffix(f"-{place}")
                rows.setdefault(variant, []).append(spread(seeds.values()))
    head = ["variant", *ENDPOINTS["q3-units"], *ENDPOINTS["q3-length"]]
    return markdown_table(head, [[f"`{variant}`", *cells] for variant, cells in rows.items()])


def first_steps(seeds: Mapping[int, Run]) -> dict[int, int]:
    """Return the first step in which half of the responses have the format, by seed.

    A seed that never learns the format has no step.
    """
    first = {}
    for seed, run in seeds.items():
        steps = run.index[run["rewards/format/mean"] >= 0.5]
        if len(steps):
            first[seed] = int(steps[0])
    return first


def start(seeds: Mapping[int, Run]) -> str:
    """Write how many seeds learn the format, and at which step: mean, lowest and highest."""
    steps = first_steps(seeds).values()
    text = f"{len(steps)} of {len(seeds)}"
    if not steps:
        return text
    return f"{text}, step {fmean(steps):.0f} ({min(steps)} to {max(steps)})"


def read_before() -> Any:
    """Read the responses of the policies with a rare format that were counted before the runs."""
    return json.loads((EVIDENCE / "rare_before.json").read_text(encoding="utf-8"))


def format_before() -> dict[str, str]:
    """Write the share of responses with the right format before the runs, by policy."""
    before = read_before()
    shares = {}
    for rate in RATES:
        shares[rate] = f"{100 * fmean(before['right'][rate]) / before['answers']:.1f} %"
    return shares


def starts(runs: Runs) -> str:
    """Write the table of the rare reward: how many seeds learn it, and at which step."""
    before = read_before()
    answers = before["answers"]
    rows = []
    for rate, share in format_before().items():
        counts = before["right"][rate]
        prompts = ([1.0] * right + [0.0] * (answers - right) for right in counts)
        varying = PROMPTS_A_STEP * fmean(varies(prompt, GROUP) for prompt in prompts)
        cells = [start(runs[f"{name}-{rate}"]) for name in ESTIMATORS]
        rows.append([share, f"{varying:.1f}", *cells])
    return markdown_table(["format before", "groups", *ESTIMATORS.values()], rows)


def starts_compared(runs: Runs) -> str:
    """Compare pairs of estimators: which seeds learn the format (Fisher's test), and when."""
    rows = []
    for rate, share in format_before().items():
        for a, b in (("gdpo", "grpo"), ("dara", "gdpo"), ("dara", "grpo")):
            size = len(runs[f"{a}-{rate}"])
            first = first_steps(runs[f"{a}-{rate}"])
            second = first_steps(runs[f"{b}-{rate}"])
            cell = f"{share}: {ESTIMATORS[a]} − {ESTIMATORS[b]}"
            counts = f"{len(first)} and {len(second)} of {size}"
            p = f"{fisher(len(first), len(second), size):.2g}"
            rows.append([cell, counts, p, around(first, second, digits=1)])
    head = [
        "estimators compared",
        "seeds that learn it",
        "Fisher's p",
        "steps, if both learn it",
    ]
    return markdown_table(head, rows)


def means_of_ten(run: Run, metric: str, begins: Collection[int], digits: int = 3) -> list[str]:
    """Write the mean of a metric over ten steps from each of these places on."""
    values = run[metric].array
    return [f"{values[begin : begin + 10].mean():.{digits}f}" for begin in begins]


def tens(runs: Runs) -> str:
    """Write the table of the check with a pretrained model: means of ten steps each."""
    rows = []
    for arm, seeds in runs.items():
        (run,) = seeds.values()
        for metric in ("format", "correctness"):
            cells = means_of_ten(run, f"rewards/{metric}/mean", range(0, 40, 10))
            rows.append([f"{ESTIMATORS[arm]}: {metric}", *cells])
    return markdown_table(["steps", "1 to 10", "11 to 20", "21 to 30", "31 to 40"], rows)


def push(run: Run, groups: int = PROMPTS_A_STEP) -> float:
    """Return the mean push on format over the first steps of a run.

    The push is the influence, a mean over all groups of a step, times the number of groups.
    """
    return groups * run["gdpo/format/influence"].head(FIRST_STEPS).mean()


def ends(runs: Runs) -> str:
    """Write the table of the study for the quickstart: the format at the end, by policy."""
    end = at_the_end("rewards/format/mean")
    rows = []
    for policy in range(1, POLICIES + 1):
        # An arm has one run, or none if it was not trained.
        gdpo = list(runs.get(f"gdpo-{policy}", {}).values())
        grpo = list(runs.get(f"grpo-{policy}", {}).values())
        cells = [f"{end(run):.3f}" for run in gdpo] or ["–"]
        cells += [f"{end(run):.3f}" for run in grpo] or ["–"]
        cells += [f"{push(run):.1f}" for run in gdpo] or ["–"]
        rows.append([str(policy), *cells])
    return markdown_table(["policy", "GDPO", "GRPO", "GDPO's push, steps 1 to 5"], rows)


def fisher(first: int, second: int, size: int) -> float:
    """Compute Fisher's exact test, two-sided: this many of `size` seeds learned in either cell.

    >>> round(fisher(8, 3, 8), 4)
    0.0256
    """
    both = first + second
    ways = [comb(size, i) * comb(size, both - i) for i in range(both + 1)]
    return sum(way for way in ways if way <= ways[first]) / sum(ways)


# ---------------------------------------------------------------- pictures


def draw_units(axes: Sequence[Any], runs: Runs) -> None:
    """Draw format and correctness per scale, and the fixed weights at × 10."""
    endpoints = measure("q1", runs)
    colors = dict(zip(FAMILIES, (BLUE, VERMILION, OTHERS[0]), strict=True))
    places = [*UNITS.values()]
    marker = {"color": INK, "fillstyle": "none", "markersize": 4}
    for axis, name in zip(axes, ("format", "correctness"), strict=True):
        for family, color in colors.items():
            points = [list(endpoints[name][f"{family}-{u}"].values()) for u in SIGNS]
            axis.plot(places, [fmean(p) for p in points], color=color, label=FAMILIES[family])
            for x, values in zip(places, points, strict=True):
                axis.plot([x] * len(values), values, ".", color=color, alpha=0.5, markersize=5)
        # To the right of × 10, where they were trained, because the points would overlap there.
        for x, (arm, weight) in zip((13, 19, 28), WEIGHTS.items(), strict=True):
            y = fmean(endpoints[name][arm].values())
            axis.plot(x, y, "D", **marker)
            axis.annotate(f"{weight:g}", (x, y), (0, 6), textcoords="offset points", ha="center")
        axis.set(xscale="log", xlabel="scale of correctness", title=f"{name}, mean of all steps")
        axis.set_xticks(places, SIGNS.values())
        axis.set_xlim(0.27, 36)
        axis.minorticks_off()
    # Without data, for the legend, which consists of lines.
    axes[0].plot([], [], "D", label="GRPO, fixed weight", **marker)


def draw_curves(
    axes: Sequence[Any], runs: Runs, titles: Mapping[str, str], arms: Sequence[str]
) -> None:
    """Draw a metric in each panel, per step: mean and range over the seeds of these arms."""
    for axis, (metric, title) in zip(axes, titles.items(), strict=True):
        for arm, color in zip(arms, (VERMILION, BLUE, *OTHERS), strict=False):
            # A column for each seed; what is measured before the first step has no value here.
            curves = pd.DataFrame({seed: run[metric] for seed, run in runs[arm].items()}).dropna()
            steps = curves.index
            axis.plot(steps, curves.mean(axis=1), color=color, label=NAMES[arm])
            # The range and not a deviation, because it shows all of the five seeds.
            low = curves.min(axis=1)
            high = curves.max(axis=1)
            axis.fill_between(steps, low, high, color=color, alpha=0.15, linewidth=0)
        axis.set(xlabel="step", title=title)
        axis.xaxis.get_major_locator().set_params(integer=True)


DRAWINGS: dict[str, Callable[[Sequence[Any], Runs], None]] = {
    "q1": draw_units,
    "q2": partial(
        draw_curves,
        titles={
            "rewards/correctness/mean": "correctness in training",
            "response_length/mean": "tokens",
        },
        arms=("grpo", "gdpo", "gdpo-condition", "gdpo-gate", "grpo-condition"),
    ),
    "quiet": partial(
        draw_curves,
        titles={
            "rewards/relevance/mean": "relevance",
            "rewards/own_words/mean": "texts that pass own_words",
        },
        arms=("grpo", "gdpo", "gdpo-conditioned", "grpo-conditioned"),
    ),
}


@contextmanager
def picture(path: Path, size: tuple[float, float], **style: Any) -> Iterator[Figure]:
    """Give a figure to draw on, and save it as SVG, which is equal for equal runs."""
    fixed = {
        "svg.fonttype": "none",
        "svg.hashsalt": path.stem,  # ids are drawn at random without one
    }
    with matplotlib.rc_context(STYLE | fixed | style):
        figure = Figure(figsize=size, layout="constrained")
        yield figure
        figure.savefig(path, metadata={"Date": None})


def draw(name: str, runs: Runs, path: Path) -> None:
    """Draw two panels with one legend."""
    style = {
        "axes.grid": True,
        "axes.grid.axis": "y",
        "axes.titlesize": 11,
        "axes.titleweight": "bold",
        "legend.frameon": False,
    }
    with picture(path, (9.2, 3.9), **style) as figure:
        axes = figure.subplots(1, 2)
        DRAWINGS[name](axes, runs)
        labels = axes[0].get_legend_handles_labels()
        figure.legend(*labels, loc="outside lower center", ncols=5)


def main(docs: Path = ROOT / "docs") -> None:
    folder = docs / "evidence"
    for name in ("q1", "q2", "q3", "pretrained", "quiet", "relative"):
        runs = read(name, folder)
        text = tables(name, runs)
        if name == "q1":  # its arms are in the picture
            text = text.partition("\n\n")[2]
        replace_block(folder / f"{name}.md", name, text)
        if name in DRAWINGS:
            draw(name, runs, folder / f"{name}.svg")
    rare = read("rare", folder)
    replace_block(docs / "evidence.md", "rare", starts(rare))
    replace_block(folder / "rare.md", "rare", starts_compared(rare))
    replace_block(folder / "quickstart.md", "ends", ends(read("quickstart_seeds", folder)))
    check = read("rare_pretrained", folder)
    replace_block(folder / "rare.md", "rare_pretrained", tens(check))


if __name__ == "__main__":
    main()
