"""Two models on the same questions: the difference, question by question, with its interval.

Each question's answers are averaged first, then the evaluations of a side (as of several training
seeds), and the interval is over questions. The spread over the evaluations of a side is shown
separately.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from gdpo_verl.lab.evaluate import result
from gdpo_verl.lab.tasks.benchmark import ACCURACY
from gdpo_verl.lab.text import columns

FEW = 30
"""Questions below which a bootstrap interval tends to be too narrow."""

MEANING = (
    "The intervals (95%) are over questions: they say how the difference would vary with other "
    "questions of this kind. They do not cover the chance of training: another seed gives another "
    "model."
)


@dataclass(frozen=True)
class Evaluation:
    """The record in an evaluation's file, and its answers."""

    path: Path
    record: Mapping[str, Any]
    lines: Sequence[result.Line]

    @property
    def benchmarks(self) -> dict[str, Any]:
        return dict(self.record["benchmarks"])

    def values(self, benchmark: str) -> dict[str, dict[str, float]]:
        """Average each question's answers: {measure: {question: mean}} of a benchmark."""
        lines = [line for line in self.lines if line["benchmark"] == benchmark]
        return result.question_values(lines, self.benchmarks[benchmark]["pass_at"])


def compare(side_a: Sequence[Path], side_b: Sequence[Path]) -> dict[str, Any]:
    """Compare one or several evaluations with one or several others.

    Args:
      side_a: files of `gdpo-verl evaluate`, of one kind of model: trainings that differ by seed.
      side_b: the same of the other kind.

    Returns:
      the comparison as JSON can hold it: of each benchmark the ``rows``, with the estimates of A,
      B and A - B for each measure, and in ``each_evaluation`` the means over all questions.

    Raises:
      ValueError: a file is not an evaluation, or they were not asked the same questions.
      FileNotFoundError: a file is missing.
    """
    sides = [[Evaluation(path, *result.read(path)) for path in side] for side in (side_a, side_b)]
    everyone = sides[0] + sides[1]
    first = everyone[0]
    known = {name for each in everyone for name in each.benchmarks}
    names = [name for name in first.benchmarks if all(name in e.benchmarks for e in everyone)]
    if not names:
        found = {str(each.path): sorted(each.benchmarks) for each in everyone}
        raise ValueError(f"compare: expected a benchmark in common, found {found}")
    # By what was asked, not by names: a prepared file's rows have the same names in every file.
    for name in names:
        for other in everyone[1:]:
            wanted, given = first.benchmarks[name], other.benchmarks[name]
            if given["data"]["asked_sha256"] != wanted["data"]["asked_sha256"]:
                raise ValueError(
                    f"compare: {name}: {first.path} ({wanted['questions']} questions) and "
                    f"{other.path} ({given['questions']}) were not asked the same questions. "
                    "Evaluate both with the same --data and --limit; without --data, questions "
                    "that a run was trained on are left out"
                )
    notes = [
        f"{name} is not in every evaluation and was not compared"
        for name in sorted(known - set(names))
    ]
    notes += _differing_settings(names, everyone)
    benchmarks = {name: _compare_benchmark(name, sides) for name in names}
    for name, compared in benchmarks.items():
        if few := [row for row, cells in compared["rows"].items() if cells["questions"] < FEW]:
            notes.append(f"{name}: fewer than {FEW} questions, intervals are rough: {few}")
    a, b = (
        [{"file": str(each.path), "model": each.record["model"]} for each in side] for side in sides
    )
    return {
        "a": a,
        "b": b,
        "difference": "a - b",
        "meaning": MEANING,
        "notes": notes,
        "benchmarks": benchmarks,
    }


def _compare_benchmark(name: str, sides: Sequence[Sequence[Evaluation]]) -> dict[str, Any]:
    first = sides[0][0]
    categories = {
        line["question"]: line["category"] for line in first.lines if line["benchmark"] == name
    }
    groups = first.benchmarks[name]["groups"]
    rows: dict[str, dict[str, Any]] = {
        row: {"questions": result.count_of(categories, parts)} for row, parts in groups.items()
    }
    each_evaluation = {}
    values = [[each.values(name) for each in side] for side in sides]
    for measure in values[0][0]:
        # Such as pass@k, where another evaluation has fewer than k answers.
        if not all(measure in each for side in values for each in side):
            continue
        of_sides = [[each[measure] for each in side] for side in values]
        each_evaluation[measure] = {
            letter: [fmean(each.values()) for each in side]
            for letter, side in zip("ab", of_sides, strict=True)
        }
        # Each question's mean over the evaluations of a side.
        a, b = (
            {question: fmean(each[question] for each in side) for question in side[0]}
            for side in of_sides
        )
        difference = {question: a[question] - b[question] for question in a}
        for row, parts in groups.items():
            rows[row][measure] = {
                "a": result.estimate_row(a, categories, parts),
                "b": result.estimate_row(b, categories, parts),
                "difference": result.estimate_row(difference, categories, parts, paired=True),
            }
    return {"rows": rows, "each_evaluation": each_evaluation}


def _differing_settings(names: Sequence[str], everyone: Sequence[Evaluation]) -> Iterator[str]:
    """List the settings that may explain a difference beside the models."""
    found: dict[str, list[Any]] = {}
    for each in everyone:
        settings = {
            f"{name}: {key}": value
            for name in names
            for key, value in each.benchmarks[name]["sampling"].items()
        }
        for key in ("engine", "torch", "transformers", "device", "dtype"):
            settings[key] = each.record["engine"].get(key)
        settings["gdpo_verl"] = each.record["gdpo_verl"]
        settings["chat template"] = each.record["model"]["chat_template_sha256"][:12]
        for key, value in settings.items():
            found.setdefault(key, []).append(value)
    for key, values in found.items():
        if len(distinct := list(dict.fromkeys(values))) > 1:
            yield f"CAUTION: not the same {key}: {', '.join(map(str, distinct))}"
    weights = [each.record["model"]["weights_sha256"] for each in everyone]
    if len(set(weights)) < len(weights):
        yield "CAUTION: two of the evaluations are of the same weights"


def to_text(comparison: Mapping[str, Any]) -> str:
    """Lay out what `compare` returned for a terminal."""
    lines = [
        f"{side.upper()}   {result.model_text(each['model'])}   {each['file']}"
        for side in "ab"
        for each in comparison[side]
    ]
    several = any(len(comparison[side]) > 1 for side in "ab")
    for name, compared in comparison["benchmarks"].items():
        table = [("", "questions", "measure", "A", "B", "A − B")]
        for row, cells in compared["rows"].items():
            for measure in compared["each_evaluation"]:
                shown = (row, str(cells["questions"])) if measure == ACCURACY else ("", "")
                cell = cells[measure]
                values = result.percent(cell["a"]), result.percent(cell["b"])
                difference = result.percent(cell["difference"], signed=True)
                table.append((*shown, measure, *values, difference))
        lines += ["", name, *(f"  {line}" for line in columns(table))]
        if not several:
            continue
        lines.append("  each evaluation, over all questions:")
        for measure, of_sides in compared["each_evaluation"].items():
            for side, found in of_sides.items():
                means = ", ".join(f"{100 * value:.1f}%" for value in found)
                if len(found) > 1:
                    means += f"; standard deviation {100 * stdev(found):.1f}"
                lines.append(f"    {measure}, {side.upper()}: {means}")
    return "\n".join([*lines, "", MEANING, *comparison["notes"]])
