"""The numbers of the report: one row a quantity, one column a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import mean, median

from gdpo_verl.rundir.dumps import read_rows
from gdpo_verl.rundir.metrics import Series, is_number
from gdpo_verl.rundir.run import Run
from gdpo_verl.text import duration

NOTHING = "–"
_PHASES = 7


@dataclass(frozen=True)
class Row:
    """A quantity and its value in each run, ready to be shown."""

    quantity: str
    cells: tuple[str, ...]


def summary_table(runs: Sequence[Run], components: Sequence[str]) -> list[Row]:
    """Every quantity of which at least one run knows the value."""
    rows = [
        Row("advantage estimator", tuple(run.estimator for run in runs)),
        Row("training steps", tuple(_steps(run) for run in runs)),
        *_training_rows(runs, components),
        *_held_out_rows(runs, components),
        *_collapse_rows(runs, components),
        *_phase_rows(runs),
        Row("seconds a step (median)", tuple(_step_seconds(run) for run in runs)),
        Row("time in steps and validation, without start-up", tuple(map(_total_time, runs))),
    ]
    return [row for row in rows if any(cell != NOTHING for cell in row.cells)]


def to_markdown(names: Sequence[str], rows: Sequence[Row]) -> str:
    """A table in Markdown, with a column for each name."""
    lines = [("", *names), *((row.quantity, *row.cells) for row in rows)]
    table = ["| " + " | ".join(map(markdown, line)) + " |" for line in lines]
    table.insert(1, "|---" * (len(names) + 1) + "|")
    return "\n".join(table) + "\n"


def seconds_by_phase(runs: Sequence[Run]) -> dict[str, float]:
    """Mean seconds a training step that the runs spent in each phase, the longest first.

    The smaller ones are summed up as "other", with what the step took beyond its phases.
    """
    steps = sum(len(run.series("timing_s/step")) for run in runs)
    keys = dict.fromkeys(key for run in runs for data in run.metrics.values() for key in data)
    # A second slash marks statistics of something within a phase.
    names = [key[9:] for key in keys if key.startswith("timing_s/") and "/" not in key[9:]]
    sums = {
        name: sum(v for run in runs for _, v in run.series(f"timing_s/{name}")) for name in names
    }
    whole = sums.pop("step", 0.0)
    if not steps:
        return {}
    # verl validates and saves outside of what it calls the step.
    inside = sum(value for name, value in sums.items() if name != "testing")
    order = sorted(sums, key=lambda name: -sums[name])
    phases = {name: sums[name] / steps for name in order[:_PHASES]}
    rest = max(0.0, whole - inside) + sum(sums[name] for name in order[_PHASES:])
    return phases | ({"other": rest / steps} if rest > 0 else {})


def _training_rows(runs: Sequence[Run], components: Sequence[str]) -> Iterator[Row]:
    for component in components:
        yield _first_to_last(f"training {component}", runs, f"rewards/{component}/mean")
    yield _first_to_last("response length, tokens", runs, "response_length/mean", digits=1)
    yield _first_to_last("entropy", runs, "actor/entropy")
    yield _first_to_last("KL to the reference policy", runs, "actor/kl_loss")


def _held_out_rows(runs: Sequence[Run], components: Sequence[str]) -> Iterator[Row]:
    for component in components:
        found = [run.validation_series(component) for run in runs]
        sources = list(dict.fromkeys(source for each in found for source in each))
        for source in sources:
            where = f" ({source})" if len(sources) > 1 else ""
            cells = (
                _before_after(run, each.get(source, []))
                for run, each in zip(runs, found, strict=True)
            )
            yield Row(f"held-out {component}{where}, before → after", tuple(cells))
        yield _best_share(runs, component)


def _collapse_rows(runs: Sequence[Run], components: Sequence[str]) -> Iterator[Row]:
    for component in components:
        label = f"groups in which {component} does not vary"
        yield _first_to_last(label, runs, f"gdpo/{component}/constant_groups", percent=True)
    for component in components:
        label = f"share of {component} in the advantage"
        yield _first_to_last(label, runs, f"gdpo/{component}/advantage_share", percent=True)
    for label, key in (
        ("rollouts whose rewards conflict", "gdpo/sign_conflicts"),
        ("answers that could not be read", "gdpo/parse_error/share"),
        ("sessions that failed", "gdpo/failed_sessions"),
    ):
        yield _first_to_last(label, runs, key, percent=True)
    for estimator in ("gdpo", "grpo"):
        found = (run.series(f"gdpo/distinct_advantages/{estimator}") for run in runs)
        cells = (f"{mean(v for _, v in series):.2f}" if series else NOTHING for series in found)
        yield Row(f"distinct advantages in a group by {estimator.upper()}", tuple(cells))


def _phase_rows(runs: Sequence[Run]) -> Iterator[Row]:
    times = [seconds_by_phase([run]) for run in runs]
    for phase in dict.fromkeys(phase for each in times for phase in each):
        cells = (f"{each[phase]:.2f}" if phase in each else NOTHING for each in times)
        yield Row(f"seconds a step in {phase} (mean)", tuple(cells))


def _first_to_last(
    label: str, runs: Sequence[Run], key: str, *, digits: int = 3, percent: bool = False
) -> Row:
    """Means over the first and the last steps, five where the shortest run allows it."""
    found = [[value for _, value in run.series(key)] for run in runs]
    shortest = min((len(values) for values in found if values), default=0)
    few = max(1, min(5, shortest // 2))
    cells = [
        _arrow(mean(values[:few]), mean(values[-few:]), digits=digits, percent=percent)
        if values
        else NOTHING
        for values in found
    ]
    plural = f"{few} steps" if few > 1 else "step"
    return Row(f"{label}, first → last {plural}", tuple(cells))


def _before_after(run: Run, series: Series) -> str:
    if not series:
        return NOTHING
    (first, before), (last, after) = series[0], series[-1]
    if first == last:
        return f"{before:.3f} (step {first} only)"
    whole = first == 0 and last == max(run.metrics)
    return _arrow(before, after) + ("" if whole else f" (steps {first} → {last})")


def _best_share(runs: Sequence[Run], component: str) -> Row:
    """The share of held-out completions at the highest value that any run has seen."""
    found = [_first_and_last(run, component) for run in runs]
    seen = {value for dumps in found for dump in dumps for value in dump}
    seen |= {value for run in runs for _, value in run.series(f"rewards/{component}/max")}
    best = max(seen, default=0.0)
    # For a component of zeros and ones the mean says it already.
    telling = not seen <= {0, 1}
    cells = (
        _arrow(*(dump.count(best) / len(dump) for dump in dumps), percent=True)
        if telling and len(dumps) == 2 and all(dumps)
        else NOTHING
        for dumps in found
    )
    label = f"held-out completions with {component} = {best:g}, the highest seen, before → after"
    return Row(label, tuple(cells))


def _first_and_last(run: Run, component: str) -> list[list[float]]:
    """The component's values in the first and in the last validation dump."""
    ends = sorted({min(run.validation), max(run.validation)}) if run.validation else []
    return [
        [row[component] for row in read_rows(run.validation[step]) if is_number(row.get(component))]
        for step in ends
    ]


def _arrow(before: float, after: float, *, digits: int = 3, percent: bool = False) -> str:
    form = ".0%" if percent else f".{digits}f"
    return f"{before:{form}} → {after:{form}}"


def markdown(cell: str) -> str:
    """A cell that is text and nothing else: names come from files.

    >>> markdown("a|b <i>\\nc")
    'a\\\\|b &lt;i> c'
    """
    text = " ".join(cell.split())
    return text.replace("\\", r"\\").replace("|", r"\|").replace("<", "&lt;")


def _steps(run: Run) -> str:
    total = run.setting("trainer.total_training_steps")
    done = max(run.training_steps, default=0)
    return f"{done} of {total}" if is_number(total) else str(done)


def _step_seconds(run: Run) -> str:
    seconds = [value for _, value in run.series("timing_s/step")]
    return f"{median(seconds):.1f}" if seconds else NOTHING


def _total_time(run: Run) -> str:
    seconds = [v for key in ("timing_s/step", "timing_s/testing") for _, v in run.series(key)]
    return duration(sum(seconds)) if seconds else NOTHING
