"""Compute the numbers of an evaluation: a table with an estimate for each measure.

The table has a row for each data source, for each average of sources, and for all questions.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from gdpo_verl.lab.evaluate.answers import Evaluation
from gdpo_verl.lab.statistics import mean_interval, pass_at_k
from gdpo_verl.lab.text import columns

ALL = "all"
SCORE = "score"
PASS_AT = (4, 16, 64)
"""The values of k for which pass@k is estimated if there are enough responses.

The number of responses is used as k in addition."""

Averages = Mapping[str, Sequence[Sequence[str] | str]]
"""The parts of each average, which is their unweighted mean.

A part is a list of sources whose questions are pooled, or the name of an earlier average."""
WeightedSources = tuple[float, Sequence[str]]
"""A weight, and the sources whose questions are pooled."""

# The averages of BFCL's leaderboard in version 3, and the averages of version 4 that need only the
# categories of version 3.
_SIMPLE = ("simple_python", "simple_java", "simple_javascript")
_CALLS = ("simple", ("multiple",), ("parallel",), ("parallel_multiple",))
_LIVE_CALLS = ("live_simple", "live_multiple", "live_parallel", "live_parallel_multiple")
BFCL: Averages = {
    "simple": [(name,) for name in _SIMPLE],
    "non_live": [*_CALLS, ("irrelevance",)],
    "live": [(*_LIVE_CALLS, "live_irrelevance", "live_relevance")],
    "multi_turn": [
        ("multi_turn_base",),
        ("multi_turn_miss_func",),
        ("multi_turn_miss_param",),
        ("multi_turn_long_context",),
    ],
    "average": ["non_live", "live", "multi_turn"],
    "v4_non_live": _CALLS,
    "v4_live": [_LIVE_CALLS],
}


def aggregate_rows(sources: Iterable[str]) -> dict[str, list[WeightedSources]]:
    """Return the rows of the table: each source, the averages of `BFCL`, and all questions.

    The weights of a row add up to 1. Parts without questions are left out. An average of averages
    is left out if one of these averages has no questions.
    """
    present = list(dict.fromkeys(sources))
    averaged: dict[str, list[WeightedSources]] = {}
    for name, parts in BFCL.items():
        weighted_parts: list[list[WeightedSources]] = []
        for part in parts:
            if isinstance(part, str):
                weighted_parts.append(averaged.get(part, []))
                continue
            pooled = [source for source in part if source in present]
            if pooled:
                weighted_parts.append([(1.0, pooled)])
        if weighted_parts and all(weighted_parts):
            count = len(weighted_parts)
            averaged[name] = []
            for weighted_part in weighted_parts:
                averaged[name] += [(weight / count, pooled) for weight, pooled in weighted_part]
    rows: dict[str, list[WeightedSources]] = {}
    if len(present) > 1:
        rows |= {name: [(1.0, [name])] for name in present}
    return {**rows, **averaged, ALL: [(1.0, present)]}


def question_values(evaluation: Evaluation) -> dict[str, dict[str, float]]:
    """Average the responses to each question: {measure: {question: mean}}.

    The measures are the components, the score, the share of responses that reach the highest value
    of a component (if this is not 1), and pass@k of every measure whose values are all 0 or 1. A
    value that is not scored counts in no measure.
    """
    names = dict.fromkeys(
        name for answers in evaluation.answers.values() for answer in answers for name in answer
    )
    values: dict[str, dict[str, float]] = {}
    for name in names:
        scored: dict[str, list[float]] = {}
        # Sorted, because the result of the bootstrap depends on the order of the questions.
        for question, answers in sorted(evaluation.answers.items()):
            of_answers = [answer.get(name) for answer in answers]
            numbers = [value for value in of_answers if value is not None]
            if numbers:
                scored[question] = numbers
        high = evaluation.highest.get(name)
        values |= _of_measure(name, scored, evaluation.samples)
        if high is not None and high != 1:
            reached = {}
            for question, numbers in scored.items():
                # In single precision, a reward that is declared as 0.7 is 0.699999988.
                close = [math.isclose(number, high, rel_tol=1e-6) for number in numbers]
                reached[question] = list(map(float, close))
            values |= _of_measure(f"{name} = {high:g}", reached, evaluation.samples)
    return values


def _of_measure(
    name: str, scored: Mapping[str, Sequence[float]], samples: int
) -> dict[str, dict[str, float]]:
    """Return a measure's mean for each question, and pass@k if all its values are 0 or 1."""
    values = {name: {question: sum(numbers) / len(numbers) for question, numbers in scored.items()}}
    is_binary = all(number in (0.0, 1.0) for numbers in scored.values() for number in numbers)
    if is_binary and name != SCORE:  # a weighted sum does not say whether a response is right
        for k in sorted({k for k in (*PASS_AT, samples) if 1 < k <= samples}):
            values[f"pass@{k} of {name}"] = {
                question: pass_at_k(int(sum(numbers)), len(numbers), k)
                for question, numbers in scored.items()
                if len(numbers) >= k
            }
    return values


def estimate_row(
    values: Mapping[str, float],
    sources: Mapping[str, str],
    parts: Sequence[WeightedSources],
    *,
    paired: bool = False,
) -> dict[str, Any] | None:
    """Estimate a row of the table; None if a part of the row has no values.

    Args:
      values: the value of each question.
      sources: the data source of each question.
      parts: the weighted parts of the row.
      paired: True if the values are differences, see `mean_interval`.
    """
    strata = []
    for _, pooled in parts:
        strata.append([value for question, value in values.items() if sources[question] in pooled])
    if not all(strata):
        return None
    return asdict(mean_interval(strata, [weight for weight, _ in parts], paired=paired))


def count_of(sources: Mapping[str, str], parts: Sequence[WeightedSources]) -> int:
    """Count the questions of a row."""
    # A set, because an average of averages may name a source twice.
    pooled = {source for _, part in parts for source in part}
    return sum(source in pooled for source in sources.values())


def summarise(evaluation: Evaluation) -> dict[str, Any]:
    """Return the numbers of an evaluation as values of JSON."""
    sources = evaluation.sources
    values = question_values(evaluation)
    rows: dict[str, dict[str, Any]] = {}
    for name, parts in aggregate_rows(sources.values()).items():
        rows[name] = {"questions": count_of(sources, parts)}
        for measure, of_questions in values.items():
            rows[name][measure] = estimate_row(of_questions, sources, parts)
    return {
        "dump": str(evaluation.dump),
        "questions": len(sources),
        "answers": sum(map(len, evaluation.answers.values())),
        "samples": evaluation.samples,
        "parse_errors": dict(evaluation.errors),
        "results": rows,
    }


def to_json(record: Mapping[str, Any]) -> str:
    """Return a record as the text of its JSON file."""
    return json.dumps(record, indent=1, ensure_ascii=False) + "\n"


# ------------------------------------------------------------------ the table


def to_text(record: Mapping[str, Any]) -> str:
    """Format the numbers for a terminal."""
    lines = table(record["results"], ["mean"], lambda cell: [estimate_text(cell)])
    if record["parse_errors"]:
        counts = ", ".join(f"{name} {count}" for name, count in record["parse_errors"].items())
        lines.append(f"could not be read, or met with an error: {counts}")
    return "\n".join(lines)


def table(
    rows: Mapping[str, Mapping[str, Any]],
    headings: Sequence[str],
    texts: Callable[[Any], Sequence[str]],
) -> list[str]:
    """Lay out rows of results, with one line for each measure that has a cell.

    Args:
      rows: the cells of each row, by measure, and the number of questions.
      headings: the headings of the columns that show a cell.
      texts: returns the texts of a cell, one for each heading.
    """
    lines = [("", "questions", "measure", *headings)]
    for row, cells in rows.items():
        first = (row, str(cells["questions"]))
        for measure, cell in cells.items():
            if measure != "questions" and cell is not None:
                lines.append((*first, measure, *texts(cell)))
                first = ("", "")
    return columns(lines)


def estimate_text(cell: Mapping[str, Any], *, signed: bool = False) -> str:
    """Format a mean with its interval, ``0.715 (0.657 to 0.767)``; with a sign ``+0.113 (…)``."""
    sign = "+" if signed else ""
    shown = f"{cell['mean']:{sign}.3f}"
    if cell["low"] is None:
        return f"{shown} (–)"
    return f"{shown} ({cell['low']:{sign}.3f} to {cell['high']:{sign}.3f})"
