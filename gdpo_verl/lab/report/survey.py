"""The dumps of whole runs: their groups, and the page's browser of responses."""

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

# Steps in the page's browser, of all runs together.
PAGE_STEPS = 400
_MOST_NOTES = 5


@dataclass(frozen=True)
class RunDumps:
    """A run's dumps, as far as they were read."""

    run: Run
    training: Mapping[int, DumpSummary]  # by step, of its rollout dumps
    held_out: Mapping[int, DumpSummary]  # of its validation dumps
    notes: tuple[str, ...]  # what was left out, as sentences


def read_dumps(runs: Sequence[Run]) -> list[RunDumps]:
    """Read the dumps of all runs, of each kind about `REPORT_BYTES` together."""
    return [_read_run(run, REPORT_BYTES // len(runs)) for run in runs]


def browser_data(dumps: Sequence[RunDumps]) -> dict[str, Markup]:
    """Element id to JSON that is safe inside a script element; `index` names the others.

    Every step is a separate element, so that the page parses what is looked at.
    """
    index: list[dict[str, Any]] = []
    data: dict[str, Markup] = {}
    share = max(2, PAGE_STEPS // len(dumps))  # two at least: the first and the last
    for i, each in enumerate(dumps):
        entry: dict[str, Any] = {"name": each.run.name, "kinds": {}}
        for kind, steps in (("training", each.training), ("held-out", each.held_out)):
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
    found = [note for step in (*training.values(), *held_out.values()) for note in step.notes]
    notes += found[:_MOST_NOTES]
    if len(found) > _MOST_NOTES:
        notes.append(f"{len(found) - _MOST_NOTES} more dumps could not be read in full.")
    return RunDumps(run, training, held_out, tuple(notes))


def _read(run: Run, dumps: dict[int, Path], limit: int, notes: list[str]) -> dict[int, DumpSummary]:
    steps = steps_within(dumps, limit)
    if len(steps) < len(dumps):
        notes.append(
            f"The dumps in {dumps[steps[0]].parent.name} are large: {len(steps)} evenly spaced "
            f"ones of {len(dumps)} were read, and what is said of groups is about these."
        )
    return {step: read_step(dumps[step], run.components) for step in steps}
