"""The numbers of the report: a row for each quantity, a column for each recipe."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePath
from statistics import fmean, median, stdev
from typing import Any

from gdpo_verl.advantage.checks import is_number
from gdpo_verl.lab.report.recipes import NOTHING, Recipe, Row
from gdpo_verl.lab.rundir.run import Run, logged_keys
from gdpo_verl.lab.statistics import half_interval
from gdpo_verl.names import (
    ADVANTAGE_SHARE,
    CONSTANT_GROUPS,
    DISTINCT_GDPO,
    DISTINCT_GRPO,
    FAILED_SESSIONS,
    MEAN,
    PARSE_ERROR_SHARE,
    SIGN_CONFLICTS,
    TURN_SPREAD,
)

_FEW = 5
# Labels and keys of the settings that the table shows.
_SETTINGS = {
    "policy": "actor_rollout_ref.model.path",
    "prompts per step": "data.train_batch_size",
    "responses per prompt": "actor_rollout_ref.rollout.n",
    "learning rate": "actor_rollout_ref.actor.optim.lr",
    "device": "trainer.device",
}
# A run's value at its start, where it has one, and at its end.
Ends = tuple[float | None, float]


@dataclass(frozen=True)
class Quantity:
    """A number of each run."""

    label: str
    of: Mapping[Path, Ends]  # by the run's path, where it is known
    form: str = ".3f"


def quantities(runs: Sequence[Run], components: Sequence[str]) -> list[Quantity]:
    """The quantities of the table.

    Of training metrics the ends are means over the first and the last five steps, fewer where a
    run has less than ten; of held-out scores they are the first and the last validation.
    """
    # Of the shortest run, so that every column is a mean over as many steps.
    lengths = [len(run.training_steps) for run in runs if run.training_steps]
    few = number_of_ends(min(lengths, default=0))
    where = f"first → last {few} steps" if few > 1 else "first → last step"

    def logged(label: str, key: str, form: str, ends: Callable[[list[float]], Ends]) -> Quantity:
        values = {run.path: run.values(key) for run in runs}
        return Quantity(label, {path: ends(each) for path, each in values.items() if each}, form)

    def metric(label: str, key: str, form: str = ".3f") -> Quantity:
        return logged(f"{label}, {where}", key, form, lambda values: means_of_ends(values, few))

    def mean(label: str, key: str, form: str = ".3f") -> Quantity:
        return logged(label, key, form, lambda values: (None, fmean(values)))

    found = []
    for name in components:
        found.append(metric(f"training {name}", MEAN.of(name)))
        found.append(mean(f"training {name}, mean of all steps", MEAN.of(name)))
    found.append(metric("response length, tokens", "response_length/mean", ".1f"))
    found.append(metric("entropy", "actor/entropy"))
    found.append(metric("KL to the reference policy", "actor/kl_loss"))
    for name in components:
        found += _held_out(runs, name)
    for name in components:
        constant = f"groups in which {name} is constant"
        found.append(metric(constant, CONSTANT_GROUPS.of(name), ".1%"))
        share = f"share of {name} in the advantage"
        found.append(metric(share, ADVANTAGE_SHARE.of(name), ".1%"))
        found.append(metric(f"spread of {name} over the turns", TURN_SPREAD.of(name)))
    found += [
        metric("responses whose rewards conflict", SIGN_CONFLICTS.key, ".1%"),
        metric("responses that could not be read", PARSE_ERROR_SHARE.key, ".1%"),
        metric("rollouts that failed", FAILED_SESSIONS.key, ".1%"),
        mean("distinct advantages in a group by GDPO", DISTINCT_GDPO.key, ".2f"),
        mean("distinct advantages in a group by GRPO", DISTINCT_GRPO.key, ".2f"),
    ]
    for key in logged_keys(runs):
        phase = key.removeprefix("timing_s/")
        # A second slash marks statistics of something within a phase.
        if phase not in (key, "step") and "/" not in phase:
            found.append(mean(f"seconds in {phase} (mean)", key, ".2f"))
    # The first step loads and compiles: a mean would tell of that.
    seconds = logged(
        "seconds a step (median)", "timing_s/step", ".1f", lambda values: (None, median(values))
    )
    return [*found, seconds]


def number_of_ends(steps: int) -> int:
    """The steps at each end of a curve that a mean is taken over: at most five."""
    return max(1, min(_FEW, steps // 2))


def means_of_ends(values: Sequence[float], few: int) -> tuple[float, float]:
    """The means over the first and over the last few values."""
    return fmean(values[:few]), fmean(values[-few:])


def number_table(
    recipes: Sequence[Recipe], found: Sequence[Quantity]
) -> tuple[list[str], list[Row]]:
    """A row for each quantity of which a run knows the value, and a column for each recipe.

    Of a recipe with several runs it holds the mean ± the standard deviation over the runs.

    Two recipes that were trained with the same two or more ``data.seed`` get a third column: the
    difference of the last values, its mean over the pairs ± half of a 95 % interval by Student's t.

    Returns:
      the names of the columns, and the rows.
    """
    names = [recipe.name for recipe in recipes]
    rows: list[tuple[str, list[str]]] = []
    if any(len(recipe.runs) > 1 for recipe in recipes):
        rows.append(("runs", [str(len(recipe.runs)) for recipe in recipes]))
    for label, text in _texts():
        cells = []
        for recipe in recipes:
            distinct = dict.fromkeys(text(run) for run in recipe.runs)
            cells.append(", ".join(distinct))
        rows.append((label, cells))
    for each in found:
        rows.append((each.label, [_cell(each, recipe.runs) for recipe in recipes]))
    pairs = _pairs(recipes)
    if pairs:
        names.append(" − ".join(names))
        differences = {each.label: _difference(each, pairs) for each in found}
        differences["runs"] = f"{len(pairs)} pairs"
        for label, cells in rows:
            cells.append(differences.get(label, NOTHING))
    return names, [(label, tuple(cells)) for label, cells in rows if set(cells) != {NOTHING}]


def _texts() -> Iterator[tuple[str, Callable[[Run], str]]]:
    """The rows that hold texts: a label, and the text of a run."""
    yield "advantage estimator", lambda run: run.estimator
    for label, key in _SETTINGS.items():
        yield label, partial(_setting, key)
    yield "version of gdpo-verl", lambda run: str(run.launch.get("version", NOTHING))
    yield "training steps", _steps


def _setting(key: str, run: Run) -> str:
    value = run.setting(key)
    # A path says where this machine keeps a model; its last part says which one it is.
    return NOTHING if value is None else PurePath(str(value)).name


def to_markdown(names: Sequence[str], rows: Sequence[Row]) -> str:
    """A table in Markdown, with a column for each name."""
    lines = [_markdown_line("", names), "|---" * (len(names) + 1) + "|"]
    lines += [_markdown_line(label, cells) for label, cells in rows]
    return "\n".join(lines) + "\n"


def _markdown_line(label: str, cells: Sequence[str]) -> str:
    return "| " + " | ".join(map(markdown, [label, *cells])) + " |"


def markdown(cell: str) -> str:
    """A cell that is text and nothing else: names come from files.

    >>> markdown("a|b <i>\\nc")
    'a\\\\|b &lt;i> c'
    >>> markdown("![x](http://a.b)")
    '!\\\\[x\\\\](http\\\\://a.b)'
    """
    text = " ".join(cell.split())
    # Brackets would make links and images, and so would addresses.
    escaped = re.sub(r"[\\|\[\]]|:(?=//)|(?<=www)\.", r"\\\g<0>", text)
    return escaped.replace("<", "&lt;")


def _held_out(runs: Sequence[Run], component: str) -> Iterator[Quantity]:
    by_source = {run.path: run.validation_series(component) for run in runs}
    sources = dict.fromkeys(source for each in by_source.values() for source in each)
    for source in sources:
        where = f" ({source})" if len(sources) > 1 else ""
        ends: dict[Path, Ends] = {}
        for path, each in by_source.items():
            values = [value for _, value in each.get(source, [])]
            if values:
                ends[path] = (values[0] if len(values) > 1 else None, values[-1])
        yield Quantity(f"held-out {component}{where}, before → after", ends)


def _pairs(recipes: Sequence[Recipe]) -> list[tuple[Run, Run]]:
    """The runs of two recipes by seed; none where seeds are unknown, unequal or one alone."""
    if len(recipes) != 2:
        return []
    first = _by_seed(recipes[0])
    second = _by_seed(recipes[1])
    if first.keys() != second.keys() or len(first) < 2:
        return []
    return [(run, second[seed]) for seed, run in first.items()]


def _by_seed(recipe: Recipe) -> dict[Any, Run]:
    """The runs by seed; empty where one has none, or a seed occurs twice."""
    runs = {run.setting("data.seed"): run for run in recipe.runs}
    return {} if None in runs or len(runs) < len(recipe.runs) else runs


def _cell(quantity: Quantity, runs: Sequence[Run]) -> str:
    """Both ends of a quantity over the runs that have it."""
    known = [quantity.of[run.path] for run in runs if run.path in quantity.of]
    starts = [start for start, _ in known if start is not None]
    lasts = [last for _, last in known]
    ends = [_spread(starts, quantity.form), _spread(lasts, quantity.form)]
    return " → ".join(filter(None, ends)) or NOTHING


def _spread(values: Sequence[float], form: str) -> str:
    """
    >>> _spread([1.0, 3.0], ".3f"), _spread([0.5], ".1%"), _spread([], ".3f")
    ('2.000 ± 1.414', '50.0%', '')
    """
    if len(values) < 2:
        return f"{values[0]:{form}}" if values else ""
    return f"{fmean(values):{form}} ± {stdev(values):{form}}"


def _difference(quantity: Quantity, pairs: Sequence[tuple[Run, Run]]) -> str:
    """The mean difference of the last values, with its interval."""
    differences = []
    for first, second in pairs:
        if first.path not in quantity.of or second.path not in quantity.of:
            # Not over the pairs that are left, whose seeds would be a choice.
            return NOTHING
        differences.append(quantity.of[first.path][1] - quantity.of[second.path][1])
    scale, form, unit = 1, quantity.form, ""
    if "%" in form:
        scale, form, unit = 100, ".1f", " points"
    mean = f"{fmean(differences) * scale:+{form}}".replace("-", "−")
    return f"{mean} ± {half_interval(differences) * scale:{form}}{unit}"


def _steps(run: Run) -> str:
    total = run.setting("trainer.total_training_steps")
    done = max(run.training_steps, default=0)
    return f"{done} of {total}" if is_number(total) else str(done)
