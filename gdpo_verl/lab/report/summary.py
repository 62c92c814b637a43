"""Summarise a run's curves and groups in sentences with numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, variance

from gdpo_verl.lab.report.groups import Vector
from gdpo_verl.lab.report.survey import RunDumps
from gdpo_verl.lab.report.tables import means_of_ends, number_of_ends
from gdpo_verl.lab.rundir.alerts import Alert, find_alerts
from gdpo_verl.lab.rundir.dumps import scores_text
from gdpo_verl.lab.rundir.run import Run
from gdpo_verl.names import CONSTANT_GROUPS, MEAN

# A trend needs this many logged steps of a component. Fewer steps cannot be distinguished from
# noise.
_FEWEST = 8
# The number of kinds of dead groups that are named.
_COMMONEST = 3
# Dead groups are counted in this many steps at the end of the run.
_RECENT_STEPS = 10


@dataclass(frozen=True)
class Summary:
    """Sentences about one run, and its alerts."""

    run: str
    sentences: tuple[str, ...]
    alerts: tuple[Alert, ...]


def summarise_run(dumps: RunDumps) -> Summary:
    """Summarise which components are learned, and how many groups are dead or collapse."""
    run = dumps.run
    scored = [name for name in run.components if run.values(MEAN.of(name))]
    sentences = [_learning(run, name) for name in scored]
    never = [name for name in run.components if name not in scored]
    if never:
        sentences.append(f"Never scored: {', '.join(never)}.")
    sentences += _dead_groups(dumps)
    sentences += _collapse(dumps)
    alerts = find_alerts(run.metrics, run.components)
    return Summary(run.name, tuple(sentences), tuple(alerts))


def _learning(run: Run, name: str) -> str:
    """Describe the trend of a component's mean.

    The standard error of the trend assumes that steps are independent.
    """
    values = run.values(MEAN.of(name))
    few = number_of_ends(len(values))
    first, last = means_of_ends(values, few)
    went = f"{name} went from {first:.3g} to {last:.3g}"
    constant = ""
    shares = run.values(CONSTANT_GROUPS.of(name))[-few:]
    if shares:
        ends = f"{few} steps" if few > 1 else "step"
        constant = f" It is constant in {fmean(shares):.0%} of the groups of the last {ends}."
    if len(values) < _FEWEST:
        return (
            f"{went}; {len(values)} steps are too few to distinguish a trend from noise.{constant}"
        )
    quarter = len(values) // 4
    before = values[-2 * quarter : -quarter]
    end = values[-quarter:]
    change = fmean(end) - fmean(before)
    error = sqrt((variance(before) + variance(end)) / quarter)
    # About one in twenty constant curves exceeds two standard errors by chance.
    verdict = ""
    if change > 2 * error:
        verdict = " and still rises"
    elif change < -2 * error:
        verdict = " and falls"
    numbers = f"{change:+.3g} ± {error:.2g} over the last {2 * quarter} steps"
    return f"{went}{verdict}: {numbers}.{constant}"


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
    # The example comes from a recent step, because many groups that are dead at the start of a run
    # vary later.
    prompt = next((step.dead_prompt for step in reversed(recent) if step.dead_prompt), "")
    example = f" For example: “{prompt}”" if prompt else ""
    yield (
        f"{count} of {groups} groups of {where} ({count / groups:.0%}) are dead: no reward "
        f"varies in them ({stuck}).{example}"
    )


def _collapse(dumps: RunDumps) -> Iterator[str]:
    steps = dumps.training.values()
    groups = sum(step.compared for step in steps)
    collapsed = sum(step.collapsed for step in steps)
    by_gdpo = sum(step.collapsed_by_gdpo for step in steps)
    if groups:
        yield (
            f"In {collapsed} of {groups} groups ({collapsed / groups:.1%}) GRPO gives one "
            "advantage to responses with different advantages in GDPO; in "
            f"{by_gdpo} GDPO gives one to responses with different advantages in GRPO."
        )
