"""A reward's results on a set of answers, in numbers and complaints: pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gdpo_verl.check_reward import broken
from gdpo_verl.check_reward import cases as complaints
from gdpo_verl.check_reward.answers import Answer
from gdpo_verl.check_reward.cases import Case, summed_up
from gdpo_verl.check_reward.worker import Scored
from gdpo_verl.config import GdpoConfig, Objective
from gdpo_verl.diagnostics import component_metrics
from gdpo_verl.plugin.batch import RewardBatch, read_components
from gdpo_verl.plugin.reward import not_a_dict
from gdpo_verl.rewards.components import Component
from gdpo_verl.rundir.row_key import RowKey


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
    """All that was found.

    Attributes:
      cases: every answer that was tried, in order.
      readable: how many returned components and a score; `agree` of them have the weighted sum
        of the components as their score.
      seconds: median, 99th percentile and maximum for one answer, first calls left out; None
        when no answer came back.
      first_seconds: the longest first call of a process, which holds late imports.
      step_seconds: how long a training step is taken to be.
      sandboxes: what protected the programs that the reward ran.
      parse_errors: how many answers have each code, 0 included; empty without the diagnostic.
      problems: what would stop a training or distort what it learns.
      notes: what is worth a look.
    """

    cases: Sequence[Case]
    components: Sequence[ComponentSummary]
    kinds: Sequence[KindSummary]
    readable: int
    agree: int
    seconds: tuple[float, float, float] | None
    first_seconds: float
    step_seconds: float
    sandboxes: Sequence[str]
    parse_errors: Mapping[int, int]
    slowest: Case | None
    worst: Case | None
    problems: Sequence[str]
    notes: Sequence[str]


def measure(
    answers: Sequence[Answer],
    scored: Scored,
    settings: GdpoConfig,
    step_seconds: float = broken.STEP_SECONDS,
) -> Report:
    """Summarise what the reward made of the answers, and say what is wrong.

    Args:
      answers: in the order of `scored.outcomes`, which may end earlier.
      scored: what the reward declares and returned.
      settings: the training's keys, weights and conditions.
      step_seconds: how long a training step takes, in seconds.
    """
    cases = [
        Case(answer, outcome, scored.again.get(place))
        for place, (answer, outcome) in enumerate(zip(answers, scored.outcomes, strict=False))
    ]
    came_back = [case for case in cases if case.outcome.error is None]
    numbers = [case for case in came_back if not_a_dict(case.outcome.info, settings)]
    returned = [case for case in came_back if not not_a_dict(case.outcome.info, settings)]
    problems = [*scored.unnamed, *complaints.lost(cases, len(answers))]
    problems += summed_up(numbers, lambda case: not_a_dict(case.outcome.info, settings))
    problems += complaints.without_score(returned) + complaints.refused_ground_truths(returned)
    notes = complaints.altered(came_back) + complaints.differing_keys(returned)

    objective, unresolved = _resolve(returned, scored.declared, settings)
    readable, unreadable = _with_components(returned, objective)
    problems += [*unresolved, *unreadable] if returned or not numbers else []
    components: list[ComponentSummary] = []
    codes: dict[int, int] = {}
    agree = 0
    if objective is not None and readable:
        batch = _batch(readable, objective)
        components = _summarise(readable, batch, scored.declared)
        codes = {
            id(case): code
            for case, code in zip(readable, batch.parse_errors, strict=True)
            if code is not None
        }
        agree = len(readable) - len(complaints.other_scores(readable, batch))
        problems += complaints.out_of_range(readable, batch, scored.declared)
        problems += complaints.score_is_no_sum(readable, batch)
        constant, unsure = broken.nothing_to_learn(readable, batch, codes)
        unordered, unsure_of_order = broken.out_of_order(readable, batch, codes)
        problems += constant + unordered + complaints.unread_ground_truths(readable, batch)
        notes += unsure + unsure_of_order + _constant(components)
    problems += broken.not_repeated(came_back, objective.keys if objective else ())
    problems += broken.too_slow(came_back, step_seconds)
    timed = [case for case in came_back if not case.outcome.first] or came_back
    return Report(
        cases=cases,
        components=components,
        kinds=_kinds(returned, codes),
        readable=len(readable),
        agree=agree,
        seconds=_times(timed),
        first_seconds=max((_seconds(case) for case in cases if case.outcome.first), default=0.0),
        step_seconds=step_seconds,
        sandboxes=sorted({name for case in cases for name in case.outcome.sandboxes}),
        parse_errors=dict(sorted(Counter(codes.values()).items())),
        slowest=max(timed, key=_seconds, default=None),
        worst=min((case for case in returned if case.score is not None), key=_score, default=None),
        problems=problems,
        notes=notes,
    )


def _resolve(
    returned: Sequence[Case], declared: Sequence[Component], settings: GdpoConfig
) -> tuple[Objective | None, list[str]]:
    """Resolve the objective; a key counts as returned where one answer has it."""
    keys = list(dict.fromkeys(key for case in returned for key in case.outcome.info))
    try:
        return settings.resolve(declared, keys or None), []
    except ValueError as error:
        return None, [str(error)]


def _with_components(
    returned: Sequence[Case], objective: Objective | None
) -> tuple[list[Case], list[str]]:
    """The cases with a score whose components can be read, and why the others cannot be."""
    readable, errors = [], []
    for case in returned if objective is not None else ():
        assert objective is not None
        try:
            read_components([case.outcome.info], objective, [case.name])
        except ValueError as error:
            errors.append(str(error))
        else:
            readable += [case] if case.score is not None else []
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return readable, [errors[0] + more] if errors else []


def _batch(readable: Sequence[Case], objective: Objective) -> RewardBatch:
    return RewardBatch(
        objective,
        [case.outcome.info for case in readable],
        [case.answer.group for case in readable],
        [str(RowKey("answer", number, 0)) for number in range(len(readable))],
    )


def _summarise(
    readable: Sequence[Case], batch: RewardBatch, declared: Sequence[Component]
) -> list[ComponentSummary]:
    names = batch.objective.keys
    metrics = component_metrics(batch.raw, batch.group_ids, names)
    sizes = Counter(batch.group_ids)
    several = [row for row, group in enumerate(batch.group_ids) if sizes[group] > 1]
    grouped = component_metrics(
        batch.raw[several], [batch.group_ids[row] for row in several], names
    )
    ranges = {component.name: (component.low, component.high) for component in declared}
    return [
        ComponentSummary(
            name=name,
            weight=weight,
            declared=ranges.get(name, (None, None)),
            low=_plain(metrics.get(f"rewards/{name}/min")),
            mean=_plain(metrics.get(f"rewards/{name}/mean")),
            high=_plain(metrics.get(f"rewards/{name}/max")),
            constant_groups=_plain(grouped.get(f"gdpo/{name}/constant_groups")),
            unscored=float(metrics[f"gdpo/{name}/unscored"]),
        )
        for name, weight in zip(names, batch.objective.weights, strict=True)
    ]


def _plain(statistic: float | None) -> float | None:
    return None if statistic is None else float(statistic)


def _kinds(returned: Sequence[Case], codes: Mapping[int, int]) -> list[KindSummary]:
    kinds: dict[str, list[Case]] = {}
    for case in returned:
        if case.score is not None:
            kinds.setdefault(case.answer.kind, []).append(case)
    return [
        KindSummary(
            kind=kind,
            count=len(members),
            low=min(map(_score, members)),
            mean=sum(map(_score, members)) / len(members),
            high=max(map(_score, members)),
            unread=sum(codes.get(id(case), 0) != 0 for case in members) if codes else None,
        )
        for kind, members in kinds.items()
    ]


def _constant(components: Sequence[ComponentSummary]) -> list[str]:
    notes = []
    for component in components:
        if component.low is None:
            notes.append(f"{component.name!r} is not scored in any answer")
        elif component.low == component.high:
            notes.append(
                f"{component.name!r} is {component.low:g} for every answer: if that is so in the "
                "training it teaches nothing"
            )
        elif component.constant_groups == 1.0:
            notes.append(
                f"{component.name!r} never differs between two answers to one prompt: if that is "
                "so in the training it teaches nothing"
            )
    return notes


def _times(timed: Sequence[Case]) -> tuple[float, float, float] | None:
    if not timed:
        return None
    seconds = list(map(_seconds, timed))
    return float(np.median(seconds)), float(np.percentile(seconds, 99)), max(seconds)


def _seconds(case: Case) -> float:
    return case.outcome.seconds or 0.0


def _score(case: Case) -> float:
    return case.score or 0.0
