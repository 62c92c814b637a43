"""A reward's results on a set of answers: numbers, problems and notes, as text or as JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from gdpo_verl.check_reward import checks
from gdpo_verl.check_reward.answers import CheckedAnswer
from gdpo_verl.check_reward.checks import SHARE_OF_STEP, ScoredAnswer
from gdpo_verl.check_reward.worker import Scored
from gdpo_verl.config import GdpoConfig, Objective
from gdpo_verl.diagnostics import component_metrics
from gdpo_verl.plugin.batch import RewardBatch, RewardErrors
from gdpo_verl.plugin.reward import not_a_dict
from gdpo_verl.reward_dicts import read_components
from gdpo_verl.rewards.components import Component
from gdpo_verl.rundir.row_key import RowKey
from gdpo_verl.text import columns, seconds_text

NOTHING = "–"
EXCERPT = 70


@dataclass(frozen=True)
class ComponentSummary:
    """One component over all answers, in reward units.

    Attributes:
      declared: low and high, None where unbounded or not declared.
      low, mean, high: over the answers that it scored; None when there are none.
      constant_groups: the share of prompts with several answers in which it does not vary; None
        without such prompts.
      unscored: the share of answers without it.
    """

    name: str
    weight: float
    declared: tuple[float | None, float | None]
    low: float | None
    mean: float | None
    high: float | None
    constant_groups: float | None
    unscored: float


@dataclass(frozen=True)
class KindSummary:
    """The scores of the answers of one kind.

    Attributes:
      unread: how many have a `parse_error` other than 0; None when the reward returns none.
    """

    kind: str
    count: int
    low: float
    mean: float
    high: float
    unread: int | None


@dataclass(frozen=True)
class Report:
    """The result of a check.

    Attributes:
      answers: every answer that was tried, in order.
      problems: what would stop a training or distort what it learns.
      notes: what is worth a look.
      step_seconds: how long a training step is taken to be.
      about: what was checked, by headings.
    """

    answers: Sequence[ScoredAnswer]
    components: Sequence[ComponentSummary]
    kinds: Sequence[KindSummary]
    problems: Sequence[str]
    notes: Sequence[str]
    step_seconds: float
    about: Mapping[str, str] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        """Everything but the answers, as JSON has it.

        Times are without the first call, which holds late imports; None when no answer came back.
        """
        readable = [each for each in self.answers if each.weighted_sum is not None]
        codes = Counter(each.parse_error for each in readable if each.parse_error is not None)
        first = [each.result.seconds or 0.0 for each in self.answers if each.result.first]
        times = [each.result.seconds or 0.0 for each in self.timed()]
        percentiles = np.percentile(times, [50, 99, 100]).tolist() if times else None
        return {
            "about": dict(self.about),
            "problems": list(self.problems),
            "notes": list(self.notes),
            "components": [asdict(component) for component in self.components],
            "kinds": [asdict(kind) for kind in self.kinds],
            "score_is_the_weighted_sum": {
                "answers": len(readable),
                "agree": sum(not checks.not_the_sum(each) for each in readable),
            },
            "parse_errors": dict(sorted(codes.items())),
            "seconds": percentiles
            and dict(zip(("median", "p99", "max"), percentiles, strict=True)),
            "first_call_seconds": max(first, default=0.0),
            "sandboxes": sorted({name for each in self.answers for name in each.result.sandboxes}),
        }

    def timed(self) -> list[ScoredAnswer]:
        """The answers that came back, without the first where there are more."""
        finished = [each for each in self.answers if not each.result.error]
        return [each for each in finished if not each.result.first] or finished

    def to_text(self) -> str:
        """For a terminal."""
        width = max(map(len, self.about), default=0)
        lines = [f"{heading:{width}}  {text}" for heading, text in self.about.items()]
        verdict = [f"note     {note}" for note in self.notes]
        verdict += [f"PROBLEM  {problem}" for problem in self.problems]
        facts = list(_facts(self))
        for block in (_component_table(self), _kind_table(self), facts, verdict or ["ok"]):
            lines += ["", *block] if block else []
        return "\n".join(lines)

    def to_json(self) -> str:
        """With every answer, what was returned for it, and its time."""
        answers = [
            {
                "row": each.answer.row,
                "kind": each.answer.kind,
                "group": each.answer.group,
                "answer": each.answer.text,
                "score": each.score,
                "returned": dict(each.result.info),
                "scored_again": None if each.again is None else dict(each.again.info),
                "seconds": each.result.seconds,
                "error": each.result.error,
            }
            for each in self.answers
        ]
        record = self.record() | {"answers": answers}
        return json.dumps(record, indent=1, ensure_ascii=False, default=str) + "\n"


def measure(
    answers: Sequence[CheckedAnswer],
    scored: Scored,
    settings: GdpoConfig,
    step_seconds: float = checks.STEP_SECONDS,
) -> Report:
    """Summarise what the reward made of the answers, and say what is wrong.

    The answers are in the order of `scored.results`, which may end earlier.
    """
    tried = [
        ScoredAnswer(answer, result, scored.again.get(place))
        for place, (answer, result) in enumerate(zip(answers, scored.results, strict=False))
    ]
    finished = [place for place, each in enumerate(tried) if not each.result.error]
    dicts = [place for place in finished if not not_a_dict(tried[place].result.info, settings)]
    problems, notes, components, batch = list(scored.unnamed), [], [], None
    if dicts or not finished:
        # A key counts as returned where one answer has it.
        keys = list(dict.fromkeys(key for place in dicts for key in tried[place].result.info))
        try:
            objective = settings.resolve(scored.declared, keys or None)
            batch, unreadable = _read_components(tried, dicts, objective)
            problems += checks.first_and_count(unreadable)
        except ValueError as error:
            problems.append(str(error))
    if left := len(answers) - len(tried):
        notes.append(f"{left} answers were not scored: the first that hangs or crashes is the last")
    found = [checks.complaints(tried, settings, scored.declared, step_seconds)]
    if batch is not None:
        readable = [each for each in tried if each.weighted_sum is not None]
        found += [
            checks.no_variation(readable, batch),
            checks.truth_not_preferred(readable, batch),
            ([], checks.failing_pays(batch)),
        ]
        components = _summarise(batch, scored.declared)
    return Report(
        answers=tried,
        components=components,
        kinds=_kinds([tried[place] for place in dicts]),
        problems=problems + [problem for each, _ in found for problem in each],
        notes=notes + [note for _, each in found for note in each] + _constant(components),
        step_seconds=step_seconds,
    )


def _read_components(
    tried: list[ScoredAnswer], places: Sequence[int], objective: Objective
) -> tuple[RewardBatch | None, list[str]]:
    """Fill in what depends on the components; say why those of some answers cannot be read."""
    readable, errors = [], []
    for place in places:
        each = tried[place]
        try:
            read_components([each.result.info], objective, [each.answer.name])
        except ValueError as error:
            errors.append(str(error))
        else:
            readable += [place] if each.score is not None else []
    if not readable:
        return None, errors
    batch = RewardBatch(
        objective,
        [tried[place].result.info for place in readable],
        [tried[place].answer.group for place in readable],
        [str(RowKey("answer", number, 0)) for number in range(len(readable))],
    )
    try:
        batch.error_share()
    except RewardErrors as error:
        errors.append(str(error))
    sums = batch.score().tolist()
    for place, row, total, code in zip(
        readable, batch.raw.tolist(), sums, batch.parse_errors, strict=True
    ):
        values = dict(zip(objective.keys, row, strict=True))
        tried[place] = replace(tried[place], values=values, weighted_sum=total, parse_error=code)
    return batch, errors


def _summarise(batch: RewardBatch, declared: Sequence[Component]) -> list[ComponentSummary]:
    names, groups = batch.objective.keys, batch.group_ids

    def statistics(rows: Sequence[int]) -> dict[str, float]:
        found = component_metrics(batch.raw[rows], [groups[row] for row in rows], names)
        return {key: float(value) for key, value in found.items()}  # without their weights

    sizes = Counter(groups)
    metrics = statistics(range(len(groups)))
    grouped = statistics([row for row, group in enumerate(groups) if sizes[group] > 1])
    ranges = {component.name: (component.low, component.high) for component in declared}
    return [
        ComponentSummary(
            name=name,
            weight=weight,
            declared=ranges.get(name, (None, None)),
            low=metrics.get(f"rewards/{name}/min"),
            mean=metrics.get(f"rewards/{name}/mean"),
            high=metrics.get(f"rewards/{name}/max"),
            constant_groups=grouped.get(f"gdpo/{name}/constant_groups"),
            unscored=metrics[f"gdpo/{name}/unscored"],
        )
        for name, weight in zip(names, batch.objective.weights, strict=True)
    ]


def _kinds(dicts: Sequence[ScoredAnswer]) -> list[KindSummary]:
    scored = [each for each in dicts if each.score is not None]
    diagnosed = any(each.parse_error is not None for each in dicts)
    summaries = []
    for kind in dict.fromkeys(each.answer.kind for each in scored):
        members = [each for each in scored if each.answer.kind == kind]
        scores = [each.score or 0.0 for each in members]
        unread = sum(bool(each.parse_error) for each in members) if diagnosed else None
        mean = sum(scores) / len(scores)
        summaries.append(KindSummary(kind, len(scores), min(scores), mean, max(scores), unread))
    return summaries


def _constant(components: Sequence[ComponentSummary]) -> list[str]:
    notes, nothing = [], "if that is so in the training it teaches nothing"
    for each in components:
        if each.low is None:
            notes.append(f"{each.name!r} is not scored in any answer")
        elif each.low == each.high:
            notes.append(f"{each.name!r} is {each.low:g} for every answer: {nothing}")
        elif each.constant_groups == 1.0:
            notes.append(
                f"{each.name!r} never differs between two answers to one prompt: {nothing}"
            )
    return notes


def _component_table(report: Report) -> list[str]:
    head = ("component", "weight", "declared", "observed", "mean", "constant", "not scored")
    rows = [
        (
            each.name,
            f"{each.weight:g}",
            _range(*each.declared),
            _range(each.low, each.high),
            NOTHING if each.mean is None else f"{each.mean:.3f}",
            NOTHING if each.constant_groups is None else f"{each.constant_groups:.0%} of prompts",
            f"{each.unscored:.0%} of answers",
        )
        for each in report.components
    ]
    return columns([head, *rows]) if rows else []


def _kind_table(report: Report) -> list[str]:
    head = ("answer", "count", "score: lowest", "mean", "highest", "parse errors")
    rows = [
        (
            each.kind,
            str(each.count),
            *(f"{score:.3f}" for score in (each.low, each.mean, each.high)),
            NOTHING if each.unread is None else str(each.unread),
        )
        for each in report.kinds
    ]
    return columns([head, *rows]) if rows else []


def _facts(report: Report) -> Iterator[str]:
    record = report.record()
    if report.components:
        terms = " + ".join(f"{each.weight:g}·{each.name}" for each in report.components)
        sums = record["score_is_the_weighted_sum"]
        yield f"score = {terms} in {sums['agree']} of {sums['answers']} answers"
    if codes := record["parse_errors"]:
        counts = ", ".join(f"{code}: {count}" for code, count in codes.items())
        yield f"parse_error codes and their answers: {counts}"
    if times := record["seconds"]:
        median, p99, longest = map(seconds_text, times.values())
        yield (
            f"time for one answer: median {median}, p99 {p99}, longest {longest}; first call "
            f"{seconds_text(record['first_call_seconds'])}; at most "
            f"{seconds_text(SHARE_OF_STEP * report.step_seconds)}, {SHARE_OF_STEP:.0%} of a step "
            f"of {seconds_text(report.step_seconds)}"
        )
    if record["sandboxes"]:
        yield f"programs ran in: {', '.join(record['sandboxes'])}"
    slowest = max(report.timed(), key=lambda each: each.result.seconds or 0.0, default=None)
    with_score = [each for each in report.answers if each.score is not None]
    lowest = min(with_score, key=lambda each: each.score or 0.0, default=None)
    for title, found in (("slowest", slowest), ("lowest score", lowest)):
        if found is not None:
            text, seconds = found.answer.text, seconds_text(found.result.seconds or 0)
            shown = repr(text) if text.isprintable() else ascii(text)
            if len(shown) > EXCERPT:
                shown = f"{shown[:EXCERPT]}… ({len(text)} characters)"
            score = NOTHING if found.score is None else f"{found.score:g}"
            yield f"{title}: row {found.answer.name}, {seconds}, score {score}: {shown}"


def _range(low: float | None, high: float | None) -> str:
    if low is None and high is None:
        return NOTHING
    return f"{'any' if low is None else f'{low:g}'} to {'any' if high is None else f'{high:g}'}"
