"""Make the verdicts, tables and pictures of docs/evidence.md of the runs kept in docs/evidence/.

    python scripts/study_page.py

The same runs give the same page to the byte; nothing is typed by hand and nothing is trained.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from study import STUDY, arms, plan, read
from study_rewards import UNITS

from gdpo_verl.evaluate.intervals import bootstrap
from gdpo_verl.files import write_text
from gdpo_verl.report.paired import half_interval
from gdpo_verl.report.svg import BLUE, INK, OTHERS, STYLE, VERMILION
from gdpo_verl.report.table import NOTHING, Row, to_markdown

DOCS = Path(__file__).parents[1] / "docs"
Entry = Mapping[str, Any]
BySeed = Mapping[int, float]
Values = Mapping[str, BySeed]  # of one endpoint, by arm
SIGNS = {"third": "⅓", "1": "1", "3": "3", "10": "10"}
FAMILIES = {"gdpo": "GDPO", "grpo": "GRPO", "whitened": "GRPO, whitened"}
WEIGHTS = {"weight-0.03": 0.03, "weight-0.1": 0.1, "weight-0.3": 0.3, "grpo-10": 1.0}
PART = "correctness's part"
NAMES = {
    "q1": {f"{f}-{u}": f"{FAMILIES[f]}, × {SIGNS[u]}" for f in FAMILIES for u in SIGNS}
    | {arm: f"GRPO, × 10, weight {weight:g}" for arm, weight in WEIGHTS.items() if weight < 1},
    "q2": {
        "grpo": "GRPO",
        "gdpo": "GDPO",
        "gdpo-condition": "GDPO with the condition",
        "gdpo-gate": "GDPO with the gate",
        "grpo-condition": "GRPO with the condition",
    },
}  # fmt: skip
PAIRS = {
    "q1": [
        *((f"gdpo-{u}", "gdpo-1") for u in SIGNS if u != "1"),
        ("grpo-10", "grpo-third"),
        ("whitened-10", "whitened-third"),
        *((f"grpo-{u}", f"gdpo-{u}") for u in SIGNS),
        *((arm, "gdpo-10") for arm in WEIGHTS if arm != "grpo-10"),
    ],
    "q2": [
        *(("gdpo-condition", "gdpo"), ("gdpo-gate", "gdpo"), ("grpo-condition", "grpo")),
        *(("gdpo", "grpo"), ("gdpo-condition", "grpo-condition")),
    ],
}

# --- numbers --------------------------------------------------------------------------------------


def series(entry: Entry, name: str) -> list[float]:
    """A metric at each step that has it."""
    return [value for value in entry["metrics"].get(name, []) if value is not None]


def unit(entry: Entry) -> float:
    """The unit in which an arm's reward counts correctness."""
    return UNITS.get(arms(entry["question"])[entry["arm"]]["reward"], 1.0)


def held_out(entry: Entry, component: str) -> list[float]:
    """A component on the held-out prompts, before and after, as the reward counts it."""
    task = arms(entry["question"])[entry["arm"]]["task"]
    return series(entry, f"val-aux/{task}/{component}/mean@1")


def correctness_part(entry: Entry) -> float:
    """Correctness's part of GDPO's terms, or of both rewards' deviations in GRPO's sum."""
    if entry["arm"].startswith("gdpo"):
        return fmean(series(entry, "gdpo/correctness/advantage_share"))
    form, other = (fmean(series(entry, f"gdpo/{c}/std")) for c in ("format", "correctness"))
    other *= WEIGHTS.get(entry["arm"], 1.0)
    return other / (form + other)


ENDPOINTS: dict[str, dict[str, Callable[[Entry], float]]] = {
    "q1": {
        "format": lambda e: fmean(series(e, "gdpo/format/mean")),
        "correctness": lambda e: fmean(series(e, "gdpo/correctness/mean")) / unit(e),
        "held-out format, end": lambda e: held_out(e, "format")[-1],
        "held-out correctness, end": lambda e: held_out(e, "correctness")[-1] / unit(e),
        PART: correctness_part,
    },
    "q2": {
        "held-out correctness, end": lambda e: held_out(e, "correctness")[-1],
        "before training": lambda e: held_out(e, "correctness")[0],
        "tokens, last step": lambda e: series(e, "response_length/mean")[-1],
        "phantom groups": lambda e: fmean(series(e, "gdpo/phantom_groups")),
    },
}


def measure(question: str, entries: Sequence[Entry]) -> dict[str, Values]:
    """Endpoint to arm to seed to value."""
    return {
        name: {
            arm: {each["seed"]: value(each) for each in entries if each["arm"] == arm}
            for arm in NAMES[question]
        }
        for name, value in ENDPOINTS[question].items()
    }


def minus(first: BySeed, second: BySeed) -> list[float]:
    """First minus second, for each seed that both have."""
    return [first[seed] - second[seed] for seed in sorted(first.keys() & second.keys())]


def around(differences: Sequence[float]) -> tuple[float, float, float]:
    """Mean and both ends of the paired interval."""
    mean, half = fmean(differences), half_interval(differences)
    return mean, mean - half, mean + half


def interquartile_mean(values: Sequence[float]) -> float:
    """The mean without the lowest and the highest quarter.

    >>> interquartile_mean([0.0, 1.0, 2.0, 3.0, 100.0])
    2.0
    """
    cut = len(values) // 4
    return fmean(sorted(values)[cut : len(values) - cut])


# --- verdicts, by the criteria of the page --------------------------------------------------------


def verdicts_on_units(found: Mapping[str, Values]) -> Iterator[tuple[bool, str]]:
    """Answers to question 1, each with its sentence."""
    form, correct = found["format"], found["correctness"]
    off = {u: around(minus(form[f"gdpo-{u}"], form["gdpo-1"])) for u in SIGNS if u != "1"}
    same = all(abs(mean) <= 0.01 for mean, *_ in off.values())
    yield (
        same,
        f"GDPO's format {'stays' if same else 'does not stay'} within ±0.01 of that at unit 1: "
        f"{at_units(off)}.",
    )
    moved = around(minus(form["grpo-10"], form["grpo-third"]))
    falls = "falls" if moved[2] < 0 else "does not clearly fall"
    sentence = f"GRPO's format {falls} from unit ⅓ to 10: {interval(moved)}; its correctness "
    gaps = {u: around(minus(correct[f"grpo-{u}"], correct[f"gdpo-{u}"])) for u in SIGNS}
    sentence += f"minus GDPO's is {at_units(gaps)}"
    if min(mean for mean, *_ in gaps.values()) > 0:
        grpo, gdpo = (
            [fmean(found[PART][f"{family}-{u}"].values()) for u in SIGNS]
            for family in ("grpo", "gdpo")
        )
        sentence += (
            f", where correctness makes {min(grpo):.0%} to {max(grpo):.0%} of the two rewards' "
            f"deviations in the sum that GRPO normalises, and {min(gdpo):.0%} to {max(gdpo):.0%} "
            "of the terms that GDPO adds"
        )
    yield moved[2] < 0, f"{sentence}."
    yield _tuned(form, correct)


def _tuned(form: Values, correct: Values) -> tuple[bool, str]:
    """Whether the best static weight of GRPO at unit 10 is as good in format as GDPO."""
    worth = {
        arm: fmean(form[arm].values()) + fmean(correct[arm].values()) / 3
        for arm in (*WEIGHTS, "gdpo-10")
    }
    best = max(WEIGHTS, key=lambda arm: worth[arm])
    listed = ", ".join(f"{worth[arm]:.3f} with {weight:g}" for arm, weight in WEIGHTS.items())
    gap, price = (around(minus(each[best], each["gdpo-10"])) for each in (form, correct))
    lesson = "GDPO saves the tuning of a weight, and no more"
    if gap[1] > 0:
        lesson += ", and that weight's format is the higher one"
    if gap[2] < 0:
        lesson = "GRPO with that weight does not reach GDPO's format"
    return (
        gap[2] < 0,
        f"Of GRPO's four static weights at unit 10 the best is {WEIGHTS[best]:g} (format and a "
        f"third of correctness: {listed}; GDPO {worth['gdpo-10']:.3f}); its format minus GDPO's "
        f"is {interval(gap)}, its correctness minus GDPO's {interval(price)}, so {lesson}.",
    )


def at_units(differences: Mapping[str, tuple[float, float, float]]) -> str:
    return ", ".join(f"{interval(each)} at {SIGNS[unit]}" for unit, each in differences.items())


def verdicts_on_length(found: Mapping[str, Values]) -> Iterator[tuple[bool, str]]:
    """Answers to question 2, each with its sentence."""
    end, before = found["held-out correctness, end"], found["before training"]
    for arm in ("gdpo-condition", "gdpo-gate"):
        gain = around(minus(end[arm], end["gdpo"]))
        helps = "raises" if gain[1] > 0 else "does not clearly raise"
        what = arm.removeprefix("gdpo-")
        yield gain[1] > 0, f"The {what} {helps} GDPO's held-out correctness: {interval(gain)}."
    for arm in ("gdpo", "grpo"):
        change = around(minus(end[arm], before[arm]))
        shown = "Collapse is shown" if change[2] < 0 else "No collapse is shown"
        sentence = (
            f"{shown} for {arm.upper()} without the condition: its held-out correctness changes "
            f"by {interval(change)} from before the training."
        )
        yield change[2] < 0, sentence


VERDICTS = {"q1": verdicts_on_units, "q2": verdicts_on_length}


def verdicts(runs: Mapping[str, Sequence[Entry]]) -> str:
    """The top of the page: each no before each yes, and no verdict on a part of the runs."""
    lines: list[tuple[bool, str]] = []
    for question in STUDY["questions"]:
        if len(runs[question]) == len(plan([question])):
            if question in VERDICTS:
                lines += VERDICTS[question](measure(question, runs[question]))
        else:
            state = progress(question, runs[question])
            lines.append((False, f"Question {question[1]} is not answered yet: {state}"))
    lines.sort(key=lambda line: line[0])
    return proper("".join(f"- {sentence}\n" for _, sentence in lines))


# --- tables ---------------------------------------------------------------------------------------


def proper(text: str) -> str:
    """Signs of negative numbers as the page writes them."""
    return re.sub(r"(?<![\w.-])-(?=\d)", "−", text)


def interval(ends: tuple[float, float, float]) -> str:
    return "{:+.3f} [{:+.3f}, {:+.3f}]".format(*ends)


def cell(values: BySeed) -> str:
    """Mean, interval of the bootstrap, interquartile mean; of few seeds the range in its place."""
    found = sorted(values.values())
    if len(found) < 2:
        return f"{found[0]:.3f}" if found else NOTHING
    if len(found) < 5:
        return f"{fmean(found):.3f} ({found[0]:.3f} to {found[-1]:.3f})"
    ends = bootstrap([found]) or (found[0], found[-1])
    return f"{fmean(found):.3f} [{ends[0]:.3f}, {ends[1]:.3f}]; {interquartile_mean(found):.3f}"


def tables(question: str, found: Mapping[str, Values]) -> str:
    """The arms, and below them the paired differences."""
    names = NAMES[question]
    rows = [Row(name, tuple(cell(v[arm]) for v in found.values())) for arm, name in names.items()]
    paired = [name for name in found if name != PART]
    gaps = []
    for a, b in PAIRS[question]:
        columns = [minus(found[name][a], found[name][b]) for name in paired]
        cells = tuple(interval(around(each)) if len(each) > 1 else NOTHING for each in columns)
        gaps.append(Row(f"{names[a]} − {names[b]}", cells))
    return f"{to_markdown(list(found), rows)}\n{to_markdown(paired, gaps)}"


def variants(entries: Sequence[Entry]) -> str:
    """The table of question 3."""
    columns = {
        "format at unit 10": ("units", ENDPOINTS["q1"]["format"]),
        "correctness at unit 10": ("units", ENDPOINTS["q1"]["correctness"]),
        "correctness of the sums": ("length", ENDPOINTS["q2"]["held-out correctness, end"]),
    }
    rows = []
    for name in STUDY["questions"]["q3"]["variants"]:
        cells = []
        for place, value in columns.values():
            runs_of = (each for each in entries if each["arm"] == f"{name}-{place}")
            cells.append(cell({each["seed"]: value(each) for each in runs_of}))
        rows.append(Row(f"`{name}`", tuple(cells)))
    return to_markdown(list(columns), rows)


def progress(question: str, entries: Sequence[Entry]) -> str:
    """How much of a question has been run, when, and on what."""
    runs = len(plan([question]))
    if not entries:
        return f"none of its {runs} runs is in."
    part = (
        f"all {runs} runs are in"
        if len(entries) == runs
        else f"{len(entries)} of {runs} runs are in"
    )
    days = sorted({each["started"][:10] for each in entries})
    machines = {f"{e['machine']['processor']} ({e['machine']['cores']} cores)" for e in entries}
    versions = {f"{name} {v}" for e in entries for name, v in e["versions"].items()}
    commits = {each["commit"][:9] + each["commit"][40:] for each in entries}
    return (
        f"{part}, {fmean(each['seconds'] for each in entries) / 60:.1f} minutes each; "
        f"{' to '.join(dict.fromkeys((days[0], days[-1])))}; {', '.join(sorted(machines))}; "
        f"{', '.join(sorted(versions))}; commit {', '.join(sorted(commits))}."
    )


# --- pictures -------------------------------------------------------------------------------------


def picture_of_units(axes: Sequence[Axes], found: Mapping[str, Values], entries: object) -> None:
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
        for x, (arm, weight) in zip((13, 17, 22), WEIGHTS.items(), strict=False):
            if values := list(found[name][arm].values()):
                axis.plot(x, fmean(values), "D", color=INK, markersize=4, fillstyle="none")
                at = (x, fmean(values))
                axis.annotate(f"{weight:g}", at, (0, 6), textcoords="offset points", ha="center")
        axis.set(xscale="log", xlabel="unit of correctness", title=f"{name}, mean of all steps")
        axis.set_xticks([UNITS[f"times_{u}"] for u in SIGNS], SIGNS.values())
        axis.set_xlim(0.27, 28)
        axis.minorticks_off()
    axes[0].plot(
        [], [], "D", color=INK, fillstyle="none", markersize=4, label="GRPO, static weight"
    )


def picture_of_length(axes: Sequence[Axes], found: object, entries: Sequence[Entry]) -> None:
    """Correctness in training and the responses' length, step by step, mean over the seeds."""
    colors = (VERMILION, BLUE, OTHERS[0], OTHERS[1], OTHERS[2])
    shown = {"gdpo/correctness/mean": "correctness in training", "response_length/mean": "tokens"}
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
    paint = {"q1": picture_of_units, "q2": picture_of_length}[question]
    fixed = {"svg.fonttype": "none", "svg.hashsalt": question}
    with matplotlib.rc_context(STYLE | fixed):
        figure = Figure(figsize=(9.2, 3.9), layout="constrained")
        if len(entries) < len(plan([question])):
            figure.suptitle(f"Partial: {len(entries)} of {len(plan([question]))} runs")
        axes = figure.subplots(1, 2)
        paint(axes, found, entries)
        for axis in axes:
            axis.grid(axis="y")
            axis.title.set(fontsize=11, fontweight="bold")
        figure.legend(
            *axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False
        )
        path.parent.mkdir(exist_ok=True)
        figure.savefig(path, facecolor="white", metadata={"Date": None})


# --- the page -------------------------------------------------------------------------------------

TITLES = {"q1": "Question 1: units", "q2": "Question 2: phantom gradients"}
CAPTIONS = {
    "q1": "Lines: means over the seeds; dots: seeds; at the right the static weights at unit 10.",
    "q2": "Lines: means over the seeds; shaded from the lowest to the highest.",
}
TABLES = (
    "In the tables: mean [interval]; interquartile mean, of fewer than five seeds mean (lowest to "
    "highest). Below: paired differences [interval]."
)
NOTES = {
    "q1": "Correctness's part: of the two rewards' deviations over a step in the sum that GRPO "
    "normalises; with GDPO of the sizes of the two terms that it adds, where a group in which a "
    "reward does not vary adds nothing.",
    "q2": "Phantom groups: the part of the groups that are trained by length alone.",
    "q3": "Mean (lowest to highest). Nothing is tested: three seeds show large effects and no "
    "others.",
}


def results(runs: Mapping[str, Sequence[Entry]], docs: Path) -> str:
    """Each question's tables and picture; writes the pictures."""
    parts = []
    for question, title in TITLES.items():
        entries, part = runs[question], ""
        if entries:
            found = measure(question, entries)
            draw(question, found, entries, docs / f"evidence/{question}.svg")
            part = f"![{title}](evidence/{question}.svg)\n\n{CAPTIONS[question]}\n{TABLES}\n\n"
            part += f"{tables(question, found)}\n{NOTES[question]}\n"
        parts.append(f"### {title}\n\n{state(question, entries)}\n\n{part}")
    part = f"{NOTES['q3']}\n\n{variants(runs['q3'])}" if runs["q3"] else ""
    parts.append(f"### Question 3: all variants\n\n{state('q3', runs['q3'])}\n\n{part}")
    return proper("\n".join(parts))


def state(question: str, entries: Sequence[Entry]) -> str:
    text = progress(question, entries)
    partial = entries and len(entries) < len(plan([question]))
    return f"**Partial, nothing is decided**: {text}" if partial else text[0].upper() + text[1:]


def main(docs: Path = DOCS) -> None:
    """Write the page's two parts and the pictures."""
    runs = {question: read(question, docs / "evidence") for question in STUDY["questions"]}
    text = (docs / "evidence.md").read_text(encoding="utf-8")
    for name, part in (("verdicts", verdicts(runs)), ("results", results(runs, docs))):
        begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}\n{part}\n{end}{rest.partition(end)[2]}"
    write_text(docs / "evidence.md", text)


if __name__ == "__main__":
    main()
