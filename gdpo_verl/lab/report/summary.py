"""Sentences with numbers about a run's curves and groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, variance

from gdpo_verl.lab.report.groups import Vector
from gdpo_verl.lab.report.survey import RunDumps, find_collapse
from gdpo_verl.lab.report.tables import means_of_ends, number_of_ends
from gdpo_verl.lab.rundir.alerts import Alert, find_alerts
from gdpo_verl.lab.rundir.dumps import scores_text
from gdpo_verl.lab.rundir.run import Run
from gdpo_verl.names import ADVANTAGE_SHARE, CONSTANT_GROUPS, MEAN

# A component's logged steps that a trend needs: fewer say nothing against noise.
_FEWEST = 8
# Of a component that has stopped, the last quarter has at most this share of what it learnt before.
_STILL = 0.1
_COMMONEST = 3
_RECENT_STEPS = 10


@dataclass(frozen=True)
class Summary:
    """Sentences about one run, and its alerts."""

    run: str
    sentences: tuple[str, ...]
    alerts: tuple[Alert, ...]

    def all(self) -> list[str]:
        """The alerts first."""
        return [f"Alert: {alert}." for alert in self.alerts] + list(self.sentences)


def summarise_run(dumps: RunDumps) -> Summary:
    """Say which components learn, what they weigh, and which groups are dead."""
    run = dumps.run
    scored = [name for name in run.components if run.values(MEAN.of(name))]
    sentences = [_learning(run, name) for name in scored]
    never = [name for name in run.components if name not in scored]
    if never:
        sentences.append(f"Never scored: {', '.join(never)}.")
    sentences += _weights(run, scored)
    sentences += _dead_groups(dumps)
    sentences += _collapse(dumps)
    alerts = find_alerts(run.metrics, run.components)
    return Summary(run.name, tuple(sentences), tuple(alerts))


@dataclass(frozen=True)
class Trend:
    """The change of a curve's mean from one quarter of its steps to another.

    The standard errors are as if steps were independent.
    """

    steps: int  # of the last two quarters
    change: float  # from the third quarter to the last
    error: float
    earlier: float  # from the first quarter to the third
    earlier_error: float

    @property
    def moves(self) -> bool:
        # Of curves that stand still about one in twenty is beyond two errors by chance.
        return abs(self.change) > 2 * self.error

    @property
    def has_stopped(self) -> bool:
        """Return whether it rose before, and two errors more would still be a small part of it."""
        learnt = self.earlier - 2 * self.earlier_error
        return abs(self.change) + 2 * self.error < _STILL * learnt


def trend(values: Sequence[float]) -> Trend | None:
    """Compare the quarters of a curve; None for fewer than `_FEWEST` steps.

    >>> trend([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]).change
    2.0
    """
    if len(values) < _FEWEST:
        return None
    size = len(values) // 4
    first = values[:size]
    third = values[-2 * size : -size]
    last = values[-size:]
    return Trend(
        2 * size,
        fmean(last) - fmean(third),
        sqrt((variance(third) + variance(last)) / size),
        fmean(third) - fmean(first),
        sqrt((variance(first) + variance(third)) / size),
    )


def mixed_versions(runs: Sequence[Run]) -> Iterator[str]:
    """Warn of what must be known before the runs are compared."""
    versions = {run.name: str(run.launch["version"]) for run in runs if "version" in run.launch}
    if len(set(versions.values())) > 1:
        named = ", ".join(f"{name}: {version}" for name, version in versions.items())
        yield f"The runs were made by different versions of gdpo-verl: {named}."
    known = {name for run in runs for name in run.components}
    for run in runs:
        absent = sorted(known - set(run.components))
        if run.components and absent:
            yield f"{run.name}: without the component {', '.join(absent)} of the other runs."


def _learning(run: Run, name: str) -> str:
    values = run.values(MEAN.of(name))
    few = number_of_ends(len(values))
    first, last = means_of_ends(values, few)
    went = f"{name} went from {first:.3g} to {last:.3g}"
    silent = ""
    constant = run.values(CONSTANT_GROUPS.of(name))[-few:]
    if constant:
        ends = f"{few} steps" if few > 1 else "step"
        silent = f" It is constant in {fmean(constant):.0%} of the groups of the last {ends}."
    found = trend(values)
    if found is None:
        return f"{went}; {len(values)} steps are too few to distinguish a trend from noise.{silent}"
    verdict = ""
    if found.moves:
        verdict = " and still rises" if found.change > 0 else " and falls"
    elif found.has_stopped:
        verdict = " and has stopped learning"
    numbers = f"{found.change:+.3g} ± {found.error:.2g} over the last {found.steps} steps"
    return f"{went}{verdict}: {numbers}.{silent}"


def _weights(run: Run, scored: Sequence[str]) -> Iterator[str]:
    parts = []
    for name in scored:
        shares = run.values(ADVANTAGE_SHARE.of(name))
        if shares:
            first, last = means_of_ends(shares, number_of_ends(len(shares)))
            parts.append(f"{name} {first:.0%} → {last:.0%}")
    if len(parts) > 1:  # a component alone has all of it
        yield f"Of the advantage, first → last steps: {', '.join(parts)}."


def _dead_groups(dumps: RunDumps) -> Iterator[str]:
    recent = list(dumps.training.values())[-_RECENT_STEPS:]
    groups = sum(step.groups for step in recent)
    dead = sum((Counter(step.dead) for step in recent), Counter[Vector]())
    if not groups:
        return
    count = sum(dead.values())
    where = f"the last {len(recent)} dumped steps" if len(recent) > 1 else "the dumped step"
    if not count:
        yield f"None of the {groups} groups of {where} is dead: in each a reward varies."
        return
    stuck = "; ".join(
        f"{times} with {scores_text(dict(zip(dumps.run.components, vector, strict=True)))}"
        for vector, times in dead.most_common(_COMMONEST)
    )
    # A recent one: many groups that are dead at the start vary later.
    prompt = next((step.dead_prompt for step in reversed(recent) if step.dead_prompt), "")
    example = f" For example: “{prompt}”" if prompt else ""
    yield (
        f"{count} of {groups} groups of {where} ({count / groups:.0%}) are dead: no reward "
        f"varies in them ({stuck}).{example}"
    )


def _collapse(dumps: RunDumps) -> Iterator[str]:
    found = find_collapse([dumps])
    if found.groups:
        yield (
            f"In {found.collapsed} of {found.groups} groups ({found.collapsed / found.groups:.1%}) "
            "GRPO gives one advantage to responses with different advantages in GDPO; in "
            f"{found.by_gdpo} GDPO gives one to responses with different advantages in GRPO."
        )
