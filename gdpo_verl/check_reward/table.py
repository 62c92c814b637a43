"""A report as a page of text, or as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from gdpo_verl.check_reward.broken import SHARE_OF_STEP
from gdpo_verl.check_reward.cases import Case
from gdpo_verl.check_reward.report import ComponentSummary, Report
from gdpo_verl.text import columns, seconds_text

NOTHING = "–"
EXCERPT = 70


def to_text(report: Report, about: Mapping[str, str]) -> str:
    """The report for a terminal.

    Args:
      about: what was checked: a heading and its text, line by line.
    """
    width = max(map(len, about), default=0)
    lines = [f"{heading:{width}}  {text}" for heading, text in about.items()]
    for block in (_components(report), _kinds(report), list(_facts(report)), _verdict(report)):
        lines += ["", *block] if block else []
    return "\n".join(lines)


def to_json(report: Report, about: Mapping[str, str]) -> str:
    """The report with every answer, what was returned for it, and its time."""
    record: dict[str, Any] = {
        "about": dict(about),
        "problems": list(report.problems),
        "notes": list(report.notes),
        "components": [asdict(component) for component in report.components],
        "kinds": [asdict(kind) for kind in report.kinds],
        "score_is_the_weighted_sum": {"answers": report.readable, "agree": report.agree},
        "parse_errors": dict(report.parse_errors),
        "seconds": report.seconds
        and dict(zip(("median", "p99", "max"), report.seconds, strict=True)),
        "first_call_seconds": report.first_seconds,
        "sandboxes": list(report.sandboxes),
        "answers": [_answer(case) for case in report.cases],
    }
    return json.dumps(record, indent=1, ensure_ascii=False, default=str) + "\n"


def _answer(case: Case) -> dict[str, Any]:
    return {
        "row": case.answer.row,
        "kind": case.answer.kind,
        "group": case.answer.group,
        "answer": case.answer.text,
        "score": case.score,
        "returned": dict(case.outcome.info),
        "scored_again": None if case.again is None else dict(case.again.info),
        "seconds": case.outcome.seconds,
        "error": case.outcome.error,
    }


def _components(report: Report) -> list[str]:
    if not report.components:
        return []
    head = ("component", "weight", "declared", "observed", "mean", "constant", "not scored")
    return columns([head, *map(_component, report.components)])


def _component(component: ComponentSummary) -> tuple[str, ...]:
    constant = component.constant_groups
    return (
        component.name,
        f"{component.weight:g}",
        _range(*component.declared),
        _range(component.low, component.high),
        NOTHING if component.mean is None else f"{component.mean:.3f}",
        NOTHING if constant is None else f"{constant:.0%} of prompts",
        f"{component.unscored:.0%} of answers",
    )


def _kinds(report: Report) -> list[str]:
    rows = [
        (
            kind.kind,
            str(kind.count),
            *(f"{value:.3f}" for value in (kind.low, kind.mean, kind.high)),
            NOTHING if kind.unread is None else str(kind.unread),
        )
        for kind in report.kinds
    ]
    head = ("answer", "count", "score: lowest", "mean", "highest", "parse errors")
    return columns([head, *rows]) if rows else []


def _facts(report: Report) -> Iterator[str]:
    if report.components:
        terms = " + ".join(f"{each.weight:g}·{each.name}" for each in report.components)
        yield f"score = {terms} in {report.agree} of {report.readable} answers"
    if report.parse_errors:
        counts = ", ".join(f"{code}: {count}" for code, count in report.parse_errors.items())
        yield f"parse_error codes and their answers: {counts}"
    if report.seconds:
        median, p99, longest = map(seconds_text, report.seconds)
        yield (
            f"time for one answer: median {median}, p99 {p99}, longest {longest}; first call "
            f"{seconds_text(report.first_seconds)}; at most "
            f"{seconds_text(SHARE_OF_STEP * report.step_seconds)}, {SHARE_OF_STEP:.0%} of a step "
            f"of {seconds_text(report.step_seconds)}"
        )
    if report.sandboxes:
        yield f"programs ran in: {', '.join(report.sandboxes)}"
    for title, case in (("slowest", report.slowest), ("lowest score", report.worst)):
        if case is not None:
            score = NOTHING if case.score is None else f"{case.score:g}"
            yield (
                f"{title}: row {case.name}, {seconds_text(case.outcome.seconds or 0)}, "
                f"score {score}: {_excerpt(case.answer.text)}"
            )


def _verdict(report: Report) -> list[str]:
    lines = [f"note     {note}" for note in report.notes]
    lines += [f"PROBLEM  {problem}" for problem in report.problems]
    return lines or ["ok"]


def _range(low: float | None, high: float | None) -> str:
    if low is None and high is None:
        return NOTHING
    return f"{'any' if low is None else f'{low:g}'} to {'any' if high is None else f'{high:g}'}"


def _excerpt(text: str) -> str:
    shown = ascii(text) if not text.isprintable() else repr(text)
    return shown if len(shown) <= EXCERPT else f"{shown[:EXCERPT]}… ({len(text)} characters)"
