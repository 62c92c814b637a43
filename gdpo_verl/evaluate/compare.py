"""Two models on the same questions: the difference, question by question, with its interval.

Each question's answers are averaged first, then the evaluations of a side (as of several training
seeds), and the interval is over questions. It says how the difference would vary with other
questions of the kind, not with another training: the spread over the evaluations of a side is
shown separately.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from gdpo_verl.evaluate import result
from gdpo_verl.evaluate.intervals import Estimate
from gdpo_verl.tasks.benchmark import ACCURACY
from gdpo_verl.text import columns

FEW = 30
"""Questions below which a bootstrap interval tends to be too narrow."""

MEANING = (
    "The intervals (95%) are over questions: they say how the difference would vary with other "
    "questions of this kind. They do not cover the chance of training: another seed gives another "
    "model."
)


@dataclass(frozen=True)
class Evaluation:
    """An evaluation that was read.

    Attributes:
      path: its JSON file.
      record: what that holds.
      lines: its answers.
    """

    path: Path
    record: Mapping[str, Any]
    lines: Sequence[result.Line]

    @property
    def benchmarks(self) -> Mapping[str, Any]:
        """The record of each benchmark."""
        return dict(self.record["benchmarks"])

    def values(self, benchmark: str) -> dict[str, dict[str, float]]:
        """Average each question's answers: {measure: {question: mean}} of a benchmark."""
        lines = [line for line in self.lines if line["benchmark"] == benchmark]
        return result.question_values(lines, self.benchmarks[benchmark]["pass_at"])


@dataclass(frozen=True)
class MeasureDifference:
    """A measure in one row of the table: A, B, and A - B."""

    a: Estimate
    b: Estimate
    difference: Estimate


Rows = Mapping[str, tuple[int, Mapping[str, MeasureDifference]]]


@dataclass(frozen=True)
class EvaluationComparison:
    """The result of `compare`.

    Attributes:
      sides: for A and B: each evaluation's file and model.
      rows: {benchmark: {row: (questions, {measure: difference})}}.
      spreads: {benchmark: {measure: the mean over all questions of each evaluation, A and B}}.
      notes: what else differs between the sides, and what to beware of.
    """

    sides: tuple[list[dict[str, Any]], list[dict[str, Any]]]
    rows: Mapping[str, Rows]
    spreads: Mapping[str, Mapping[str, tuple[list[float], list[float]]]]
    notes: Sequence[str]

    def to_text(self) -> str:
        """Lay the comparison out for a terminal."""
        lines = [
            f"{letter}   {result.model_text(each['model'])}   {each['file']}"
            for letter, side in zip("AB", self.sides, strict=True)
            for each in side
        ]
        for name, rows in self.rows.items():
            table = [("", "questions", "measure", "A", "B", "A − B")]
            for row, (count, cells) in rows.items():
                for measure, cell in cells.items():
                    shown = (row, str(count)) if measure == ACCURACY else ("", "")
                    values = result.percent(cell.a), result.percent(cell.b)
                    difference = result.percent(cell.difference, signed=True)
                    table.append((*shown, measure, *values, difference))
            lines += ["", name, *(f"  {line}" for line in columns(table))]
            if any(len(side) > 1 for side in self.sides):
                lines.append("  each evaluation, over all questions:")
                for measure, sides in self.spreads[name].items():
                    for letter, side in zip("AB", sides, strict=True):
                        means = ", ".join(f"{100 * value:.1f}%" for value in side)
                        if len(side) > 1:
                            means += f"; standard deviation {100 * stdev(side):.1f}"
                        lines.append(f"    {measure}, {letter}: {means}")
        return "\n".join([*lines, "", MEANING, *self.notes])

    def to_json(self) -> str:
        """JSON with all numbers."""
        record = {
            "a": self.sides[0],
            "b": self.sides[1],
            "difference": "a - b",
            "meaning": MEANING,
            "notes": list(self.notes),
            "benchmarks": {
                name: {
                    "rows": {
                        row: {"questions": count, **{key: asdict(cells[key]) for key in cells}}
                        for row, (count, cells) in rows.items()
                    },
                    "each_evaluation": {
                        measure: {"a": a, "b": b} for measure, (a, b) in self.spreads[name].items()
                    },
                }
                for name, rows in self.rows.items()
            },
        }
        return json.dumps(record, indent=1, ensure_ascii=False) + "\n"


def compare(side_a: Sequence[Path], side_b: Sequence[Path]) -> EvaluationComparison:
    """Compare one or several evaluations with one or several others.

    Args:
      side_a: files of `gdpo-verl evaluate`, of one kind of model: trainings that differ by seed.
      side_b: the same of the other kind.

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
    for name in names:
        for other in everyone[1:]:
            wanted, given = first.benchmarks[name], other.benchmarks[name]
            if given["data"]["asked_sha256"] != wanted["data"]["asked_sha256"]:
                raise ValueError(
                    f"compare: {name}: {first.path} ({wanted['questions']} questions) and "
                    f"{other.path} ({given['questions']}) were not asked the same questions. "
                    "Evaluate both with the same --data and --limit; questions are left out by "
                    "themselves only without --data"
                )
    notes = [
        f"{name} is not in every evaluation and was not compared"
        for name in sorted(known - set(names))
    ]
    notes += _differing_settings(names, everyone)
    rows: dict[str, Rows] = {}
    spreads: dict[str, dict[str, tuple[list[float], list[float]]]] = {}
    for name in names:
        values = [[each.values(name) for each in side] for side in sides]
        measures = [
            measure
            for measure in values[0][0]
            if all(measure in each for side in values for each in side)
        ]
        # Each question's mean over the evaluations of a side.
        means = [
            {
                measure: {
                    question: fmean(each[measure][question] for each in side)
                    for question in side[0][measure]
                }
                for measure in measures
            }
            for side in values
        ]
        rows[name] = _rows(first, name, means[0], means[1])
        spreads[name] = {}
        for measure in measures:
            a, b = ([fmean(each[measure].values()) for each in side] for side in values)
            spreads[name][measure] = a, b
        if few := [row for row, (count, _) in rows[name].items() if count < FEW]:
            notes.append(f"{name}: fewer than {FEW} questions, intervals are rough: {few}")
    about = [
        [{"file": str(each.path), "model": each.record["model"]} for each in side] for side in sides
    ]
    return EvaluationComparison((about[0], about[1]), rows, spreads, notes)


def _differing_settings(names: Sequence[str], everyone: Sequence[Evaluation]) -> Iterator[str]:
    """List the settings that may explain a difference beside the models."""
    found: dict[str, list[Any]] = {}
    for each in everyone:
        settings = {
            f"{name}: {key}": value
            for name in names
            for key, value in each.benchmarks[name]["sampling"].items()
        }
        settings |= {
            key: each.record["engine"].get(key)
            for key in ("engine", "torch", "transformers", "device", "dtype")
        }
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


def _rows(
    first: Evaluation,
    name: str,
    side_a: Mapping[str, Mapping[str, float]],
    side_b: Mapping[str, Mapping[str, float]],
) -> Rows:
    """Estimate both sides and their difference, row by row and measure by measure."""
    categories = {
        line["question"]: line["category"] for line in first.lines if line["benchmark"] == name
    }
    rows = {}
    for row, parts in first.benchmarks[name]["groups"].items():
        cells = {}
        for measure, a in side_a.items():
            b = side_b[measure]
            difference = {question: a[question] - b[question] for question in a}
            cells[measure] = MeasureDifference(
                result.estimate_row(a, categories, parts),
                result.estimate_row(b, categories, parts),
                result.estimate_row(difference, categories, parts, paired=True),
            )
        rows[row] = (result.count_of(categories, parts), cells)
    return rows
