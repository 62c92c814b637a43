"""Write the report: a page, a picture and a table."""

from __future__ import annotations

import base64
import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from markupsafe import Markup

from gdpo_verl.lab.files import write_text
from gdpo_verl.lab.report.drawn import run_of_dumps
from gdpo_verl.lab.report.figures import panel_svg, recipe_colors, smoothing_window, write_png
from gdpo_verl.lab.report.panels import collapse_panels, component_panels, training_panels
from gdpo_verl.lab.report.recipes import MOST_DIFFERENCES, config_differences, group_by_recipe
from gdpo_verl.lab.report.samples import choose_samples
from gdpo_verl.lab.report.summary import mixed_versions, summarise_run
from gdpo_verl.lab.report.survey import browser_data, find_collapse, read_dumps
from gdpo_verl.lab.report.tables import (
    markdown,
    quantities,
    recipe_table,
    summary_table,
    to_markdown,
)
from gdpo_verl.lab.rundir.alerts import MANY_STEPS, THRESHOLDS
from gdpo_verl.lab.rundir.metrics import RunError
from gdpo_verl.lab.rundir.run import Run, find_runs, is_running, read_run
from gdpo_verl.lab.rundir.source import NoDumpsError
from gdpo_verl.lab.templates import templates
from gdpo_verl.lab.text import printable

_log = logging.getLogger(__name__)


def write_report(runs: Sequence[Path], out_dir: Path, *, refresh: int | None = None) -> Path:
    """Write index.html, curves.png and summary.md about runs.

    Args:
      runs: run directories or files of metrics; the first ones get the first columns.
      out_dir: made when it does not exist; its files of these names are replaced.
      refresh: seconds after which an open page loads itself anew; not at all by default.

    Returns:
      the path of index.html, which needs no other file and no network.

    Raises:
      RunError: no directory was given, or none of them holds a run. Of several, those without
        one are named on the page and in a warning.
    """
    if not runs:
        raise RunError("expected at least one run directory, found none. Give one or several.")
    found, missing = _read(runs)
    components = list(dict.fromkeys(name for run in found for name in run.components))
    recipes = group_by_recipe(found)
    dumps = read_dumps(found)
    panels = {
        "curves": component_panels(recipes, components),
        "collapse": collapse_panels(recipes) if components else [],
        "training": training_panels(recipes),
    }
    numbers = quantities(dumps, components)
    rows = summary_table(found, numbers)
    recipe_names, recipe_rows = recipe_table(recipes, numbers)
    summaries = [summarise_run(each) for each in dumps]
    differences = config_differences(found)
    notes = [*missing, *mixed_versions(found)]
    notes += [f"{each.run.name}: {n}" for each in dumps for n in (*each.run.notes, *each.notes)]
    pages = templates(__file__)
    script = pages.get_template("browser.js.j2").render()
    names = [run.name for run in found]
    page = pages.get_template("page.html.j2").render(
        names=names,
        recipes=recipes,
        colors=recipe_colors(recipes),
        facts=list(_facts(found)),
        summaries=summaries,
        notes=notes,
        panels=panels,
        panel_svg=panel_svg,
        window=smoothing_window(found),
        rows=rows,
        recipe_names=recipe_names,
        recipe_rows=recipe_rows,
        differences=differences[:MOST_DIFFERENCES],
        more_differences=max(0, len(differences) - MOST_DIFFERENCES),
        samples=choose_samples(found, components),
        collapse=find_collapse(dumps),
        browser=browser_data(dumps),
        refresh=refresh,
        many_steps=MANY_STEPS,
        thresholds=THRESHOLDS,
        script=Markup(script),
        # The browser runs this script and no other, whatever a completion holds.
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )
    out_dir.mkdir(parents=True, exist_ok=True)
    write_png(panels["curves"], recipes, out_dir / "curves.png")
    sentences = [f"{each.run}: {text}" for each in summaries for text in each.all()]
    tables = [(names, rows), (recipe_names, recipe_rows), (names, differences[:MOST_DIFFERENCES])]
    parts = [to_markdown(head, body) for head, body in tables if body]
    if sentences or notes:
        parts.append("".join(f"- {markdown(text)}\n" for text in sentences + notes))
    write_text(out_dir / "summary.md", "\n".join(parts))
    write_text(out_dir / "index.html", page)
    return out_dir / "index.html"


def follow_report(
    runs: Sequence[Path],
    out_dir: Path,
    *,
    every: float = 30.0,
    say: Callable[[str], None] = lambda text: None,
) -> Path | None:
    """Write the report anew every `every` seconds until all runs have ended, then a last time.

    While it follows, the open page loads itself anew. A run without metrics is waited for while
    its training runs.

    Args:
      runs, out_dir: as for `write_report`.
      every: seconds from the end of one report to the beginning of the next.
      say: gets a line when there is something to say.

    Returns:
      the path of index.html.

    Raises:
      RunError: a run that has ended holds nothing to report, or there are no runs.
      ValueError: `every` is not positive.
    """
    if every <= 0:
        raise ValueError(
            f"every: expected more than 0 seconds between two reports, found {every:g}"
        )
    shown = False
    while True:
        # Asked before reading, so that the last report holds what a run wrote last.
        alive = any(map(is_running, find_runs(runs)))
        refresh = max(1, round(every)) if alive else None  # 0 would be no refresh
        try:
            page = write_report(runs, out_dir, refresh=refresh)
        except RunError as error:
            if not alive:
                raise
            say(f"nothing to show yet: {error}")
        else:
            if not shown:
                say(f"{page}: kept current every {every:g} s" if alive else str(page))
            shown = True
            if not alive:
                return page
        time.sleep(every)


def _read(paths: Sequence[Path]) -> tuple[list[Run], list[str]]:
    found = []
    errors = []
    for path in find_runs(paths):
        try:
            found.append(read_run(path))
        except RunError as error:
            # A folder that is not a run may hold only dumps, or TRL's completions.
            try:
                found.append(run_of_dumps(path))
            except NoDumpsError:
                errors.append(error)
            except ValueError as other:
                errors.append(RunError(str(other)))
    if not found:
        raise errors[0]
    # One wrong path among several must not cost the report of the others.
    left_out = [f"Left out: {each}" for each in errors]
    for line in left_out:
        _log.warning(printable(line))
    names = [run.name for run in found]
    # Runs whose directories share a name are called by their parents' too.
    for place, run in enumerate(found):
        if names.count(run.name) > 1:
            name = f"{run.path.resolve().parent.name}/{run.name}"
            found[place] = replace(run, name=name)
    return found, left_out


def _facts(runs: Sequence[Run]) -> Iterator[tuple[str, str]]:
    """Facts about the runs, as far as they know them; values that differ are all named."""
    sources = [s for run in runs for name in run.components for s in run.validation_series(name)]
    yield "held-out data", ", ".join(dict.fromkeys(sources))
    for label, key in (
        ("policy", "actor_rollout_ref.model.path"),
        ("prompts a step", "data.train_batch_size"),
        ("rollouts a prompt", "actor_rollout_ref.rollout.n"),
        ("learning rate", "actor_rollout_ref.actor.optim.lr"),
        ("device", "trainer.device"),
    ):
        values = (run.setting(key) for run in runs)
        # A path says where this machine keeps a model; its last part says which one it is.
        shown = (os.path.basename(str(v)) for v in values if v is not None)
        yield label, ", ".join(dict.fromkeys(shown))
