"""Alerts about rewards that teach little, for the console and the report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from gdpo_verl.names import CONSTANT_GROUPS, MEAN, PHANTOM_GROUPS, SATURATION

# An alert needs an average over this many logged steps. Shorter runs raise no alert.
MANY_STEPS = 20
# The share of groups in which a component is constant, and the share of its declared range that
# the mean of a component has reached.
CONSTANT_SHARE = 0.8
SATURATED = 0.95
STUCK = 0.05
# The share of phantom groups: the outcome is constant and another reward varies.
PHANTOM_SHARE = 0.3
THRESHOLDS = (
    f"constant in at least {CONSTANT_SHARE:.0%} of the groups; saturated from {SATURATED:.0%} "
    f"and stuck up to {STUCK:.0%} of the declared range; phantom if the outcome is constant, and "
    f"another reward varies, in at least {PHANTOM_SHARE:.0%} of the groups"
)

Kind = Literal["constant", "saturated", "stuck", "phantom"]
_WORDS: dict[Kind, str] = {
    "constant": "is constant in {:.0%} of the groups",
    "saturated": "is saturated: it has reached {:.0%} of its range",
    "stuck": "is stuck: it has reached {:.0%} of its range",
    "phantom": "is constant in {:.0%} of the groups, in which other rewards are trained",
}
_ADVICE: dict[Kind, str] = {
    "constant": "It teaches nothing in a group in which it is constant. Sample more responses for "
    "each prompt, or use prompts that are neither always nor never solved.",
    "saturated": "There is little left to learn from it. Use harder prompts, or put a condition on "
    "it. With a negative weight it means the opposite: the reward is out of control.",
    "stuck": "Hardly any response earns it. Use easier prompts, or grade it in finer steps. With a "
    "negative weight it means the opposite: the reward is learned.",
    "phantom": "In these groups the other rewards teach something that does not help to solve the "
    "task: a policy that always fails learns to fail briefly. Put a condition on the other "
    "rewards, set algorithm.gdpo.gate={on: <the outcome>}, or use prompts of another difficulty.",
}


@dataclass(frozen=True)
class Alert:
    """A stretch of steps over which a component taught little.

    Attributes:
      component: the name of the component; "the outcome" for the kind "phantom".
      kind: the rule that raised the alert.
      first, last: the first and the last logged step of the stretch.
      value: the mean, over the stretch, of the metric to which `kind` refers.
      mean: the mean of the component over the stretch; None if it was not logged.
      ongoing: True if `last` is the last logged step of the run.
    """

    component: str
    kind: Kind
    first: int
    last: int
    value: float
    mean: float | None
    ongoing: bool

    def __str__(self) -> str:
        mean = "" if self.mean is None else f" (mean {self.mean:.3g})"
        when = f"since step {self.first}" if self.ongoing else f"steps {self.first} to {self.last}"
        return f"{self.component} {_WORDS[self.kind].format(self.value)}{mean}, {when}"

    @property
    def advice(self) -> str:
        """The meaning of the alert and a remedy."""
        return _ADVICE[self.kind]


def find_alerts(
    metrics: Mapping[int, Mapping[str, float]], components: Iterable[str]
) -> list[Alert]:
    """Find the stretches of steps over which a component taught little.

    A window of `MANY_STEPS` consecutive logged steps raises an alert when the mean of

      `CONSTANT_GROUPS` is at least `CONSTANT_SHARE` (constant),
      `SATURATION` is at least `SATURATED` (saturated) or at most `STUCK` (stuck),
      `PHANTOM_GROUPS` is at least `PHANTOM_SHARE` (phantom).

    Overlapping windows become one alert.

    Args:
      metrics: the metrics of each step, in the order of steps.
      components: the components to look at.

    Returns:
      the alerts, sorted by component, kind and step.
    """
    most = float("inf")
    rules: list[tuple[str, Kind, str, float, float]] = []
    for name in components:
        saturation = SATURATION.of(name)
        rules.append((name, "constant", CONSTANT_GROUPS.of(name), CONSTANT_SHARE, most))
        rules.append((name, "saturated", saturation, SATURATED, most))
        rules.append((name, "stuck", saturation, -most, STUCK))
    rules.append(("the outcome", "phantom", PHANTOM_GROUPS.key, PHANTOM_SHARE, most))
    alerts = []
    for component, kind, key, low, high in rules:
        steps = [step for step, data in metrics.items() if key in data]
        values = [metrics[step][key] for step in steps]
        for start, end in _stretches(values, low, high):
            logged = [metrics[step].get(MEAN.of(component)) for step in steps[start:end]]
            means = [mean for mean in logged if mean is not None]
            alert = Alert(
                component=component,
                kind=kind,
                first=steps[start],
                last=steps[end - 1],
                value=fmean(values[start:end]),
                mean=fmean(means) if means else None,
                ongoing=end == len(values),
            )
            alerts.append(alert)
    return alerts


def _stretches(values: Sequence[float], low: float, high: float) -> list[tuple[int, int]]:
    """Return the windows whose mean is between `low` and `high`, as pairs [start, end).

    Overlapping windows are joined.

    >>> _stretches([0.0] * 10 + [1.0] * 21, 1.0, 1.0)
    [(10, 31)]
    """
    joined: list[tuple[int, int]] = []
    for start in range(len(values) - MANY_STEPS + 1):
        end = start + MANY_STEPS
        if low <= fmean(values[start:end]) <= high:
            if joined and start < joined[-1][1]:
                joined[-1] = (joined[-1][0], end)
            else:
                joined.append((start, end))
    return joined
