"""Write the tables and pictures of docs/evidence.md and pretrained.md from the committed runs.

    python scripts/studies/evidence.py

The same runs give the same page to the byte; nothing is trained.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib
from experiment_rewards import UNITS
from matplotlib.figure import Figure
from page import ROOT, markdown_table, replace_block

from gdpo_verl.lab.report.svg import BLUE, INK, OTHERS, STYLE, VERMILION
from gdpo_verl.lab.report.tables import half_interval

Run = Sequence[Mapping[str, Any]]  # the steps of one run, in order
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
}


def series(run: Run, metric: str) -> list[float]:
    """A metric at each step that has it."""
    return [step[metric] for step in run if metric in step]


def unit(run: Run) -> float:
    """The unit in which the arm's reward counts correctness."""
    arm = run[0]["arm"]
    # Static weights and the variants of question 3 were tried at unit 10 alone.
    last = "10" if arm.startswith("weight") or arm.endswith("-units") else arm.rpartition("-")[2]
    return UNITS.get(f"times_{last}", 1.0)


def mean(metric: str) -> Callable[[Run], float]:
    """The mean over a run's steps."""
    return lambda run: fmean(series(run, metric))


def held_out(component: str, at: int) -> Callable[[Run], float]:
    """A component on the held-out prompts: at 0 before training, at -1 after it."""

    def value(run: Run) -> float:
        task = "toolbox" if "val-aux/toolbox/format/mean@1" in run[0] else "reasoning-gym"
        return series(run, f"val-aux/{task}/{component}/mean@1")[at]

    return value


def per_unit(value: Callable[[Run], float]) -> Callable[[Run], float]:
    """An endpoint of correctness in the reward's own unit, so that arms can be compared."""
    return lambda run: value(run) / unit(run)


def correctness_part(run: Run) -> float:
    """Correctness's part of GDPO's terms, or of the rewards' deviations in GRPO's sum."""
    if run[0]["arm"].startswith("gdpo"):
        return fmean(series(run, "gdpo/correctness/advantage_share"))
    # GRPO logs no shares. In a sum, a reward weighs as much as it varies.
    names = ("format", "correctness", "integer")
    parts = {c: fmean(found) for c in names if (found := series(run, f"rewards/{c}/std"))}
    parts["correctness"] *= WEIGHTS.get(run[0]["arm"], 1.0)
    return parts["correctness"] / sum(parts.values())


FORMAT = mean("rewards/format/mean")
CORRECTNESS = per_unit(mean("rewards/correctness/mean"))
ENDPOINTS: dict[str, dict[str, Callable[[Run], float]]] = {
    "q1": {
        "format": FORMAT,
        "correctness": CORRECTNESS,
        "held-out format, end": held_out("format", -1),
        "held-out correctness, end": per_unit(held_out("correctness", -1)),
        "correctness's part": correctness_part,
        "groups of constant format": mean("gdpo/format/constant_groups"),
    },
    "q2": {
        "held-out correctness, end": held_out("correctness", -1),
        "before training": held_out("correctness", 0),
        "tokens, last step": lambda run: series(run, "response_length/mean")[-1],
        "phantom groups": mean("gdpo/phantom_groups"),
    },
    "q3-units": {"format at unit 10": FORMAT, "correctness at unit 10": CORRECTNESS},
    "q3-length": {
        "correctness of the sums": held_out("correctness", -1),
        "before training": held_out("correctness", 0),
        "their length reward": held_out("length", -1),
    },
    "pretrained": {
        "format": FORMAT,
        "integer": mean("rewards/integer/mean"),
        "correctness": CORRECTNESS,
        "correctness's part": correctness_part,
    },
}
EXPLAINING = ("correctness's part", "groups of constant format")  # not compared between arms
PAIRS = {
    "q1": [
        *((f"gdpo-{u}", "gdpo-1") for u in SIGNS if u != "1"),
        ("grpo-10", "grpo-third"),
        ("whitened-10", "whitened-third"),
        *((f"grpo-{u}", f"gdpo-{u}") for u in SIGNS),
        *((arm, "gdpo-10") for arm in WEIGHTS),
    ],
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
}


def read(name: str, folder: Path = EVIDENCE) -> list[dict[str, Any]]:
    """The kept steps of an experiment; an archived run is one line with a list for each metric."""
    lines: list[dict[str, Any]] = []
    archive, kept = folder / f"{name}.jsonl.gz", folder / f"{name}.jsonl"
    if archive.exists():
        for run in map(json.loads, gzip.decompress(archive.read_bytes()).splitlines()):
            metrics = run["metrics"]
            for i, step in enumerate(run["steps"]):
                found = {key: values[i] for key, values in metrics.items() if values[i] is not None}
                lines.append({"arm": run["arm"], "seed": run["seed"], "step": step, **found})
    if kept.exists():
        lines += map(json.loads, kept.read_text(encoding="utf-8").splitlines())
    return lines


def by_arm(lines: Sequence[Mapping[str, Any]]) -> Runs:
    """Group the kept steps."""
    runs: dict[str, dict[int, list[Mapping[str, Any]]]] = {}
    for line in lines:
        runs.setdefault(line["arm"], {}).setdefault(line["seed"], []).append(line)
    return runs


def measure(name: str, runs: Runs) -> Values:
    """Every endpoint of every run."""
    return {
        endpoint: {
            arm: {seed: value(run) for seed, run in seeds.items()} for arm, seeds in runs.items()
        }
        for endpoint, value in ENDPOINTS[name].items()
    }


def around(first: Mapping[int, float], second: Mapping[int, float]) -> str:
    """First minus second, paired by seed: the mean and its 95 % interval by Student's t."""
    # Both arms of a seed saw the same prompts in the same order: that part of the noise cancels.
    differences = [first[seed] - second[seed] for seed in sorted(first.keys() & second.keys())]
    if len(differences) < 2:
        return "–"
    middle, half = fmean(differences), half_interval(differences)
    return minus_signs(f"{middle:+.3f} [{middle - half:+.3f}, {middle + half:+.3f}]")


def minus_signs(text: str) -> str:
    return text.replace("-", "−")


def spread(values: Sequence[float]) -> str:
    """Mean, lowest and highest."""
    return minus_signs(f"{fmean(values):.3f} ({min(values):.3f} to {max(values):.3f})")


def tables(name: str, lines: Sequence[Mapping[str, Any]]) -> str:
    """The arms of an experiment, and their paired differences."""
    runs = by_arm(lines)
    if name == "results":  # gdpo-verl report makes its tables
        return f"{len(runs)} arms: {', '.join(runs)}"
    if name == "q3":
        return variants(runs)
    found = measure(name, {arm: runs[arm] for arm in NAMES if arm in runs})
    rows = [
        [NAMES[arm], str(len(runs[arm])), *(spread([*v[arm].values()]) for v in found.values())]
        for arm in NAMES
        if arm in runs
    ]
    compared = {name: v for name, v in found.items() if name not in EXPLAINING}
    # Also of an experiment that goes on, by `experiment.py --table`: what is not there is left out.
    gaps = [
        [f"{NAMES[a]} − {NAMES[b]}", *(around(v[a], v[b]) for v in compared.values())]
        for a, b in PAIRS[name]
        if a in runs and b in runs
    ]
    arms = markdown_table(["", "seeds", *found], rows)
    return f"{arms}\n\n{markdown_table(['', *compared], gaps)}"


def variants(runs: Runs) -> str:
    """The table of question 3: a row a variant, its two tasks side by side."""
    rows: dict[str, list[str]] = {}
    # An arm is named VARIANT-units or VARIANT-length; both parts of a row come in this order.
    for place in ("units", "length"):
        part = {arm: seeds for arm, seeds in runs.items() if arm.endswith(f"-{place}")}
        for values in measure(f"q3-{place}", part).values():
            for arm, seeds in values.items():
                variant = arm.removesuffix(f"-{place}")
                rows.setdefault(variant, []).append(spread([*seeds.values()]))
    head = ["", *ENDPOINTS["q3-units"], *ENDPOINTS["q3-length"]]
    return markdown_table(head, [[f"`{variant}`", *cells] for variant, cells in rows.items()])


# ---------------------------------------------------------------- pictures


def draw_units(axes: Sequence[Any], runs: Runs) -> None:
    """Format and correctness by the unit, and the static weights at unit 10."""
    found = measure("q1", runs)
    colors = dict(zip(FAMILIES, (BLUE, VERMILION, OTHERS[0]), strict=True))
    places = [UNITS[f"times_{u}"] for u in SIGNS]
    for axis, name in zip(axes, ("format", "correctness"), strict=True):
        for family, color in colors.items():
            points = [list(found[name][f"{family}-{u}"].values()) for u in SIGNS]
            axis.plot(places, [fmean(p) for p in points], color=color, label=FAMILIES[family])
            for x, values in zip(places, points, strict=True):
                axis.plot([x] * len(values), values, ".", color=color, alpha=0.5, markersize=5)
        # To the right of unit 10, which they were trained at, as there the points would overlap.
        for x, (arm, weight) in zip((13, 19, 28), WEIGHTS.items(), strict=True):
            y = fmean(found[name][arm].values())
            axis.plot(x, y, "D", color=INK, markersize=4, fillstyle="none")
            at = (0, 6)
            axis.annotate(f"{weight:g}", (x, y), at, textcoords="offset points", ha="center")
        axis.set(xscale="log", xlabel="unit of correctness", title=f"{name}, mean of all steps")
        axis.set_xticks(places, SIGNS.values())
        axis.set_xlim(0.27, 36)
        axis.minorticks_off()
    # Without data: for the legend, which is made of lines.
    marker = {"color": INK, "fillstyle": "none", "markersize": 4}
    axes[0].plot([], [], "D", label="GRPO, static weight", **marker)


def draw_length(axes: Sequence[Any], runs: Runs) -> None:
    """Correctness in training and the responses' length, step by step, over the seeds."""
    arms = ("grpo", "gdpo", "gdpo-condition", "gdpo-gate", "grpo-condition")
    shown = {
        "rewards/correctness/mean": "correctness in training",
        "response_length/mean": "tokens",
    }
    for axis, (metric, title) in zip(axes, shown.items(), strict=True):
        for arm, color in zip(arms, (VERMILION, BLUE, *OTHERS[:3]), strict=True):
            curves = zip(*(series(run, metric) for run in runs[arm].values()), strict=True)
            # The range and not a deviation: of five seeds a reader can be shown all.
            columns = [(fmean(c), min(c), max(c)) for c in curves]
            middle, low, high = zip(*columns, strict=True)
            steps = range(1, len(columns) + 1)
            axis.plot(steps, middle, color=color, label=NAMES[arm])
            axis.fill_between(steps, low, high, color=color, alpha=0.15, linewidth=0)
        axis.set(xlabel="step", title=title)


def draw(name: str, runs: Runs, path: Path) -> None:
    """Two panels as SVG, the same for the same runs."""
    # Ids are drawn at random without a salt, and a date is written unless it is None (below).
    fixed = {"svg.fonttype": "none", "svg.hashsalt": name}
    with matplotlib.rc_context(STYLE | fixed):
        figure = Figure(figsize=(9.2, 3.9), layout="constrained")
        axes = figure.subplots(1, 2)
        (draw_units if name == "q1" else draw_length)(axes, runs)
        for axis in axes:
            axis.grid(axis="y")
            axis.title.set(fontsize=11, fontweight="bold")
        labels = axes[0].get_legend_handles_labels()
        figure.legend(*labels, loc="outside lower center", ncols=5, frameon=False)
        figure.savefig(path, facecolor="white", metadata={"Date": None})


def main(docs: Path = ROOT / "docs") -> None:
    for name in ("q1", "q2", "q3"):
        lines = read(name, docs / "evidence")
        text = tables(name, lines)
        if name == "q1":  # its arms are in the picture
            text = text.partition("\n\n")[2]
        replace_block(docs / "evidence.md", name, text)
        if name != "q3":
            draw(name, by_arm(lines), docs / f"evidence/{name}.svg")
    pretrained = tables("pretrained", read("pretrained", docs / "evidence"))
    replace_block(docs / "pretrained.md", "pretrained", pretrained)


if __name__ == "__main__":
    main()
