"""The table of the report: a row for each quantity, and a column for each recipe."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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

# The largest number of steps over which the mean at an end of a curve is taken.
_FEW = 5
# Labels and keys of the settings that the table shows.
_SETTINGS = {
    "policy": "actor_rollout_ref.model.path",
    "prompts per step": "data.train_batch_size",
    "responses per prompt": "actor_rollout_ref.rollout.n",
    "learning rate": "actor_rollout_ref.actor.optim.lr",
    "device": "trainer.device",
}
# The value of a run at its start and at its end; None if the quantity has no value at the start.
Ends = tuple[float | None, float]


@dataclass(frozen=True)
class Quantity:
    """A quantity of the table, with its value for each run."""

    label: str
    of: Mapping[Path, Ends]  # by the run's path; runs without the quantity are missing
    form: str = ".3f"  # the number format


def quantities(runs: Sequence[Run], components: Sequence[str]) -> list[Quantity]:
    """Return the quantities of the table.

    The ends of a training metric are means over the first and the last five steps, or over fewer
    steps if a run has less than ten. The ends of a held-out score are the first and the last
    validation.
    """
    # The shortest run decides, so that every column is a mean over equally many steps.
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

    result = []
    for name in components:
        result.append(metric(f"training {name}", MEAN.of(name)))
        result.append(mean(f"training {name}, mean of all steps", MEAN.of(name)))
    result.append(metric("response length, tokens", "response_length/mean", ".1f"))
    result.append(metric("entropy", "actor/entropy"))
    result.append(metric("KL to the reference policy", "actor/kl_loss"))
    for name in components:
        result += _held_out(runs, name)
    for name in components:
        constant = f"groups in which {name} is constant"
        result.append(metric(constant, CONSTANT_GROUPS.of(name), ".1%"))
        share = f"share of {name} in the advantage"
        result.append(metric(share, ADVANTAGE_SHARE.of(name), ".1%"))
        result.append(metric(f"spread of {name} over the turns", TURN_SPREAD.of(name)))
    result += [
        metric("responses whose rewards conflict", SIGN_CONFLICTS.key, ".1%"),
        metric("responses that could not be read", PARSE_ERROR_SHARE.key, ".1%"),
        metric("rollouts that failed", FAILED_SESSIONS.key, ".1%"),
        mean("distinct advantages in a group by GDPO", DISTINCT_GDPO.key, ".2f"),
        mean("distinct advantages in a group by GRPO", DISTINCT_GRPO.key, ".2f"),
    ]
    for key in logged_keys(runs):
        phase = key.removeprefix("timing_s/")
        # A key with a second slash is a statistic of a part of a phase.
        if phase not in (key, "step") and "/" not in phase:
            result.append(mean(f"seconds in {phase} (mean)", key, ".2f"))
    # The first step loads and compiles, which would dominate a mean.
    seconds = logged(
        "seconds a step (median)", "timing_s/step", ".1f", lambda values: (None, median(values))
    )
    return [*result, seconds]


def number_of_ends(steps: int) -> int:
    """Return the number of steps at each end of a curve over which a mean is taken."""
    return max(1, min(_FEW, steps // 2))


def means_of_ends(values: Sequence[float], few: int) -> tuple[float, float]:
    """Return the means over the first and over the last few values."""
    return fmean(values[:few]), fmean(values[-few:])


def number_table(
    recipes: Sequence[Recipe], found: Sequence[Quantity]
) -> tuple[list[str], list[Row]]:
    """Return a table with a row for each quantity, and a column for each recipe.

    Quantities that no run has are left out. A cell of a recipe with several runs contains the mean
    ± the standard deviation over the runs.

    Two recipes that were trained with the same ``data.seed`` values, at least two of them, get a
    third column. It contains the difference of the last values: its mean over the pairs of runs ±
    half the width of a 95 % interval by Student's t.

    Returns:
      the names of the columns, and the rows.
    """
    names = [recipe.name for recipe in recipes]
    rows: list[tuple[str, list[str]]] = []
    if any(len(recipe.runs) > 1 for recipe in recipes):
        rows.append(("runs", [str(len(recipe.runs)) for recipe in recipes]))
    texts: dict[str, list[str]] = defaultdict(list)
    for recipe in recipes:
        of_runs = [_texts(run) for run in recipe.runs]
        for label in of_runs[0]:
            distinct = dict.fromkeys(of_run[label] for of_run in of_runs)
            texts[label].append(", ".join(distinct))
    rows += texts.items()
    for quantity in found:
        rows.append((quantity.label, [_cell(quantity, recipe.runs) for recipe in recipes]))
    pairs = _pairs(recipes)
    if pairs:
        names.append(" − ".join(names))
        differences = {quantity.label: _difference(quantity, pairs) for quantity in found}
        differences["runs"] = f"{len(pairs)} pairs"
        for label, cells in rows:
            cells.append(differences.get(label, NOTHING))
    return names, [(label, tuple(cells)) for label, cells in rows if set(cells) != {NOTHING}]


def _texts(run: Run) -> dict[str, str]:
    """Return the texts of a run, by the label of their row."""
    texts = {"advantage estimator": run.estimator}
    for label, key in _SETTINGS.items():
        value = run.setting(key)
        # Only the last part of a path identifies the model; the rest depends on the machine.
        texts[label] = NOTHING if value is None else PurePath(str(value)).name
    texts["version of gdpo-verl"] = str(run.launch.get("version", NOTHING))
    texts["training steps"] = _steps(run)
    return texts


def markdown(cell: str) -> str:
    """Escape a cell, so that Markdown shows it as plain text.

    Names come from files that somebody else may have written.

    >>> markdown("a|b <i>\\nc")
    'a\\\\|b &lt;i> c'
    >>> markdown("![x](http://a.b)")
    '!\\\\[x\\\\](http\\\\://a.b)'
    """
    text = " ".join(cell.split())
    # Brackets and addresses would make links and images.
    escaped = re.sub(r"[\\|\[\]]|:(?=//)|(?<=www)\.", r"\\\g<0>", text)
    return escaped.replace("<", "&lt;")


def _held_out(runs: Sequence[Run], component: str) -> Iterator[Quantity]:
    by_source = {run.path: run.validation_series(component) for run in runs}
    sources = dict.fromkeys(source for curves in by_source.values() for source in curves)
    for source in sources:
        where = f" ({source})" if len(sources) > 1 else ""
        ends: dict[Path, Ends] = {}
        for path, series in by_source.items():
            values = [value for _, value in series.get(source, [])]
            if values:
                ends[path] = (values[0] if len(values) > 1 else None, values[-1])
        yield Quantity(f"held-out {component}{where}, before → after", ends)


def _pairs(recipes: Sequence[Recipe]) -> list[tuple[Run, Run]]:
    """Return pairs of runs of two recipes that have the same seed.

    There are no pairs if a seed is unknown, if the recipes have different seeds, or if there is
    only one seed.
    """
    if len(recipes) != 2:
        return []
    first = _by_seed(recipes[0])
    second = _by_seed(recipes[1])
    if first.keys() != second.keys() or len(first) < 2:
        return []
    return [(run, second[seed]) for seed, run in first.items()]


def _by_seed(recipe: Recipe) -> dict[Any, Run]:
    """Return the runs by seed; empty if a run has no seed, or if a seed occurs twice."""
    runs = {run.setting("data.seed"): run for run in recipe.runs}
    return {} if None in runs or len(runs) < len(recipe.runs) else runs


def _cell(quantity: Quantity, runs: Sequence[Run]) -> str:
    """Return the text of both ends of a quantity, over the runs that have it."""
    of_runs = [quantity.of[run.path] for run in runs if run.path in quantity.of]
    starts = [start for start, _ in of_runs if start is not None]
    lasts = [last for _, last in of_runs]
    ends = [_spread(starts, quantity.form), _spread(lasts, quantity.form)]
    return " → ".join(filter(None, ends)) or NOTHING


def _spread(values: Sequence[float], form: str) -> str:
    """Return the mean of values ± their standard deviation; only the value if there is one.

    >>> _spread([1.0, 3.0], ".3f"), _spread([0.5], ".1%"), _spread([], ".3f")
    ('2.000 ± 1.414', '50.0%', '')
    """
    if len(values) < 2:
        return f"{values[0]:{form}}" if values else ""
    return f"{fmean(values):{form}} ± {stdev(values):{form}}"


def _difference(quantity: Quantity, pairs: Sequence[tuple[Run, Run]]) -> str:
    """Return the mean difference of the last values over pairs of runs, with its interval."""
    differences = []
    for first, second in pairs:
        if first.path not in quantity.of or second.path not in quantity.of:
            # A mean over the remaining pairs would depend on a selection of seeds.
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
