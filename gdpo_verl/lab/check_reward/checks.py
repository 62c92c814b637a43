"""Find faults of a reward function, from single responses and from all responses together."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gdpo_verl.advantage.conditions import each_condition
from gdpo_verl.config.components import Component
from gdpo_verl.config.settings import penalty_with_condition
from gdpo_verl.lab.check_reward.answers import EMPTY, GROUND_TRUTH, RANDOM, WRONG, CheckedAnswer
from gdpo_verl.lab.check_reward.worker import RewardResult
from gdpo_verl.lab.text import duration
from gdpo_verl.plugin.checks.reward import SCORE_TOLERANCE, score_problem
from gdpo_verl.plugin.checks.reward_function import MANAGER_NAME
from gdpo_verl.plugin.step.batch import RewardBatch
from gdpo_verl.reward_dicts import TURNS_OF_ANSWER, is_list, listed_turns, unnested
from gdpo_verl.rewards.parse_error import ParseError

SLOW_SECONDS = 3.0
"""The scoring of one response should not take longer than this, in seconds."""

PROBLEM = "problems"
NOTE = "notes"
Finding = tuple[str, str]
"""`PROBLEM` or `NOTE`, and a sentence."""

# The largest number of criteria that a note names.
_NAMED = 5
_REAL_ANSWERS = (
    "If no made-up response has the layout that the reward asks for, give real ones with "
    "`gdpo-verl check-reward --answers`, or sample them with its option --model"
)


@dataclass
class ScoredAnswer:
    """A response with the result of the reward function.

    Attributes:
      answer: the response.
      result: the result of the first scoring.
      again: the result of the second scoring; None if there was none.
      no_dict: a complaint if the reward function returned a number instead of a dict of components.
      values: the returned components, NaN if not scored; empty if one of them cannot be read.
      weighted_sum: sum_k w_k r_k after conditions; None without `values`.
      parse_error: the diagnostic `parse_error` that the reward returned; None without one.
    """

    answer: CheckedAnswer
    result: RewardResult
    again: RewardResult | None = None
    no_dict: str = ""
    values: Mapping[str, float] = field(default_factory=dict)
    weighted_sum: float | None = None
    parse_error: int | None = None

    @property
    def score(self) -> float | None:
        """The score as a finite number; None if it is something else, see `score_problem`."""
        score = self.result.score
        return None if score_problem(score) else float(score)

    @property
    def seconds(self) -> float:
        """The shorter of both scoring times, because the very first call may import modules."""
        results = (self.result, self.again)
        times = [result.seconds for result in results if result and result.seconds]
        return min(times, default=0.0)


def complaints(
    tried: Sequence[ScoredAnswer],
    declared: Sequence[Component] = (),
) -> Iterator[Finding]:
    """Find faults in single responses.

    For each kind of fault, the first response is described and the others are counted.

    Args:
      tried: the responses that were scored.
      declared: the components that the reward function declares.
    """
    finished = [response for response in tried if not response.result.error]
    # A result that is only a number has no components to check.
    dicts = [response for response in finished if not response.no_dict]
    keys = sorted(dicts[0].result.info) if dicts else []
    table: list[tuple[str, Sequence[ScoredAnswer], Callable[[ScoredAnswer], str | None]]] = [
        (PROBLEM, tried, lambda response: response.result.error and f"it {response.result.error}"),
        (PROBLEM, finished, lambda response: response.no_dict),
        (PROBLEM, dicts, lambda response: score_problem(response.result.score)),
        (PROBLEM, dicts, _unreadable_truth),
        (PROBLEM, dicts, lambda response: _out_of_range(response, declared)),
        (PROBLEM, dicts, lambda response: _not_a_number_a_turn(response, declared)),
        (PROBLEM, dicts, not_the_sum),
        (PROBLEM, finished, _not_repeated),
        (NOTE, finished, _slow),
        (NOTE, finished, _altered),
        (NOTE, dicts, lambda response: _other_keys(response, keys)),
    ]
    for kind, answers, complaint in table:
        sentences = []
        for response in answers:
            text = complaint(response)
            if text:
                sentences.append(f"row {response.answer.name}: {text}")
        yield from first_and_count(kind, sentences)


def _unreadable_truth(response: ScoredAnswer) -> str:
    if response.result.info.get("parse_error") != ParseError.GROUND_TRUTH:
        return ""
    return (
        f"parse_error {ParseError.GROUND_TRUTH:d}: the reward cannot read the row's ground truth "
        "and gives every response the minimum. Correct it, or leave the row out of the data"
    )


def _slow(response: ScoredAnswer) -> str:
    if response.seconds <= SLOW_SECONDS:
        return ""
    return f"it took {duration(response.seconds)}. In a run each step waits for the slowest reward"


def _altered(response: ScoredAnswer) -> str:
    if not response.result.not_round_tripped:
        return ""
    return "the tokenizer gives back another text, which is what the reward saw"


def _other_keys(response: ScoredAnswer, keys: Sequence[str]) -> str:
    returned = sorted(response.result.info)
    if returned == keys:
        return ""
    return (
        f"the keys {returned} are not those of the first response, {keys}. Where verl makes "
        "columns of the keys, it takes those of the first response"
    )


def first_and_count(kind: str, sentences: Sequence[str]) -> Iterator[Finding]:
    """Yield the first sentence with the number of further ones; nothing if there are none."""
    if sentences:
        more = f" (and {len(sentences) - 1} more)" if len(sentences) > 1 else ""
        yield kind, sentences[0] + more


def _out_of_range(response: ScoredAnswer, declared: Sequence[Component]) -> str:
    faults = []
    for component in declared:
        low = -math.inf if component.low is None else component.low
        high = math.inf if component.high is None else component.high
        value = response.values.get(component.name, math.nan)
        if value < low or value > high:
            faults.append(f"{component.name!r} is {value:g}, declared as {low:g} to {high:g}")
    return "; ".join(faults)


def _not_a_number_a_turn(response: ScoredAnswer, declared: Sequence[Component]) -> str:
    """Complain about a per-turn list whose length is not the number of the response's turns."""
    if not response.answer.made_up:  # the number of turns is known only for made-up responses
        return ""
    turns = response.answer.turns
    info = unnested(response.result.info)
    for component in declared:
        if not component.by_turn:
            continue
        value = listed_turns(info, component.name)
        if is_list(value) and len(value) != turns:
            return (
                f"{component.name!r} holds {len(value)} numbers, and the model's turns in this "
                f"response are {turns}. {TURNS_OF_ANSWER}"
            )
    return ""


def not_the_sum(response: ScoredAnswer) -> str:
    """Complain about a score that is not the weighted sum of the components.

    GDPO decouples the weighted sum, and a GRPO baseline optimises the score. The result is "" if
    both agree.
    """
    score = response.score
    total = response.weighted_sum
    if score is None or total is None:
        return ""
    # The tolerance is absolute for scores below 1, because sums near 0 differ by rounding.
    if abs(total - score) <= SCORE_TOLERANCE * max(abs(score), 1.0):
        return ""
    return (
        f"its score is {score:.6g}, but the weighted sum of the components {[*response.values]} is "
        f"{total:.6g}. A GRPO baseline would optimise something else than GDPO decouples. Use "
        f"reward.reward_manager.name={MANAGER_NAME}, or return the sum as 'score'"
    )


def _not_repeated(response: ScoredAnswer) -> str:
    first = response.result
    again = response.again
    if again is None:
        return ""
    changed = f"the second time it {again.error}"
    if not again.error:
        one = unnested(first.info)
        other = unnested(again.info)
        pairs = {"score": (first.score, again.score)}
        pairs |= {name: (one.get(name), other.get(name)) for name in response.values}
        changed = ", ".join(
            f"{name!r} {before!r} and then {after!r}"
            for name, (before, after) in pairs.items()
            if not _alike(before, after)
        )
    return changed and (
        f"scored twice, in another order: {changed}. The reward of a response must not depend on "
        "chance, on the time, or on the responses before it"
    )


def _alike(one: Any, other: Any) -> bool:
    try:
        # Threads may add numbers in another order, which changes the rounding.
        return bool(np.isclose(float(one), float(other), rtol=1e-9, atol=1e-9, equal_nan=True))
    except (TypeError, ValueError, OverflowError):
        return bool(one == other)


def no_variation(readable: Sequence[ScoredAnswer], batch: RewardBatch) -> Iterator[Finding]:
    """Complain about rewards of which none varies in any group.

    It is only a note if made-up responses may lack the layout that the reward asks for.
    """
    several = sum(size > 1 for size in Counter(batch.group_ids).values())
    if not several or batch.decomposition.spread.varies.any():
        return
    text = f"every component is constant in each of {several} groups"
    if _truth_may_not_be_an_answer(readable):
        yield NOTE, f"{text}. {_REAL_ANSWERS}"
        return
    text += ": every advantage would be 0 and nothing would be learned"
    yield PROBLEM, f"{text}. {_REAL_ANSWERS}" if readable[0].answer.made_up else text


def truth_not_preferred(readable: Sequence[ScoredAnswer]) -> Iterator[Finding]:
    """Note a reward function that does not prefer the ground truth to wrong responses.

    The ground truth should score more than every wrong response in at least half of the rows, in at
    least one of its layouts (bare, in answer tags, in a box). The reward is inverted if, in one
    layout, another row's ground truth scores more in every row. This is a problem, not only a note.
    """
    if len({response.score for response in readable}) < 2:
        return
    compared = False
    inverted = False
    for layout, wrong in WRONG.items():
        margins = _margins(readable, layout, [wrong, RANDOM, EMPTY])
        above = sum(margin > 0 for margin in margins)
        if margins and 2 * above >= len(margins):
            return
        compared = compared or bool(margins)
        to_another = _margins(readable, layout, [wrong])
        inverted = inverted or max(to_another, default=0.0) < 0
    text = (
        "in no layout does the ground truth score more than every wrong response in half of the "
        f"rows. {_REAL_ANSWERS}"
    )
    if inverted:
        yield PROBLEM, f"the reward is inverted: another row's ground truth scores more; {text}"
    elif compared:
        yield NOTE, text


def _truth_may_not_be_an_answer(readable: Sequence[ScoredAnswer]) -> bool:
    """Return whether the ground truths are probably no responses that the reward could accept.

    This is the case if the reward reports a `parse_error` for each of them, or if most of them look
    like JSON objects, such as the tests of a program.
    """
    if not readable[0].answer.made_up:
        return False
    truths = [response for response in readable if response.answer.kind in WRONG]
    bare = [response.answer.text for response in truths if response.answer.kind == GROUND_TRUTH]
    objects = sum(truth.lstrip().startswith("{") for truth in bare)
    # A reward without parse_error (None) does not say what it can read.
    return all(response.parse_error for response in truths) or 2 * objects > len(bare)


def _margins(readable: Sequence[ScoredAnswer], layout: str, wrong: Sequence[str]) -> list[float]:
    """Return, for each row, the score of the ground truth minus the best score of `wrong` kinds."""
    scores: dict[Any, dict[str, Any]] = defaultdict(dict)
    for response in readable:
        scores[response.answer.row][response.answer.kind] = response.score
    margins = []
    for row in scores.values():
        wrong_scores = [row[kind] for kind in wrong if kind in row]
        if layout in row and wrong_scores:
            margins.append(row[layout] - max(wrong_scores))
    return margins


def criteria_that_teach_nothing(batch: RewardBatch) -> Iterator[Finding]:
    """Note the criteria of rubrics that every response meets, or that no response meets."""
    for key, graded in batch.graded.items():
        values: dict[str, list[float]] = defaultdict(list)
        for criteria in graded:
            for name, (value, _) in (criteria or {}).items():
                if not math.isnan(value):
                    values[name].append(value)
        several = {name: grades for name, grades in values.items() if len(grades) > 1}
        always = [name for name, grades in several.items() if min(grades) > 0]
        never = [name for name, grades in several.items() if max(grades) <= 0]
        for names, which in ((always, "every"), (never, "no")):
            if names:
                yield (
                    NOTE,
                    f"{key!r}: {which} response meets {len(names)} of {len(values)} criteria, "
                    f"which would teach nothing: {', '.join(names[:_NAMED])}. {_REAL_ANSWERS}",
                )


def failing_pays(batch: RewardBatch) -> Iterator[Finding]:
    """Complain about conditions on a reward that can be negative.

    Where the condition fails, the reward counts as 0, which is then better than a negative value.
    It is only a note if the reward can also be above 0.
    """
    objective = batch.rows.objective
    for name, condition in each_condition(objective.config.conditions):
        key = f"algorithm.gdpo.conditions.{name}"
        observed = batch.raw[:, objective.keys.index(name)].nan_to_num(0.0)
        # Made-up responses seldom reach both ends of the range. A declared range takes precedence.
        declared = objective.ranges.get(name)
        low, high = declared or (float(observed.min()), float(observed.max()))
        if low < 0 and high <= 0:
            remedy = "" if declared else f" If {name!r} can be above 0, declare its range."
            yield PROBLEM, penalty_with_condition(key, condition["on"]) + remedy
        elif low < 0:
            yield (
                NOTE,
                f"{key}: {name!r} can be {low:g}, and it counts as 0 where {condition['on']!r} "
                f"fails. A response that fails then gets more than one with a low {name!r}. "
                f"Return {name!r} from 0 upwards",
            )
