"""Give advice about a set of rewards, from the responses of a run.

Each piece of advice has its evidence, an interval, and an override to paste into the training
command. The interval comes from resampled groups. Where an interval leaves a question open, the
output names the question.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from gdpo_verl.advantage.conditions import each_condition
from gdpo_verl.lab.overrides import override
from gdpo_verl.lab.replay.figures import Figures
from gdpo_verl.lab.statistics import interval_of_draws as interval

# The largest number of pieces of advice.
MOST = 5
# Advice needs this many groups, and a component that varies in this many of them.
FEWEST_GROUPS = 30
FEWEST_VARYING = 10
# A condition is advised if responses that fail the outcome have more than this part of a
# component's positive terms.
PAID_TO_FAILURES = 0.25
# Two components count as the same reward if their correlation is above this number.
ALIKE = 0.95
UNTESTED = (
    "Runs that follow advice on conditions have been tested; advice on weights is computed from "
    "these responses and is not tested."
)


@dataclass(frozen=True)
class Advice:
    """One piece of advice. If `override` is empty, `because` names a question that is open."""

    override: str
    because: str


@dataclass
class Verdict:
    """The advice that follows from some figures, and a concluding text, which may be empty."""

    advice: list[Advice] = field(default_factory=list)
    conclusion: str = ""


def advise(found: Figures) -> Verdict:
    """Return at most `MOST` pieces of advice about the settings of the figures.

    Groups of one response are not counted.
    """
    if len(found.settings) > 1:
        return Verdict([], f"No advice can be given for several settings at once ({found.name}).")
    if found.several < FEWEST_GROUPS:
        return Verdict(
            [],
            f"No advice can be given: it needs {FEWEST_GROUPS} groups of several responses, found "
            f"{found.several}.",
        )
    lines = [*_conditions(found), *_repeats(found)]
    advice = [line for line in lines if line.override][:MOST]
    sentences = [UNTESTED] if advice else []
    still_open = "; ".join(line.because for line in lines if not line.override)
    if still_open:
        sentences.append(f"{found.several} groups do not decide {still_open}.")
    if sentences:
        return Verdict(advice, " ".join(sentences))
    outcome = found.outcome or "the outcome (none is known)"
    return Verdict(
        conclusion=f"No advice. {found.several} groups were examined for positive terms in "
        f"responses that fail {outcome}, and for components that repeat another one."
    )


def _carries(found: Figures, key: str) -> bool:
    """Return whether a component varies in enough groups for advice about it."""
    return found.varying[found.keys.index(key)] >= FEWEST_VARYING


def _conditions(found: Figures) -> Iterator[Advice]:
    """Advise a condition on a guard for each component that often rewards failures of this guard.

    A guard is the outcome, or a component of weight 0 that is always 0 or 1. There is no advice for
    a component that correlates with the guard, because this component leads to passing the guard.
    """
    conditions = found.setting.objective.config.conditions
    # Components that already have a condition, or to which a condition refers.
    taken = set(conditions) | {condition["on"] for _, condition in each_condition(conditions)}
    measured = [key for key in found.verdicts if found.weights[key] == 0]
    guards = [key for key in measured if _carries(found, key) and key != found.outcome]
    if found.outcome in found.passing:
        guards.insert(0, found.outcome)
    # Where a condition fails, the component becomes 0. Zero must not be better than the values that
    # the component has, so a component that can be negative gets no condition.
    lowest = dict(zip(found.keys, np.nanmin(found.rewards, axis=0), strict=True))
    others = [key for key in found.keys if found.weights[key] > 0 and lowest[key] >= 0]
    # The largest positive terms come first.
    paid = dict(zip(found.keys, found.sums["paid"][0], strict=True))
    others.sort(key=lambda key: -paid[key])
    for guard, key in itertools.product(guards, others):
        if key in guards or key in taken or guard in conditions:
            continue
        place = (..., found.keys.index(key), found.keys.index(guard))
        part, low, high = interval(found.misses[place])
        _, together, _ = interval(found.correlation[place])
        if not part > PAID_TO_FAILURES or together > 0:
            continue
        text = f"{part:.0%} [{low:.0%}, {high:.0%}]"
        if low <= PAID_TO_FAILURES or not _carries(found, key):
            yield Advice("", f"whether {key} rewards responses that fail {guard} ({text})")
            continue
        threshold = _short(found.passing[guard])
        if found.passed[guard] < FEWEST_VARYING:
            count = found.passed[guard]
            text = f"a response reaches {threshold} in only {count} groups"
            yield Advice("", f"whether {key} should depend on {guard}: {text}")
            continue
        taken.add(key)
        changed = {**conditions, key: {"on": guard, "at_least": threshold}}
        yield Advice(
            override("algorithm.gdpo.conditions", changed),
            f"{text} of the positive terms of {key} go to responses that fail {guard} (below "
            f"{threshold})",
        )


def _repeats(found: Figures) -> Iterator[Advice]:
    """Advise the weight 0 for a component that repeats another one.

    With the weight 0 the component remains available to conditions, gates and derived components.
    """
    config = found.setting.objective.config
    # A variant that is defined with equal weights allows no weight 0.
    if config.chosen_variant.weights == "equal":
        return
    carrying = []
    for place, key in enumerate(found.keys):
        is_weighted = found.weights[key] != 0 and key not in config.schedule
        if is_weighted and _carries(found, key):
            carrying.append(place)
    for first, second in itertools.combinations(carrying, 2):
        value, low, high = interval(found.correlation[:, first, second])
        if not value > ALIKE:
            continue
        name = f"{found.keys[second]} repeats {found.keys[first]}"
        text = f"{value:.3f} [{low:.3f}, {high:.3f}]"
        if low > ALIKE:
            yield Advice(
                _weight_0(found, found.keys[second]),
                f"{name}: the correlation within groups is {text}, so that one reward counts twice",
            )
        else:
            yield Advice("", f"whether {name} ({text})")


def _weight_0(found: Figures, key: str) -> str:
    """Return the override that sets one weight to 0, and leaves the other weights as they are."""
    weights = found.setting.objective.config.reward_weights
    changed = {**(weights or {}), key: 0}
    # The present weights may be a list, which Hydra does not merge with a mapping.
    return override("algorithm.gdpo_reward_weights", changed, replaces=weights is not None)


def _short(number: float) -> float:
    """Return a whole number as int, so that it is written 1 instead of 1.0."""
    return int(number) if number == int(number) else number
