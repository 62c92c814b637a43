"""Advice about a set of rewards: each with its evidence, its interval, and the override to paste.

An interval is of resampled groups. What it leaves open is not advised, and said to be open.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from gdpo_verl.lab.replay import figures
from gdpo_verl.lab.replay.figures import Array, Figures, Outcome

MOST = 5
# Fewer groups carry no advice.
FEWEST_GROUPS = 30
# A component's part of all influence, beside its part of the weights, may differ by this much.
TOLERANCE = 0.1
# A weight is changed by this factor at most.
LARGEST_CHANGE = 20.0
# The part of what a component pays that answers failing the outcome may get.
PAID_TO_FAILURES = 0.25
ALIKE = 0.95
# The deviation within groups, as a part of the range, below which decoupling magnifies noise.
SMALL_SPREAD = 0.05
LARGE_GAIN = 2.0


@dataclass(frozen=True)
class Advice:
    """One line of advice."""

    override: str
    because: str


@dataclass
class Verdict:
    """The advice from a set of figures, and what could not be decided.

    Attributes:
      open: what the groups are too few for, as ends of a sentence.
    """

    groups: int
    advice: list[Advice] = field(default_factory=list)
    open: list[str] = field(default_factory=list)

    @property
    def conclusion(self) -> str:
        """The sentence after the advice; '' where it needs none."""
        if self.open:
            return f"cannot be said from {self.groups} groups: {'; '.join(self.open)}"
        return "" if self.advice else "nothing would change"


def advise(found: Figures, outcome: Outcome | None) -> Verdict:
    """At most `MOST` lines of advice about the settings of the figures.

    Groups of one answer say nothing and are not counted.
    """
    several = int((found.sums["size"] > 1).sum()) if found.parts else 0
    verdict = Verdict(several)
    if several < FEWEST_GROUPS:
        verdict.open.append(f"advice needs {FEWEST_GROUPS} with several answers")
        return verdict
    checks: list[Callable[[Figures, Verdict], Iterator[Advice]]] = [
        lambda figures, verdict: _pays_failures(figures, verdict, outcome),
        _never_varies,
        _alike,
        _weights,
        _small_spread,
        _whitening_gain,
    ]
    for check in checks:
        verdict.advice += check(found, verdict)
    del verdict.advice[MOST:]
    return verdict


def weights_override(weights: Mapping[str, float]) -> str:
    """The override of all weights."""
    listed = ", ".join(f"{key}: {weight:g}" for key, weight in weights.items())
    return f"'algorithm.gdpo_reward_weights={{{listed}}}'"


def _weights_of(found: Figures) -> dict[str, float]:
    objective = found.setting.objective
    return dict(zip(objective.keys, objective.weights, strict=True))


def _without(found: Figures, keys: Sequence[str]) -> str:
    kept = ", ".join(name for name in found.keys if name not in keys)
    return f"'algorithm.gdpo_reward_keys=[{kept}]'"


def _varying(found: Figures) -> Array:
    return found.sums["varies"].sum(axis=0)


def _never_varies(found: Figures, verdict: Verdict) -> Iterator[Advice]:
    weights = _weights_of(found)
    counts = zip(found.keys, _varying(found), strict=True)
    still = [key for key, count in counts if count == 0 and weights[key] != 0]
    if not still or len(still) == len(found.keys):
        return
    most = 3 / verdict.groups  # the 95 % bound where none of n was seen
    names, verb = ", ".join(still), "vary"
    if len(still) == 1:
        verb = "varies"
    yield Advice(
        _without(found, still),
        f"{names} {verb} in none of {verdict.groups} groups (at most {most:.1%} of all, with "
        "95 %): nothing is learnt from that",
    )


def _alike(found: Figures, verdict: Verdict) -> Iterator[Advice]:
    values = found.of_all(figures.correlations, ["products"])
    low, high = _quietly(found, figures.correlations, ["products"])
    for k, other in itertools.combinations(range(len(found.keys)), 2):
        if not values[k, other] > ALIKE:
            continue
        first, second = found.keys[k], found.keys[other]
        interval = f"{values[k, other]:.3f} [{low[k, other]:.3f}, {high[k, other]:.3f}]"
        if low[k, other] > ALIKE:
            yield Advice(
                _without(found, [second]),
                f"{second} does as {first} does: correlation within groups {interval}; together "
                "they count twice",
            )
        else:
            verdict.open.append(f"whether {second} does as {first} does ({interval})")


def _pays_failures(found: Figures, verdict: Verdict, outcome: Outcome | None) -> Iterator[Advice]:
    """Advise a condition on the outcome, or on a component that is measured and paid nothing.

    A component that goes with the outcome is left alone: paid to a failing answer, it leads there.
    """
    objective = found.setting.objective
    conditions = objective.config.conditions
    weights = _weights_of(found)
    known = [] if outcome is None else [found.keys[outcome.column]]
    guards = known + [key for key in found.keys if weights[key] == 0 and key not in known]
    values = found.of_all(figures.misses, ["missed", "paid"])
    low, high = _quietly(found, figures.misses, ["missed", "paid"])
    together, _ = _quietly(found, figures.correlations, ["products"])
    least = found.low
    assert least is not None
    written = dict(conditions)
    passed = figures.least_passing(objective, outcome)
    # What pays failing answers most comes first.
    paid = found.sums["paid"].sum(axis=0)
    most_paid = sorted(found.keys, key=lambda key: -paid[found.keys.index(key)])
    for guard, key in itertools.product(guards, most_paid):
        k, other = found.keys.index(key), found.keys.index(guard)
        taken = key in written or guard in written or key in guards
        on_it = any(condition["on"] == key for condition in written.values())
        # A condition counts a failing answer as 0, which below 0 would be a reward.
        if taken or on_it or weights[key] <= 0 or float(least[k]) < 0:
            continue
        if not values[k, other] > PAID_TO_FAILURES or together[k, other] > 0:
            continue
        part = f"{values[k, other]:.0%} [{low[k, other]:.0%}, {high[k, other]:.0%}]"
        if low[k, other] <= PAID_TO_FAILURES:
            verdict.open.append(f"whether {key} pays answers that fail {guard} ({part})")
            continue
        threshold = passed[other]
        written[key] = {"on": guard, "at_least": threshold}
        override = f"{key}: {{on: {guard}, at_least: {threshold:g}}}"
        yield Advice(
            f"'algorithm.gdpo.conditions={{{override}}}'",
            f"{part} of what {key} pays goes to answers that fail {guard} (below {threshold:g})",
        )


def _weights(found: Figures, verdict: Verdict) -> Iterator[Advice]:
    """Advise the smallest change of weights after which influence agrees with the declared ones."""
    setting = found.setting
    declared = np.array(list(_weights_of(found).values()))
    # A variant's influence is no simple function of the weights, a schedule's weights change.
    simple = setting.name in ("gdpo", "grpo") and not setting.objective.config.schedule
    use = (declared != 0) & (_varying(found) > 0)
    if not simple or use.sum() < 2:
        return
    target = np.where(use, declared, 0.0)
    target = target / np.abs(target).sum()

    def part(sums: dict[str, Array]) -> Array:
        kept = np.where(use, sums["influence"], 0.0)
        return figures.divided(kept, np.abs(kept).sum(axis=1, keepdims=True))

    values = found.of_all(part, ["influence"])
    low, high = _quietly(found, part, ["influence"])
    off = np.abs(values - target) > TOLERANCE
    if not off.any():
        return
    evidence = ", ".join(
        f"{key} {value:.0%} [{bottom:.0%}, {top:.0%}] of {goal:.0%}"
        for key, value, bottom, top, goal, used in zip(
            found.keys, values, low, high, target, use, strict=True
        )
        if used
    )
    if not (((low > target + TOLERANCE) | (high < target - TOLERANCE)) & off).any():
        verdict.open.append(f"whether influence agrees with the weights ({evidence})")
        return
    weights = _smallest_change(found, declared, target, use)
    if weights is None:
        verdict.open.append(f"weights under which influence agrees ({evidence})")
        return
    # One that never varies may be left out by another advice.
    changed = {
        key: weight
        for key, weight, used in zip(found.keys, weights.tolist(), use, strict=True)
        if used or weight == 0
    }
    yield Advice(
        weights_override(changed),
        f"influence is not as the weights declare: {evidence}",
    )


def _smallest_change(found: Figures, declared: Array, target: Array, use: Array) -> Array | None:
    """The weights with the fewest changes, of those the smallest, whose influence is `target`."""
    places = np.flatnonzero(use).tolist()
    # With all of them changed only their ratios would be known.
    for count in range(1, len(places)):
        found_weights = []
        for chosen in itertools.combinations(places, count):
            weights = _solved(found, declared, target, list(chosen))
            if weights is not None:
                found_weights.append(weights)
        if found_weights:
            return min(found_weights, key=lambda each: _size_of_change(each, declared, use))
    return None


def _size_of_change(weights: Array, declared: Array, use: Array) -> float:
    return float(np.abs(np.log(weights[use] / declared[use])).sum())


def _solved(found: Figures, declared: Array, target: Array, chosen: list[int]) -> Array | None:
    """Weights with these changed, so that influence is `target`; None where none are."""
    weights = declared.copy()
    for _ in range(60):
        value = influence_of(found, weights)
        value = np.where(target != 0, value, 0.0)
        value = value / np.abs(value).sum()
        ratio = target[chosen] / value[chosen]
        if not np.all(np.isfinite(ratio)) or np.any(ratio <= 0):
            return None
        weights[chosen] *= ratio**0.7
    weights = np.array([float(f"{weight:.2g}") for weight in weights])
    change = np.abs(np.log(weights[chosen] / declared[chosen]))
    value = np.where(target != 0, influence_of(found, weights), 0.0)
    agrees = np.all(np.abs(value / np.abs(value).sum() - target) <= TOLERANCE / 4)
    return weights if agrees and np.all(change <= np.log(LARGEST_CHANGE)) else None


def influence_of(found: Figures, weights: Array) -> Array:
    """Each component's influence under other weights, but for one factor: shape (K,).

    Cov(A, z_k) is sum_l w_l z_l z_k for GDPO. GRPO has the deviations in place of z_l, over that
    of the group's sum.
    """
    products, std = found.sums["products"], found.sums["std"]
    if found.setting.estimator == "gdpo":
        influence: Array = products.sum(axis=0) @ weights
        return influence
    scaled = products * std[:, None, :]
    rows = found.sums["live"] - 1
    squares = np.einsum("gkl,k,gk,l->g", scaled, weights, std, weights)
    deviation = np.sqrt(np.maximum(figures.divided(squares, rows), 0)) + 1e-6
    if not found.setting.objective.config.scale:
        deviation = np.ones_like(deviation)
    per_group = figures.divided(scaled @ weights, deviation[:, None])
    return np.nansum(per_group, axis=0)


def _small_spread(found: Figures, verdict: Verdict) -> Iterator[Advice]:
    """Name components whose deviation within groups is a small part of their range."""
    setting = found.setting
    if setting.estimator != "gdpo" or not setting.objective.config.scale:
        return
    assert found.low is not None
    assert found.high is not None
    floor = float(found.of_all(_noise_floor, ["squares", "live"]))
    weights = _weights_of(found)
    moving = np.where(found.sums["varies"] > 0, found.sums["std"], 0.0)
    for k, key in enumerate(found.keys):
        bottom, top = setting.objective.ranges.get(key, (float(found.low[k]), float(found.high[k])))
        if weights[key] == 0 or top <= bottom or not _varying(found)[k]:
            continue
        found.sums["moving"] = moving[:, k] / (top - bottom)
        found.sums["moves"] = found.sums["varies"][:, k]
        value = float(found.of_all(_mean_spread, ["moving", "moves"]))
        if value >= SMALL_SPREAD:
            continue
        low, high = _quietly(found, _mean_spread, ["moving", "moves"])
        interval = f"{value:.1%} [{low:.1%}, {high:.1%}] of its range {bottom:g} to {top:g}"
        if high >= SMALL_SPREAD:
            verdict.open.append(f"whether {key} deviates little within groups ({interval})")
            continue
        less = float(f"{weights[key] * value / SMALL_SPREAD:.2g}")
        yield Advice(
            weights_override(weights | {key: less}),
            f"{key} deviates within groups by {interval}, and is scaled up to 1 like the others "
            f"(noise floor {floor:.2f}): a rounding of it would be learnt",
        )


def _mean_spread(sums: dict[str, Array]) -> Array:
    return figures.divided(sums["moving"], sums["moves"])


def _noise_floor(sums: dict[str, Array]) -> Array:
    return figures.divided(sums["squares"], sums["live"])


def _whitening_gain(found: Figures, verdict: Verdict) -> Iterator[Advice]:
    setting = found.setting
    over = setting.objective.config.whiten or setting.objective.config.chosen_variant.whiten
    if setting.estimator != "gdpo" or over == "none":
        return
    names = ["combined", "squares", "live"]
    value = float(found.of_all(figures.gain, names))
    if not value > LARGE_GAIN:
        return
    low, high = _quietly(found, figures.gain, names)
    interval = f"{value:.2f} [{low:.2f}, {high:.2f}]"
    if low <= LARGE_GAIN:
        verdict.open.append(f"whether whitening magnifies ({interval})")
        return
    still = 1 - float((found.sums["varies"].max(axis=1) > 0).mean())
    yield Advice(
        "algorithm.gdpo.whiten=none",
        f"whitening multiplies every advantage by {interval}: in {still:.0%} of the groups nothing "
        "varies, and the others are scaled up for them",
    )


def _quietly(
    found: Figures, statistic: Callable[[dict[str, Array]], Array], names: list[str]
) -> Array:
    """The interval; a component that no draw has is NaN without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        interval: Array = found.interval(statistic, names)
        return interval
