"""Alerts about rewards that teach little; the console and the report share them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from gdpo_verl.names import CONSTANT_GROUPS, MEAN, PHANTOM_GROUPS, SATURATION, Metric

# On average over MANY_STEPS logged steps: the share of groups in which the component does not
# vary, and the share of its declared range that its mean has covered. Shorter runs raise none.
MANY_STEPS = 20
CONSTANT_SHARE = 0.8
SATURATED = 0.95
STUCK = 0.05
# The share of groups in which the outcome is the same for all and another reward is trained.
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
    """A component that taught little, from one step to another."""

    component: str  # "the outcome" for "phantom"
    kind: Kind
    first: int  # of the logged steps, the MANY_STEPS that raised it included
    last: int
    value: float  # the mean over these steps of what `kind` looks at
    mean: float | None  # the component's over these steps; None where it was not logged
    ongoing: bool  # `last` is the last step

    def __str__(self) -> str:
        mean = "" if self.mean is None else f" (mean {self.mean:.3g})"
        when = f"since step {self.first}" if self.ongoing else f"steps {self.first} to {self.last}"
        return f"{self.component} {_WORDS[self.kind].format(self.value)}{mean}, {when}"

    @property
    def advice(self) -> str:
        """The meaning of the alert, and a remedy."""
        return _ADVICE[self.kind]


def find_alerts(
    metrics: Mapping[int, Mapping[str, float]], components: Iterable[str]
) -> list[Alert]:
    """Find the stretches of steps over which a component was constant, saturated or stuck.

    A window of `MANY_STEPS` consecutive logged steps raises an alert when the mean of

      `CONSTANT_GROUPS` is at least `CONSTANT_SHARE` (constant),
      `SATURATION` is at least `SATURATED` or at most `STUCK`,
      `PHANTOM_GROUPS` is at least `PHANTOM_SHARE` (phantom).

    Overlapping windows are one alert. `metrics` are by step, in its order; the alerts by component,
    kind and step.
    """
    rules: tuple[tuple[Kind, Metric, float, float], ...] = (
        ("constant", CONSTANT_GROUPS, CONSTANT_SHARE, float("inf")),
        ("saturated", SATURATION, SATURATED, float("inf")),
        ("stuck", SATURATION, float("-inf"), STUCK),
    )
    alerts = []
    for name in components:
        for kind, metric, low, high in rules:
            for stretch in _stretches(metrics, metric.of(name), MEAN.of(name), low, high):
                alerts.append(Alert(name, kind, *stretch))
    for stretch in _stretches(metrics, PHANTOM_GROUPS.key, "", PHANTOM_SHARE, float("inf")):
        alerts.append(Alert("the outcome", "phantom", *stretch))
    return alerts


def _stretches(
    metrics: Mapping[int, Mapping[str, float]], key: str, mean_key: str, low: float, high: float
) -> Iterator[tuple[int, int, float, float | None, bool]]:
    steps = [step for step, data in metrics.items() if key in data]
    values = [metrics[step][key] for step in steps]
    # Windows in question, as positions [start, end) that are joined where they overlap.
    joined: list[list[int]] = []
    for start in range(len(values) - MANY_STEPS + 1):
        end = start + MANY_STEPS
        if low <= fmean(values[start:end]) <= high:
            if joined and start < joined[-1][1]:
                joined[-1][1] = end
            else:
                joined.append([start, end])
    for start, end in joined:
        inside = steps[start:end]
        means = [metrics[step][mean_key] for step in inside if mean_key in metrics[step]]
        value = fmean(values[start:end])
        mean = fmean(means) if means else None
        yield inside[0], inside[-1], value, mean, end == len(values)
