"""Make the verdicts, tables and pictures of docs/evidence.md from the runs kept in docs/evidence/.

    python scripts/study_page.py

The same runs give the same page to the byte; nothing is typed by hand and nothing is trained.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean

import numpy as np
from study import STUDY, plan, read
from study_figures import draw
from study_numbers import (
    CONSTANT,
    ENDPOINTS,
    NAMES,
    PART,
    SIGNS,
    WEIGHTS,
    BySeed,
    Entry,
    Values,
    around,
    held_out,
    interquartile_mean,
    measure,
    minus,
)

from gdpo_verl.evaluate.intervals import bootstrap
from gdpo_verl.files import write_text
from gdpo_verl.report.recipes import Row
from gdpo_verl.report.tables import NOTHING, to_markdown

DOCS = Path(__file__).parents[1] / "docs"
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
            f"; correctness makes {percentages(grpo)} of the two rewards' deviations in the sum "
            f"that GRPO normalises, and {percentages(gdpo)} of the terms that GDPO adds"
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


def percentages(shares: Sequence[float]) -> str:
    ends = (f"{min(shares):.0%}", f"{max(shares):.0%}")
    return " to ".join(dict.fromkeys(ends))


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
            state = count(question, runs[question])
            lines.append((False, f"Question {question[1]} is not answered yet: {state}."))
    lines.sort(key=lambda line: line[0])
    return proper("".join(f"- {sentence}\n" for _, sentence in lines))


# --- tables ---------------------------------------------------------------------------------------


def proper(text: str) -> str:
    """Signs of negative numbers as the page writes them."""
    return re.sub(r"(?<![\w.-])-(?=\d)", "−", text)


def interval(ends: tuple[float, float, float]) -> str:
    return "{:+.3f} [{:+.3f}, {:+.3f}]".format(*ends)


def cell(values: BySeed) -> str:
    """Mean and interquartile mean with their intervals; of few seeds the mean with the range."""
    found = sorted(values.values())
    if len(found) < 2:
        return f"{found[0]:.3f}" if found else NOTHING
    if len(found) < 5:
        return f"{fmean(found):.3f} ({found[0]:.3f} to {found[-1]:.3f})"
    told = []
    for statistic in (np.mean, interquartile_mean):
        low, high = bootstrap([found], statistic=statistic) or (found[0], found[-1])
        told.append(f"{statistic(found):.3f} [{low:.3f}, {high:.3f}]")
    return "; ".join(told)


def tables(question: str, found: Mapping[str, Values]) -> str:
    """The arms, and below them the paired differences."""
    names = NAMES[question]
    rows = [Row(name, tuple(cell(v[arm]) for v in found.values())) for arm, name in names.items()]
    paired = [name for name in found if name not in (PART, CONSTANT)]
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
        "before training": ("length", ENDPOINTS["q2"]["before training"]),
        "their length reward": ("length", lambda entry: held_out(entry, "length")[-1]),
    }
    rows = []
    for name in STUDY["questions"]["q3"]["variants"]:
        cells = []
        for place, value in columns.values():
            runs_of = (each for each in entries if each["arm"] == f"{name}-{place}")
            cells.append(cell({each["seed"]: value(each) for each in runs_of}))
        rows.append(Row(f"`{name}`", tuple(cells)))
    return to_markdown(list(columns), rows)


def count(question: str, entries: Sequence[Entry]) -> str:
    """How much of a question has been run."""
    runs = len(plan([question]))
    if not entries:
        return f"none of its {runs} runs is in"
    if len(entries) == runs:
        return f"all {runs} runs are in"
    return f"{len(entries)} of {runs} runs are in"


def progress(question: str, entries: Sequence[Entry]) -> str:
    """How much of a question has been run, when, and on what."""
    part = count(question, entries)
    if not entries:
        return f"{part}."
    days = sorted({each["started"][:10] for each in entries})
    on = {(e["machine"]["processor"], e["machine"]["cores"]) for e in entries}
    machines = {f"{processor} ({n} core{'s' if n > 1 else ''})" for processor, n in on}
    versions = {f"{name} {v}" for e in entries for name, v in e["versions"].items()}
    commits = {each["commit"][:9] + each["commit"][40:] for each in entries}
    minutes = [each["seconds"] / 60 for each in entries]
    return (
        f"{part}, {fmean(minutes):.1f} minutes each ({min(minutes):.1f} to {max(minutes):.1f}); "
        f"{' to '.join(dict.fromkeys((days[0], days[-1])))}; {', '.join(sorted(machines))}; "
        f"{', '.join(sorted(versions))}; commit {', '.join(sorted(commits))}."
    )


# --- the page -------------------------------------------------------------------------------------

TITLES = {"q1": "Question 1: units", "q2": "Question 2: phantom gradients"}
CAPTIONS = {
    "q1": "Lines: means over the seeds; dots: seeds; at the right the static weights at unit 10.",
    "q2": "Lines: means over the seeds; shaded from the lowest to the highest.",
}
TABLES = (
    "In the tables: mean [interval]; interquartile mean [interval]; of fewer than five seeds mean "
    "(lowest to highest). Below: paired differences [interval]."
)
NOTES = {
    "q1": "Correctness's part: of the two rewards' deviations over a step, averaged over the "
    "steps, in the sum that GRPO normalises; with GDPO of the sizes of the two terms that it adds, "
    "where a group in which a reward does not vary adds nothing.",
    "q2": "Phantom groups: the part of the groups that are trained by length alone.",
    "q3": "Mean (lowest to highest). Nothing is tested: three seeds show large effects and no "
    "others. Correctness and length reward of the sums are those of the held-out ones.",
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
        parts.append(f"### {title}\n\n{headline(question, entries)}\n\n{part}")
    part = f"{NOTES['q3']}\n\n{variants(runs['q3'])}" if runs["q3"] else ""
    parts.append(f"### Question 3: all variants\n\n{headline('q3', runs['q3'])}\n\n{part}")
    return proper("\n".join(parts))


def headline(question: str, entries: Sequence[Entry]) -> str:
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
