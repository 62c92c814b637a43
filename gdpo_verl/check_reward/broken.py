"""Rewards that are broken as a whole, as several answers show together."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from gdpo_verl.check_reward.answers import (
    BOXED,
    EMPTY,
    GROUND_TRUTH,
    OTHER,
    OTHER_BOXED,
    OTHER_PHRASED,
    PHRASED,
    RANDOM,
)
from gdpo_verl.check_reward.cases import Case, summed_up
from gdpo_verl.diagnostics import groups_with_any_vary
from gdpo_verl.plugin.batch import RewardBatch
from gdpo_verl.text import seconds_text

STEP_SECONDS = 60.0
SHARE_OF_STEP = 0.05
"""The largest share of a step that one answer may take."""

_TOLERANCE = 1e-9
_REAL_ANSWERS = "give real ones with --answers, or sample them with --model"
# A truth is compared with wrong answers of its own form, and with two that have none.
_WRONG = {GROUND_TRUTH: OTHER, PHRASED: OTHER_PHRASED, BOXED: OTHER_BOXED}


def not_repeated(cases: Sequence[Case], components: Sequence[str]) -> list[str]:
    """Answers that got another reward when they were scored again, in another order."""
    found = [(case, _changes(case, components)) for case in cases]
    changes = {id(case): change for case, change in found if change}
    return summed_up(
        (case for case, change in found if change),
        lambda case: (
            f"scored twice, in another order: {changes[id(case)]}. The reward of an answer must "
            "not depend on chance, on the time, or on the answers before it"
        ),
    )


def _changes(case: Case, components: Sequence[str]) -> str:
    first, again = case.outcome, case.again
    if again is None:
        return ""
    if again.error:
        return f"the second time it {again.error}"
    pairs = {"score": (first.score, again.score)}
    pairs |= {name: (first.info.get(name), again.info.get(name)) for name in components}
    return ", ".join(
        f"{name!r} {one!r} and then {other!r}"
        for name, (one, other) in pairs.items()
        if not _alike(one, other)
    )


def _alike(one: Any, other: Any) -> bool:
    try:
        one, other = float(one), float(other)
    except (TypeError, ValueError, OverflowError):
        return bool(one == other)
    return math.isclose(one, other, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE) or (
        math.isnan(one) and math.isnan(other)
    )


def nothing_to_learn(
    readable: Sequence[Case], batch: RewardBatch, codes: Mapping[int, int]
) -> tuple[list[str], list[str]]:
    """Rewards that do not vary within any group: as problems, or as notes where `may_not_fit`.

    Args:
      codes: `parse_error` of the cases, by id.
    """
    sizes = Counter(batch.group_ids)
    several = [group for group, size in sizes.items() if size > 1]
    if not several or groups_with_any_vary(batch.rewards, batch.group_ids):
        return [], []
    text = (
        f"no component differs between two answers to one prompt, in any of {len(several)} prompts"
    )
    if may_not_fit(readable, codes):
        return [], [
            f"{text}. The answers were made up, and none may have the form that the reward asks "
            f"for: {_REAL_ANSWERS}"
        ]
    text += ": every advantage would be 0 and nothing would be learnt"
    if any(case.answer.made_up for case in readable):
        text += f". If no made-up answer has the form that the reward asks for, {_REAL_ANSWERS}"
    return [text], []


def out_of_order(
    readable: Sequence[Case], batch: RewardBatch, codes: Mapping[int, int]
) -> tuple[list[str], list[str]]:
    """Rewards that do not prefer the ground truth to wrong answers: as problems, or as notes.

    In one of its forms, bare, phrased or boxed, the ground truth must score more than every wrong
    answer in at least half of the rows. It is a note where the truth is known not to be an
    answer: a JSON object, as the tests of a program, or unread by the reward's own words. So it is
    where one component alone orders the answers, and not even a ground truth gets another.

    Args:
      codes: `parse_error` of the cases, by id.
    """
    compared = {form: _compared(readable, form) for form in _WRONG}
    compared = {form: differences for form, differences in compared.items() if differences}
    if len({case.score for case in readable}) < 2 or not compared:
        return [], []
    for differences in compared.values():
        if 2 * sum(difference > 0 for difference in differences) >= len(differences):
            return [], []
    form = min(compared, key=lambda form: sum(compared[form]))
    worse = sum(difference < 0 for difference in compared[form])
    text = (
        f"the ground truth ({form}) scores less than a wrong answer in {worse} of "
        f"{len(compared[form])} rows, and in none of its forms more than every wrong answer in "
        "half of them"
    )
    if may_not_fit(readable, codes):
        return [], [f"{text}: to be expected only where a ground truth is not written as an answer"]
    # A length knows no truth from another; what orders all of them against the truth does.
    alike = not any(
        differences and max(differences) < 0
        for differences in (_compared(readable, form, [wrong]) for form, wrong in _WRONG.items())
    )
    if alike and (lone := _ordering_alone(batch)):
        return [], [f"{text}, but {lone}: {_REAL_ANSWERS}"]
    fault = "is inverted" if 2 * worse > len(compared[form]) else "does not order answers"
    return [f"{text}: the reward {fault}"], []


def _compared(readable: Sequence[Case], form: str, wrong: Sequence[str] = ()) -> list[float]:
    """The margin of each row's ground truth in this form over its best wrong answer."""
    scores: dict[Any, dict[str, float]] = defaultdict(dict)
    for case in readable:
        if case.answer.made_up and case.score is not None:
            scores[case.answer.row][case.answer.kind] = case.score
    wrong = wrong or (_WRONG[form], RANDOM, EMPTY)
    return [
        row[form] - max(row[kind] for kind in wrong if kind in row)
        for row in scores.values()
        if form in row and any(kind in row for kind in wrong)
    ]


def _ordering_alone(batch: RewardBatch) -> str:
    """Name the one component that varies, where others stay at their lowest; '' elsewhere."""
    low = {key: limits[0] for key, limits in batch.objective.ranges.items()}
    scores = dict(zip(batch.objective.keys, batch.rewards.nan_to_num(math.inf).T, strict=True))
    varying = [key for key, column in scores.items() if column.min() < column.max()]
    lowest = [key for key, column in scores.items() if column.max() <= low.get(key, 0.0)]
    if len(varying) != 1 or not lowest:
        return ""
    return f"by {varying[0]!r} alone: {lowest} are at their lowest for every answer"


def may_not_fit(cases: Sequence[Case], codes: Mapping[int, int]) -> bool:
    """Return whether made-up answers are known not to have the form that the reward asks for.

    Args:
      codes: `parse_error` of the cases, by id.
    """
    if not all(case.answer.made_up for case in cases):
        return False
    truths = [case for case in cases if case.answer.kind in _WRONG]
    unread = all(codes.get(id(case), 0) for case in truths)
    bare = [case.answer.text for case in truths if case.answer.kind == GROUND_TRUTH]
    return unread or sum(map(_is_object, bare)) > len(bare) / 2


def _is_object(text: str) -> bool:
    try:
        return text.lstrip().startswith("{") and isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def too_slow(cases: Sequence[Case], step_seconds: float) -> list[str]:
    """Answers that take more than `SHARE_OF_STEP` of a step's time, both times."""
    most = SHARE_OF_STEP * step_seconds
    times = {id(case): case.least_seconds for case in cases}
    slow = [case for case in cases if (times[id(case)] or 0) > most]
    return summed_up(
        sorted(slow, key=lambda case: -(times[id(case)] or 0)),
        lambda case: (
            f"it took {seconds_text(times[id(case)] or 0)}, more than {SHARE_OF_STEP:.0%} of a "
            f"step of {seconds_text(step_seconds)}, whose rewards wait for the slowest answer. "
            "Make it faster, or say with --step-seconds how long your steps are"
        ),
    )
