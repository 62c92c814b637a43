"""Sentences with numbers about a run's curves and groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, variance

from gdpo_verl.lab.report.groups import Vector
from gdpo_verl.lab.report.survey import RunDumps, find_collapse
from gdpo_verl.lab.rundir.alerts import Alert, find_alerts
from gdpo_verl.lab.rundir.metrics import Series
from gdpo_verl.lab.rundir.run import Run

# A component's logged steps that a trend needs: fewer say nothing against noise.
_FEWEST = 8
# A change below this share of the range of a component's rewards is none.
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
        return [*(f"Alert: {alert}." for alert in self.alerts), *self.sentences]


def summarise_run(dumps: RunDumps) -> Summary:
    """Say which components learn, what they weigh, and which groups are dead."""
    run = dumps.run
    series = {name: run.series(f"rewards/{name}/mean") for name in run.components}
    scored = [name for name in series if series[name]]
    sentences = [_learning(run, name) for name in scored]
    if never := [name for name in series if not series[name]]:
        sentences.append(f"Never scored: {', '.join(never)}.")
    sentences += _weights(run, scored)
    sentences += _dead_groups(dumps)
    sentences += _collapse(dumps)
    alerts = find_alerts(run.metrics, run.components)
    return Summary(run.name, tuple(sentences), tuple(alerts))


def trend(series: Series) -> tuple[int, float, float] | None:
    """Compare the last quarter of a curve with the one before.

    Returns:
      the steps of both together, the change of their mean, and its standard error, as if steps
      were independent; None for fewer than `_FEWEST` steps.

    >>> trend([(step, float(step)) for step in range(8)])
    (4, 2.0, 0.7071067811865476)
    """
    if len(series) < _FEWEST:
        return None
    values = [value for _, value in series]
    quarter = len(values) // 4
    before, after = values[-2 * quarter : -quarter], values[-quarter:]
    error = sqrt((variance(before) + variance(after)) / quarter)
    return 2 * quarter, fmean(after) - fmean(before), error


def mixed_versions(runs: Sequence[Run]) -> Iterator[str]:
    """Warn of what must be known before the runs are compared."""
    versions = {run.name: str(run.launch["version"]) for run in runs if "version" in run.launch}
    if len(set(versions.values())) > 1:
        named = ", ".join(f"{name} by {version}" for name, version in versions.items())
        yield f"The runs were made by different versions of gdpo-verl: {named}."
    known = {name for run in runs for name in run.components}
    for run in runs:
        if run.components and (absent := sorted(known - set(run.components))):
            yield f"{run.name}: without the component {', '.join(absent)} of the other runs."


def _learning(run: Run, name: str) -> str:
    series = run.series(f"rewards/{name}/mean")
    few, first, last = _ends(series)
    went = f"{name} went from {first:.3g} to {last:.3g}"
    silent = ""
    if constant := [value for _, value in run.series(f"gdpo/{name}/constant_groups")][-few:]:
        ends = f"{few} steps" if few > 1 else "step"
        silent = f" It does not vary in {fmean(constant):.0%} of the groups of the last {ends}."
    if (found := trend(series)) is None:
        return f"{went}; {len(series)} steps are too few to tell a trend from noise.{silent}"
    steps, change, error = found
    numbers = f"{change:+.3g} ± {error:.2g} over the last {steps} steps"
    # Of curves that stand still about one in twenty is beyond two errors by chance.
    if abs(change) > 2 * error:
        still = "still rises" if change > 0 else "falls"
        return f"{went} and {still}: {numbers}.{silent}"
    # "Stopped" takes more than a change that noise could make: even two errors further it is small.
    given = [v for key in ("min", "mean", "max") for _, v in run.series(f"rewards/{name}/{key}")]
    if abs(change) + 2 * error <= _STILL * (max(given) - min(given)):
        return f"{went} and has stopped learning: {numbers}, within noise.{silent}"
    return f"{went}; nothing can be said of a trend, noise hides it: {numbers}.{silent}"


def _ends(series: Series) -> tuple[int, float, float]:
    """A number of steps, at most five, and the means over the first and over the last of them."""
    values = [value for _, value in series]
    few = max(1, min(5, len(values) // 2))
    return few, fmean(values[:few]), fmean(values[-few:])


def _weights(run: Run, scored: Sequence[str]) -> Iterator[str]:
    series = {name: run.series(f"gdpo/{name}/advantage_share") for name in scored}
    ends = {name: _ends(shares) for name, shares in series.items() if shares}
    if len(ends) > 1:  # a component alone has all of it
        parts = (f"{name} {first:.0%} → {last:.0%}" for name, (_, first, last) in ends.items())
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
        yield f"None of the {groups} groups of {where} is dead: in each something varies."
        return
    stuck = "; ".join(
        f"{times} with {_rewards(vector, dumps.run.components)}"
        for vector, times in dead.most_common(_COMMONEST)
    )
    # A recent one: at the start many groups are dead of which training makes others.
    prompt = next((step.dead_prompt for step in reversed(recent) if step.dead_prompt), "")
    example = f" For example: “{prompt}”" if prompt else ""
    yield (
        f"{count} of {groups} groups of {where} ({count / groups:.0%}) are dead, nothing varies "
        f"in them: {stuck}.{example}"
    )


def _collapse(dumps: RunDumps) -> Iterator[str]:
    found = find_collapse([dumps])
    if found.groups:
        yield (
            f"In {found.collapsed} of {found.groups} groups ({found.collapsed / found.groups:.1%}) "
            "GRPO gives the same advantage to rollouts that GDPO tells apart; the other way round "
            f"in {found.by_gdpo}."
        )


def _rewards(vector: Vector, components: Sequence[str]) -> str:
    return ", ".join(
        f"{name} {'not scored' if value is None else format(value, '.4g')}"
        for name, value in zip(components, vector, strict=True)
    )
