"""Advice about a set of rewards: each with its evidence, its interval, and the override to paste.

Each interval comes from resampled groups. Where it leaves a question open, the output says so.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from gdpo_verl.advantage.checks import EPSILON
from gdpo_verl.advantage.conditions import each_condition
from gdpo_verl.lab.overrides import override
from gdpo_verl.lab.replay.figures import Array, Figures, divided
from gdpo_verl.lab.statistics import interval_of_draws as interval

MOST = 5
# Advice needs this many groups, and a component that varies in this many of them.
FEWEST_GROUPS = 30
FEWEST_VARYING = 10
# A component's share of the influence may differ from its share of the weights by this much.
TOLERANCE = 0.1
# A weight is changed by this factor at most.
LARGEST_CHANGE = 20.0
# The part of a component's positive terms that responses which fail the outcome may have.
PAID_TO_FAILURES = 0.25
ALIKE = 0.95
LARGE_GAIN = 2.0
UNTESTED = (
    "Runs that follow advice on conditions have been tested; the other advice is computed from "
    "these responses and is not tested."
)


@dataclass(frozen=True)
class Advice:
    """One line of advice; without an override it says which question is open."""

    override: str
    because: str


@dataclass
class Verdict:
    """The advice from a set of figures, and a concluding sentence, which may be empty."""

    advice: list[Advice] = field(default_factory=list)
    conclusion: str = ""


def advise(found: Figures) -> Verdict:
    """Return at most `MOST` lines of advice about the settings of the figures.

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
    rules = (_pays_failures, _spare, _weights, _whitening_gain)
    lines = [line for rule in rules for line in rule(found)]
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
        f"responses that fail {outcome}, for components that never vary or repeat another one, "
        "for influence that is not shared as declared, and for whitening that magnifies advantages."
    )


def _may_differ(found: Figures) -> bool:
    """Return whether the variant is defined with weights that differ."""
    return found.setting.objective.config.chosen_variant.weights != "equal"


def _carries(found: Figures, key: str) -> bool:
    """Return whether a component varies in groups enough for advice about it."""
    return found.varying[found.keys.index(key)] >= FEWEST_VARYING


def _pays_failures(found: Figures) -> Iterator[Advice]:
    """Advise a condition on the outcome, or on a component of weight 0 that is always 0 or 1.

    A component that correlates with the outcome gets no advice: it leads to the outcome.
    """
    conditions = found.setting.objective.config.conditions
    taken = set(conditions) | {condition["on"] for _, condition in each_condition(conditions)}
    measured = [key for key in found.verdicts if found.weights[key] == 0]
    guards = [key for key in measured if _carries(found, key) and key != found.outcome]
    if found.outcome in found.passing:
        guards.insert(0, found.outcome)
    # Where a condition fails, the component is 0, which must not be better than its other values.
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


def _spare(found: Figures) -> Iterator[Advice]:
    """Advise the weight 0 for components that never vary, and for those that repeat another one.

    Such a component is still returned: a condition, a gate or a derived component may name it.
    """
    schedule = found.setting.objective.config.schedule
    weighted = [key for key in found.keys if found.weights[key] != 0 and key not in schedule]
    pairs = zip(found.keys, found.varying, strict=True)
    constant = [key for key, count in pairs if count == 0 and key in weighted]
    if not _may_differ(found):
        return
    if constant and len(constant) < len(weighted):
        most = 3 / found.several  # the 95 % bound where none of n was seen
        yield Advice(
            _weights_override(found, dict.fromkeys(constant, 0.0)),
            f"constant in all {found.several} groups (with 95 % confidence in all but {most:.1%} "
            f"of such groups), so that nothing is learned from it: {', '.join(constant)}",
        )
    carrying = [k for k, key in enumerate(found.keys) if key in weighted and _carries(found, key)]
    for first, second in itertools.combinations(carrying, 2):
        value, low, high = interval(found.correlation[:, first, second])
        if not value > ALIKE:
            continue
        name = f"{found.keys[second]} repeats {found.keys[first]}"
        text = f"{value:.3f} [{low:.3f}, {high:.3f}]"
        if low > ALIKE:
            yield Advice(
                _weights_override(found, {found.keys[second]: 0.0}),
                f"{name}: the correlation within groups is {text}, so that one reward counts twice",
            )
        else:
            yield Advice("", f"whether {name} ({text})")


def _weights(found: Figures) -> Iterator[Advice]:
    """Advise weights after which influence is shared as the declared weights are.

    The aim is the share that each weight declares, not an equal one.
    """
    config = found.setting.objective.config
    declared = np.array(list(found.weights.values()))
    # Where conditions leave a component constant, it has no influence.
    use = (declared != 0) & (found.sums["std"][0] > 0)
    # A variant's influence is no simple function of the weights, a schedule's weights change.
    if found.setting.name not in ("gdpo", "grpo") or config.schedule or use.sum() < 2:
        return
    target = _parts(np.where(use, declared, 0.0))
    values = _parts(np.where(use, found.sums["influence"], 0.0))
    evidence = []
    certain = False
    for k in np.flatnonzero(use):
        value, low, high = interval(values[:, k])
        share = f"{value:.0%} [{low:.0%}, {high:.0%}]"
        evidence.append(f"{found.keys[k]} has {share}, declared are {target[k]:.0%}")
        certain |= low > target[k] + TOLERANCE or high < target[k] - TOLERANCE
    text = "; ".join(evidence)
    if np.abs(values[0] - target).max() <= TOLERANCE:
        return
    if not certain:
        yield Advice("", f"whether influence is shared as the weights declare ({text})")
        return
    weights = _agreeing(found, declared, target)
    if weights is None:
        yield Advice("", f"weights under which influence is shared as declared ({text})")
        return
    pairs = zip(found.keys, weights.tolist(), strict=True)
    changed = {key: weight for key, weight in pairs if weight != found.weights[key]}
    yield Advice(
        _weights_override(found, changed),
        f"influence is not shared as the weights declare: {text}. These weights aim at the "
        f"declared shares, not at equal ones; up to {TOLERANCE * 100:.0f} points of difference "
        "count as none. The intervals are of the shares, not of the weights",
    )


def _parts(values: Array) -> Array:
    return divided(values, np.abs(values).sum(axis=-1, keepdims=True))


def _weights_override(found: Figures, weights: Mapping[str, float]) -> str:
    """The override that changes some weights, and leaves the others as they are."""
    given = found.setting.objective.config.reward_weights
    changed = {**(given or {}), **{key: _short(weight) for key, weight in weights.items()}}
    # What is given may be a list.
    return override("algorithm.gdpo_reward_weights", changed, replaces=given is not None)


def _short(number: float) -> float:
    """A number as a person writes it: 1 for 1.0."""
    return int(number) if number == int(number) else number


def _agreeing(found: Figures, declared: Array, target: Array) -> Array | None:
    """Weights under which influence is `target`, to two digits; None where none were found.

    The one that is furthest away is changed, again and again, so that few are changed; the nearest
    one stays, for only ratios matter.
    """
    used = target != 0
    weights = declared.copy()
    stays = None
    for _ in range(200):
        parts = _parts(np.where(used, influence_of(found, weights), 0.0))
        distance = np.where(used, np.abs(parts - target), np.nan)
        if stays is None:
            stays = int(np.nanargmin(distance))
        if np.nanmax(distance) <= TOLERANCE / 10:
            change = np.abs(np.log(weights[used] / declared[used]))
            rounded = np.array([float(f"{weight:.2g}") for weight in weights])
            return rounded if change.max() <= np.log(LARGEST_CHANGE) else None
        distance[stays] = 0
        furthest = int(np.nanargmax(distance))
        ratio = target[furthest] / parts[furthest]
        if not 0 < ratio < np.inf:
            return None
        weights[furthest] *= ratio**0.7
    return None


def influence_of(found: Figures, weights: Array) -> Array:
    """Each component's influence under other weights, but for one factor: shape (K,).

    Cov(A, z_k) is sum_l w_l z_l z_k for GDPO. GRPO has the deviations in place of z_l, over that
    of the group's sum.
    """
    products = found.by_group["products"]
    if found.setting.estimator == "gdpo":
        influence: Array = products.sum(axis=0) @ weights
        return influence
    size = found.table.size.numpy()[:, None]
    deviations = found.by_group["std"] / size * weights
    per_group = np.einsum("gkl,gl->gk", products, deviations)
    if found.setting.objective.config.estimator.scale:
        squares = np.einsum("gk,gk->g", per_group, deviations)
        variance = divided(squares, found.by_group["live"] - 1)
        std = np.sqrt(np.maximum(variance, 0))[:, None]
        per_group = divided(per_group, std + EPSILON)
    return np.nansum(per_group, axis=0)


def _whitening_gain(found: Figures) -> Iterator[Advice]:
    """Advise against whitening where it magnifies the few groups that vary."""
    if found.setting.estimator != "gdpo" or found.setting.whiten == "none":
        return
    # One over the deviation that whitening over sequences divides by.
    live = found.sums["live"]
    mean = divided(found.sums["combined"], live)
    variance = divided(found.sums["squares"] - mean * found.sums["combined"], live - 1)
    value, low, high = interval(divided(np.array(1.0), np.sqrt(np.maximum(variance, 0))))
    text = f"{value:.2f} [{low:.2f}, {high:.2f}]"
    if low > LARGE_GAIN:
        dead = 1 - float(found.table.varies.any(dim=1).double().mean())
        yield Advice(
            override("algorithm.gdpo.whiten", "none"),
            f"whitening multiplies every advantage by {text}, because {dead:.0%} of the groups are "
            "dead",
        )
    elif value > LARGE_GAIN:
        yield Advice("", f"whether whitening magnifies advantages ({text})")
