"""The dumps of whole runs: what collapsed, what is dead, and the page's rollout browser."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup

from gdpo_verl.report.collapse import Combination, Vector
from gdpo_verl.report.dumps import GROUP_ROWS, STEP_CHARACTERS, TEXT_CHARACTERS, Step, read_step
from gdpo_verl.rundir.dumps import REPORT_BYTES, affordable, thin
from gdpo_verl.rundir.run import Run

# Steps in the page's browser, of all runs together.
PAGE_STEPS = 400
RECENT_STEPS = 10
_MOST_NOTES = 5


@dataclass(frozen=True)
class Survey:
    """A run's dumps, as far as they were read.

    Attributes:
      run: whose they are.
      training: step to what its rollout dump shows.
      held_out: step to what its validation dump shows.
      notes: what was left out, as sentences.
    """

    run: Run
    training: Mapping[int, Step]
    held_out: Mapping[int, Step]
    notes: tuple[str, ...]

    def recent(self) -> list[Step]:
        """The last `RECENT_STEPS` training dumps that were read."""
        return list(self.training.values())[-RECENT_STEPS:]

    def dead(self) -> Counter[Vector]:
        """The recent groups in which nothing varies, by the rewards that all rollouts got."""
        return sum((Counter(step.dead) for step in self.recent()), Counter())


@dataclass(frozen=True)
class Example:
    """A group in which GRPO takes different rewards for equal, and where it is from."""

    run: str
    step: int
    components: tuple[str, ...]
    combinations: tuple[Combination, ...]


@dataclass(frozen=True)
class Collapse:
    """In how many groups which estimator saw less.

    Attributes:
      groups: groups whose rows have components and both advantages.
      collapsed: those in which only GRPO gives one advantage to different components.
      reverse: those in which only GDPO does: components that cancel after normalisation.
      example: the group with the most combinations that GRPO takes for equal to another; of
        several the first by run and step.
    """

    groups: int
    collapsed: int
    reverse: int
    example: Example | None


def survey(runs: Sequence[Run]) -> list[Survey]:
    """Read the dumps of all runs, of each kind about `REPORT_BYTES` together."""
    return [_survey(run, REPORT_BYTES // max(1, len(runs))) for run in runs]


def find_collapse(surveys: Sequence[Survey]) -> Collapse:
    """Count the groups in which one estimator gives the same advantage to different
    components that the other tells apart."""
    groups = collapsed = reverse = most = 0
    example: Example | None = None
    for each in surveys:
        for number, step in each.training.items():
            groups += step.compared
            collapsed += step.collapsed
            reverse += step.reverse
            size = sum(found.collapsed for found in step.example)
            if size > most:
                names = tuple(each.run.components)
                most, example = size, Example(each.run.name, number, names, step.example)
    return Collapse(groups, collapsed, reverse, example)


def browser_data(surveys: Sequence[Survey]) -> dict[str, Markup]:
    """Element id to JSON that is safe inside a script element; `index` names the others.

    Every step is an element of its own, so that the page parses what is looked at.
    """
    index: list[dict[str, Any]] = []
    data: dict[str, Markup] = {}
    share = max(2, PAGE_STEPS // max(1, len(surveys)))
    for i, each in enumerate(surveys):
        entry: dict[str, Any] = {"name": each.run.name, "kinds": {}}
        for kind, steps in (("training", each.training), ("held-out", each.held_out)):
            shown = [n for n in thin(list(steps), share) if steps[n].shown]
            if shown:
                entry["kinds"][kind] = shown
            for number in shown:
                step = steps[number]
                content = {"groups": step.shown, "of": step.shown_of, "rows": step.rows}
                data[f"r{i}-{kind}-{number}"] = htmlsafe_json_dumps(content)
        index.append(entry)
    return {"index": htmlsafe_json_dumps(index), **data} if data else {}


def browser_limits(surveys: Sequence[Survey]) -> str:
    """Say what the browser leaves out."""
    share = max(2, PAGE_STEPS // max(1, len(surveys)))
    return (
        f"Kept are at most {share} evenly spaced steps a run and, of each step, groups up to "
        f"{STEP_CHARACTERS:,} characters (one in any case), first those with the most rollouts "
        "that GRPO takes for equal, then in the order of the prompt's SHA-256; of a group at most "
        f"{GROUP_ROWS} rollouts, evenly spaced by GDPO's advantage; of a longer text the first and "
        f"last {TEXT_CHARACTERS // 2} characters."
    )


def _survey(run: Run, limit: int) -> Survey:
    notes: list[str] = []
    training = _read(run, run.rollouts, limit, notes)
    held_out = _read(run, run.validation, limit, notes)
    found = [note for step in (*training.values(), *held_out.values()) for note in step.notes]
    notes += found[:_MOST_NOTES]
    if len(found) > _MOST_NOTES:
        notes.append(f"{len(found) - _MOST_NOTES} more dumps could not be read in full.")
    return Survey(run, training, held_out, (*notes, *_gaps(run, training)))


def _read(run: Run, dumps: dict[int, Path], limit: int, notes: list[str]) -> dict[int, Step]:
    steps = affordable(dumps, limit)
    if len(steps) < len(dumps):
        notes.append(
            f"The dumps in {dumps[steps[0]].parent.name} are large: {len(steps)} evenly spaced "
            f"ones of {len(dumps)} were read, and what is said of groups is about these."
        )
    return {step: read_step(dumps[step], run.components) for step in steps}


def _gaps(run: Run, training: Mapping[int, Step]) -> Iterator[str]:
    if not run.components:
        return
    groups = sum(step.shown_of for step in training.values())
    scored = sum(step.groups for step in training.values())
    compared = sum(step.compared for step in training.values())
    if scored < groups:
        yield f"{groups - scored} of {groups} dumped groups have none of the components."
    if compared < scored:
        lacking = [n for n, step in training.items() if step.compared < step.groups]
        yield (
            f"{scored - compared} of {scored} dumped groups lack gdpo_advantage or grpo_advantage "
            f"(first at step {lacking[0]}): perhaps dumped without gdpo-verl, or by an older one."
        )
