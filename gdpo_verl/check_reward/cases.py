"""An answer with what the reward made of it, and the complaints that cases give rise to."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from gdpo_verl.check_reward.answers import GROUND_TRUTH, Answer
from gdpo_verl.check_reward.worker import Outcome
from gdpo_verl.plugin.batch import RewardBatch
from gdpo_verl.plugin.reward import MANAGER_NAME, SCORE_TOLERANCE, score_problem
from gdpo_verl.rewards.components import Component
from gdpo_verl.rewards.parse_error import ParseError

_REFUSED = int(ParseError.GROUND_TRUTH)


@dataclass(frozen=True)
class Case:
    """One answer and its outcome, and that of scoring it again."""

    answer: Answer
    outcome: Outcome
    again: Outcome | None = None

    @property
    def name(self) -> str:
        """For messages."""
        return f"{self.answer.row} ({self.answer.kind})"

    @property
    def score(self) -> float | None:
        """The score as a finite number; None where it is something else, see `score_problem`."""
        score = self.outcome.score
        return None if score_problem(score) else float(score)

    @property
    def least_seconds(self) -> float | None:
        """The shorter of its times, first calls of a process left out; None without one."""
        outcomes = [each for each in (self.outcome, self.again) if each and not each.first]
        return min((each.seconds for each in outcomes if each.seconds is not None), default=None)


def lost(cases: Sequence[Case], expected: int) -> list[str]:
    """Answers on which the reward raised, hung or crashed, and those that were left out."""
    problems = summed_up(
        (case for case in cases if case.outcome.error), lambda case: f"it {case.outcome.error}"
    )
    if len(cases) < expected:
        problems.append(
            f"{expected - len(cases)} answers were left out, after too many that did not come back"
        )
    return problems


def without_score(returned: Sequence[Case]) -> list[str]:
    """Answers whose score is no number that verl can train on."""
    return summed_up(
        (case for case in returned if score_problem(case.outcome.score)),
        lambda case: score_problem(case.outcome.score),
    )


def other_scores(readable: Sequence[Case], batch: RewardBatch) -> list[Case]:
    """The cases whose score is not sum_k w_k r_k after the conditions."""
    sums = batch.score().tolist()
    return [
        case
        for case, expected in zip(readable, sums, strict=True)
        if case.score is not None
        and abs(expected - case.score) > SCORE_TOLERANCE * max(abs(case.score), 1.0)
    ]


def score_is_no_sum(readable: Sequence[Case], batch: RewardBatch) -> list[str]:
    """Answers whose score is not the weighted sum that GDPO decouples."""
    sums = dict(zip(map(id, readable), batch.score().tolist(), strict=True))
    return summed_up(
        other_scores(readable, batch),
        lambda case: (
            f"its score is {case.score:.6g}, but the weighted sum of the components "
            f"{list(batch.objective.keys)} is {sums[id(case)]:.6g}. A GRPO control would optimise "
            f"something else than GDPO decouples; use reward.reward_manager.name={MANAGER_NAME}, "
            "or return the sum as 'score'"
        ),
    )


def out_of_range(
    readable: Sequence[Case], batch: RewardBatch, declared: Sequence[Component]
) -> list[str]:
    """Answers with a component outside its declared range, by component."""
    problems = []
    for component in declared:
        if component.name in batch.objective.keys:
            column = batch.raw[:, batch.objective.keys.index(component.name)]
            problems += _outside(component, readable, column.tolist())
    return problems


def _outside(component: Component, readable: Sequence[Case], values: Sequence[float]) -> list[str]:
    low = -math.inf if component.low is None else component.low
    high = math.inf if component.high is None else component.high
    value_of = dict(zip(map(id, readable), values, strict=True))
    return summed_up(
        (case for case in readable if value_of[id(case)] < low or value_of[id(case)] > high),
        lambda case: (
            f"{component.name!r} is {value_of[id(case)]:g}, declared as {low:g} to {high:g}"
        ),
    )


def refused_ground_truths(returned: Sequence[Case]) -> list[str]:
    """Rows whose ground truth the reward says that it cannot read, whatever the answer."""
    rows: dict[Any, Case] = {}
    for case in returned:
        code = case.outcome.info.get("parse_error")
        if isinstance(code, (int, float)) and code == _REFUSED:
            rows.setdefault(case.answer.row, case)
    return summed_up(
        rows.values(),
        lambda case: (
            f"parse_error {_REFUSED}: the reward cannot read the row's ground truth and gives "
            "every answer the minimum. Correct it, or leave the row out of the data"
        ),
    )


def unread_ground_truths(readable: Sequence[Case], batch: RewardBatch) -> list[str]:
    """Rows whose ground truth, given as the answer, cannot be read although most others can."""
    truths = [
        (case, code)
        for case, code in zip(readable, batch.parse_errors, strict=True)
        if case.answer.kind == GROUND_TRUTH and code not in (None, _REFUSED)
    ]
    codes = {id(case): code for case, code in truths if code}
    if not codes or len(codes) > len(truths) / 2:
        return []  # in this task a ground truth is not written as an answer is
    return summed_up(
        (case for case, _ in truths if id(case) in codes),
        lambda case: (
            f"parse_error {codes[id(case)]} with the row's own ground truth as the answer: correct "
            "the ground truth, or leave the row out of the data"
        ),
    )


def altered(cases: Sequence[Case]) -> list[str]:
    """Answers that the reward did not see as they are."""
    return summed_up(
        (case for case in cases if case.outcome.altered),
        lambda case: "the tokenizer gives back another text, which is what the reward saw",
    )


def differing_keys(returned: Sequence[Case]) -> list[str]:
    """Answers for which the reward returned other keys than for the first one."""
    if not returned:
        return []
    first = set(returned[0].outcome.info)
    return summed_up(
        (case for case in returned if set(case.outcome.info) != first),
        lambda case: (
            f"the keys {sorted(case.outcome.info)} are not those of {returned[0].name}, "
            f"{sorted(first)}; where verl makes columns of them it takes the first answer's"
        ),
    )


def summed_up(cases: Iterable[Case], complaint: Callable[[Case], str]) -> list[str]:
    """The complaint about the first case, and how many more there are; [] without any."""
    listed = list(cases)
    if not listed:
        return []
    more = f" (and {len(listed) - 1} more)" if len(listed) > 1 else ""
    return [f"row {listed[0].name}: {complaint(listed[0])}{more}"]
