"""Faults of a reward: a table for single answers, and checks of all of them together.

Each returns problems and notes. A fault of all answers is only a note where the made-up ones may
not have the form that the reward asks for.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gdpo_verl.check_reward.answers import EMPTY, GROUND_TRUTH, RANDOM, WRONG, CheckedAnswer
from gdpo_verl.check_reward.worker import RewardResult
from gdpo_verl.config import GdpoConfig
from gdpo_verl.diagnostics import groups_that_vary
from gdpo_verl.plugin.batch import RewardBatch
from gdpo_verl.plugin.reward import MANAGER_NAME, SCORE_TOLERANCE, not_a_dict, score_problem
from gdpo_verl.rewards.components import Component
from gdpo_verl.rewards.parse_error import ParseError
from gdpo_verl.text import seconds_text

STEP_SECONDS = 60.0
SHARE_OF_STEP = 0.05
"""The largest share of a step that one answer may take."""

_REFUSED = int(ParseError.GROUND_TRUTH)
_TOLERANCE = 1e-9
_REAL_ANSWERS = "give real ones with --answers, or sample them with --model"


@dataclass(frozen=True)
class ScoredAnswer:
    """An answer and what the reward made of it.

    Attributes:
      again: the result when it was scored once more.
      values: the components as returned, where all can be read; NaN where not scored.
      weighted_sum: sum_k w_k r_k after the conditions; None where there are no `values`.
      parse_error: the diagnostic of that name; None without one.
    """

    answer: CheckedAnswer
    result: RewardResult
    again: RewardResult | None = None
    values: Mapping[str, float] = field(default_factory=dict)
    weighted_sum: float | None = None
    parse_error: int | None = None

    @property
    def score(self) -> float | None:
        """The score as a finite number; None where it is something else, see `score_problem`."""
        score = self.result.score
        return None if score_problem(score) else float(score)

    @property
    def least_seconds(self) -> float:
        """The shorter of its times, first calls of a process left out; 0 without one."""
        results = [each for each in (self.result, self.again) if each and not each.first]
        return min((each.seconds for each in results if each.seconds is not None), default=0.0)


_Check = tuple[Sequence[ScoredAnswer], Callable[[ScoredAnswer], Any], str]


def complaints(
    tried: Sequence[ScoredAnswer],
    settings: GdpoConfig,
    declared: Sequence[Component] = (),
    step_seconds: float = math.inf,
    *,
    numbers_allowed: bool = False,
) -> tuple[list[str], list[str]]:
    """Problems and notes about single answers: for each the first one, and how many more.

    Args:
      settings: the training's keys, weights and conditions.
      declared: the components that the reward declares.
      step_seconds: how long a training step takes.
      numbers_allowed: the reward may return a number in place of a dict.
    """
    finished = [each for each in tried if not each.result.error]
    dicts = [
        each for each in finished if numbers_allowed or not not_a_dict(each.result.info, settings)
    ]
    first_keys = sorted(dicts[0].result.info) if dicts else []
    longest = SHARE_OF_STEP * step_seconds
    refused: dict[Any, ScoredAnswer] = {}  # one a row, whose fault it is
    for each in dicts:
        if each.result.info.get("parse_error") == _REFUSED:
            refused.setdefault(each.answer.row, each)
    # Among which answers, what is wrong with one, and how that is said.
    problems: list[_Check] = [
        (tried, lambda each: each.result.error, "it {}"),
        (
            [] if numbers_allowed else finished,
            lambda each: not_a_dict(each.result.info, settings),
            "{}",
        ),
        (dicts, lambda each: score_problem(each.result.score), "{}"),
        (
            list(refused.values()),
            lambda each: _REFUSED,
            "parse_error {}: the reward cannot read the row's ground truth and gives every answer "
            "the minimum. Correct it, or leave the row out of the data",
        ),
        (
            _read_truths(dicts),
            lambda each: each.parse_error,
            "parse_error {} with the row's own ground truth as the answer: correct the ground "
            "truth, or leave the row out of the data",
        ),
        (dicts, lambda each: _out_of_range(each, declared), "{}"),
        (
            dicts,
            not_the_sum,
            "its score is {}. A GRPO control would optimise something else than GDPO decouples; "
            f"use reward.reward_manager.name={MANAGER_NAME}, or return the sum as 'score'",
        ),
        (
            finished,
            _not_repeated,
            "scored twice, in another order: {}. The reward of an answer must not depend on "
            "chance, on the time, or on the answers before it",
        ),
        (
            [each for each in finished if each.least_seconds > longest],
            lambda each: (
                f"{seconds_text(each.least_seconds)}, more than {SHARE_OF_STEP:.0%} of a step of "
                f"{seconds_text(step_seconds)}"
            ),
            "it took {}, whose rewards wait for the slowest answer. Make it faster, or say with "
            "--step-seconds how long your steps are",
        ),
    ]
    notes: list[_Check] = [
        (
            finished,
            lambda each: each.result.not_round_tripped,
            "the tokenizer gives back another text, which is what the reward saw",
        ),
        (
            [each for each in dicts if sorted(each.result.info) != first_keys],
            lambda each: f"{sorted(each.result.info)} are not those of the first, {first_keys}",
            "the keys {}; where verl makes columns of them it takes the first answer's",
        ),
    ]
    return _sentences(problems), _sentences(notes)


def _sentences(table: Sequence[_Check]) -> list[str]:
    said: list[str] = []
    for answers, find, sentence in table:
        found = [(each.answer.name, wrong) for each in answers if (wrong := find(each))]
        said += first_and_count([f"row {name}: {sentence.format(wrong)}" for name, wrong in found])
    return said


def first_and_count(sentences: Sequence[str]) -> list[str]:
    """The first sentence, and how many more there are; [] without any."""
    more = f" (and {len(sentences) - 1} more)" if len(sentences) > 1 else ""
    return [sentences[0] + more] if sentences else []


def _read_truths(dicts: Sequence[ScoredAnswer]) -> list[ScoredAnswer]:
    """The ground truths given as answers, if at least half of them can be read."""
    truths = [each for each in dicts if each.answer.kind == GROUND_TRUTH]
    known = [each for each in truths if each.parse_error not in (None, _REFUSED)]
    read = sum(each.parse_error == 0 for each in known)
    return known if 2 * read >= len(known) else []


def _out_of_range(each: ScoredAnswer, declared: Sequence[Component]) -> str:
    found = []
    for component in declared:
        low = -math.inf if component.low is None else component.low
        high = math.inf if component.high is None else component.high
        value = each.values.get(component.name, math.nan)
        if value < low or value > high:
            found.append(f"{component.name!r} is {value:g}, declared as {low:g} to {high:g}")
    return "; ".join(found)


def not_the_sum(each: ScoredAnswer) -> str:
    """The score and the weighted sum of the components, which GDPO decouples; '' if they agree."""
    score, total = each.score, each.weighted_sum
    if score is None or total is None:
        return ""
    if abs(total - score) <= SCORE_TOLERANCE * max(abs(score), 1.0):
        return ""
    return f"{score:.6g}, but the weighted sum of the components {[*each.values]} is {total:.6g}"


def _not_repeated(each: ScoredAnswer) -> str:
    first, again = each.result, each.again
    if again is None:
        return ""
    if again.error:
        return f"the second time it {again.error}"
    pairs = {"score": (first.score, again.score)}
    pairs |= {name: (first.info.get(name), again.info.get(name)) for name in each.values}
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


def no_variation(
    readable: Sequence[ScoredAnswer], batch: RewardBatch
) -> tuple[list[str], list[str]]:
    """Complain of rewards that do not vary within any group."""
    several = sum(size > 1 for size in Counter(batch.group_ids).values())
    if not several or groups_that_vary(batch.rewards, batch.group_ids):
        return [], []
    text = f"no component differs between two answers to one prompt, in any of {several} prompts"
    if truth_may_not_be_an_answer(readable):
        return [], [
            f"{text}. The answers were made up, and none may have the form that the reward asks "
            f"for: {_REAL_ANSWERS}"
        ]
    text += ": every advantage would be 0 and nothing would be learnt"
    if any(each.answer.made_up for each in readable):
        text += f". If no made-up answer has the form that the reward asks for, {_REAL_ANSWERS}"
    return [text], []


def truth_not_preferred(
    readable: Sequence[ScoredAnswer], batch: RewardBatch
) -> tuple[list[str], list[str]]:
    """Complain of rewards that do not prefer the ground truth to wrong answers.

    In one of its forms, bare, phrased or boxed, the ground truth must score more than every wrong
    answer in at least half of the rows. It is a note where the truth is known not to be an answer,
    and where one component alone orders the answers and not even a ground truth gets another.
    """
    margins = {form: _margins(readable, form, [WRONG[form], RANDOM, EMPTY]) for form in WRONG}
    margins = {form: found for form, found in margins.items() if found}
    if len({each.score for each in readable}) < 2 or not margins:
        return [], []
    if any(2 * sum(margin > 0 for margin in found) >= len(found) for found in margins.values()):
        return [], []
    form = min(margins, key=lambda form: sum(margins[form]))
    rows, worse = len(margins[form]), sum(margin < 0 for margin in margins[form])
    text = (
        f"the ground truth ({form}) scores less than a wrong answer in {worse} of {rows} rows, "
        "and in none of its forms more than every wrong answer in half of them"
    )
    if truth_may_not_be_an_answer(readable):
        return [], [f"{text}: to be expected only where a ground truth is not written as an answer"]
    # A length knows no truth from another; what puts another truth first in every row does.
    to_another = (_margins(readable, form, [wrong]) for form, wrong in WRONG.items())
    inverted = any(found and max(found) < 0 for found in to_another)
    if not inverted and (lone := _ordering_alone(batch)):
        return [], [f"{text}, but {lone}: {_REAL_ANSWERS}"]
    fault = "is inverted" if 2 * worse > rows else "does not order answers"
    return [f"{text}: the reward {fault}"], []


def failing_pays(batch: RewardBatch) -> list[str]:
    """Note conditions on a reward that can be negative: where they fail, it counts as 0."""
    objective, notes = batch.objective, []
    for name, condition in objective.config.conditions.items():
        least = float(batch.raw[:, objective.keys.index(name)].nan_to_num(math.inf).min())
        least = min(least, objective.ranges.get(name, (0.0, 0.0))[0])
        if least < 0:
            notes.append(
                f"algorithm.gdpo.conditions.{name}: {name!r} goes down to {least:g} and counts as "
                f"0 where {condition['on']!r} fails, so that failing pays more than a low "
                f"{name!r}. Return it from 0 upwards"
            )
    return notes


def _margins(readable: Sequence[ScoredAnswer], form: str, wrong: Sequence[str]) -> list[float]:
    """The margin of each row's ground truth in this form over its best wrong answer."""
    scores: dict[Any, dict[str, float]] = defaultdict(dict)
    for each in readable:
        if each.answer.made_up and each.score is not None:
            scores[each.answer.row][each.answer.kind] = each.score
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


def truth_may_not_be_an_answer(readable: Sequence[ScoredAnswer]) -> bool:
    """Return whether made-up answers are known not to have the form that the reward asks for.

    The reward's `parse_error` says that it reads no ground truth, or most of them are JSON
    objects, as the tests of a program are.
    """
    if not all(each.answer.made_up for each in readable):
        return False
    truths = [each for each in readable if each.answer.kind in WRONG]
    bare = [each.answer.text for each in truths if each.answer.kind == GROUND_TRUTH]
    unread = all(each.parse_error for each in truths)
    return unread or sum(map(_is_object, bare)) > len(bare) / 2


def _is_object(text: str) -> bool:
    try:
        return text.lstrip().startswith("{") and isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
