"""Read the dumps of whole runs: counts of their groups, and responses for the page's browser."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup

from gdpo_verl.lab.report.groups import DumpSummary, read_step
from gdpo_verl.lab.rundir.dumps import REPORT_BYTES, evenly_spaced, steps_within
from gdpo_verl.lab.rundir.run import Run

# The number of steps in the page's browser of responses, over all runs.
PAGE_STEPS = 400
# The number of notes about dumps that are shown for each run.
_MOST_NOTES = 5


@dataclass(frozen=True)
class RunDumps:
    """A run with those of its dumps that were read."""

    run: Run
    training: Mapping[int, DumpSummary]  # the rollout dumps by step
    held_out: Mapping[int, DumpSummary]  # the validation dumps by step
    notes: tuple[str, ...]  # sentences about what was left out


def read_dumps(runs: Sequence[Run]) -> list[RunDumps]:
    """Read the dumps of all runs: about `REPORT_BYTES` of rollout and of validation dumps each."""
    return [_read_run(run, REPORT_BYTES // len(runs)) for run in runs]


def browser_data(dumps: Sequence[RunDumps]) -> dict[str, Markup]:
    """Return the data of the page's browser: JSON by the id of its script element.

    The JSON is safe inside a script element. The element `index` lists the other elements. Every
    step has its own element, so that the page parses only the steps that a reader opens.
    """
    index: list[dict[str, Any]] = []
    data: dict[str, Markup] = {}
    share = max(2, PAGE_STEPS // len(dumps))  # at least the first and the last step
    for i, run_dumps in enumerate(dumps):
        entry: dict[str, Any] = {"name": run_dumps.run.name, "kinds": {}}
        for kind, steps in (("training", run_dumps.training), ("held-out", run_dumps.held_out)):
            shown = [n for n in evenly_spaced(list(steps), share) if steps[n].shown]
            if shown:
                entry["kinds"][kind] = shown
            for number in shown:
                step = steps[number]
                content = {"groups": step.shown, "of": step.shown_of, "rows": step.responses}
                data[f"r{i}-{kind}-{number}"] = htmlsafe_json_dumps(content)
        index.append(entry)
    return {"index": htmlsafe_json_dumps(index), **data} if data else {}


def _read_run(run: Run, limit: int) -> RunDumps:
    notes: list[str] = []
    training = _read(run, run.rollouts, limit, notes)
    held_out = _read(run, run.validation, limit, notes)
    of_steps = [note for step in (*training.values(), *held_out.values()) for note in step.notes]
    notes += of_steps[:_MOST_NOTES]
    if len(of_steps) > _MOST_NOTES:
        notes.append(f"{len(of_steps) - _MOST_NOTES} more dumps could not be read in full.")
    return RunDumps(run, training, held_out, tuple(notes))


def _read(run: Run, dumps: dict[int, Path], limit: int, notes: list[str]) -> dict[int, DumpSummary]:
    steps = steps_within(dumps, limit)
    if len(steps) < len(dumps):
        notes.append(
            f"The dumps in {dumps[steps[0]].parent.name} are large: {len(steps)} evenly spaced "
            f"ones of {len(dumps)} were read, and what is said of groups is about these."
        )
    return {step: read_step(dumps[step], run.components) for step in steps}
