"""Write the report: the page index.html and the table summary.md."""

from __future__ import annotations

import base64
import hashlib
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from markupsafe import Markup

from gdpo_verl.lab.files import write_text
from gdpo_verl.lab.report.drawn import run_of_dumps
from gdpo_verl.lab.report.panels import Curves, panel_svg
from gdpo_verl.lab.report.recipes import config_differences, group_by_recipe
from gdpo_verl.lab.report.summary import summarise_run
from gdpo_verl.lab.report.survey import browser_data, read_dumps
from gdpo_verl.lab.report.tables import markdown, number_table, quantities
from gdpo_verl.lab.rundir.alerts import MANY_STEPS, THRESHOLDS
from gdpo_verl.lab.rundir.dumps import NoDumpsError
from gdpo_verl.lab.rundir.metrics import RunError
from gdpo_verl.lab.rundir.run import Run, find_runs, read_run
from gdpo_verl.lab.templates import templates
from gdpo_verl.lab.text import printable

_log = logging.getLogger(__name__)


def write_report(runs: Sequence[Path], out_dir: Path) -> Path:
    """Write index.html and summary.md about one or several runs.

    Args:
      runs: run directories or files of metrics, in the order of the columns.
      out_dir: the folder to write to. It is created if it does not exist, and existing files of
        these names are replaced.

    Returns:
      the path of index.html, which needs no other file and no network.

    Raises:
      RunError: no directory was given, or none of them contains a run. If only some of them
        contain no run, the page and a warning name these directories.
    """
    if not runs:
        raise RunError("expected at least one run directory, found none. Give one or several.")
    readable, missing = _read(runs)
    components = list(dict.fromkeys(name for run in readable for name in run.components))
    recipes = group_by_recipe(readable)
    dumps = read_dumps(readable)
    curves = Curves(recipes)
    columns, rows = number_table(recipes, quantities(readable, components))
    summaries = [summarise_run(run_dumps) for run_dumps in dumps]
    notes = list(missing)
    notes += [f"{each.run.name}: {n}" for each in dumps for n in (*each.run.notes, *each.notes)]
    # The contents of both files.
    contents = {
        "names": [run.name for run in readable],
        "summaries": summaries,
        "notes": notes,
        "columns": columns,
        "rows": rows,
        "differences": config_differences(readable),
    }
    pages = templates(__file__)
    pages.filters["markdown"] = markdown
    script = pages.get_template("browser.js.j2").render()
    page = pages.get_template("page.html.j2").render(
        **contents,
        recipes=recipes,
        curves=curves,
        panels={
            "curves": curves.component_panels(components),
            "collapse": curves.collapse_panels() if components else [],
            "training": curves.training_panels(),
        },
        panel_svg=panel_svg,
        browser=browser_data(dumps),
        many_steps=MANY_STEPS,
        thresholds=THRESHOLDS,
        script=Markup(script),
        # With its hash, the browser runs this script and no other, whatever a response contains.
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )
    out_dir.mkdir(parents=True, exist_ok=True)
    write_text(out_dir / "summary.md", pages.get_template("summary.md.j2").render(contents))
    write_text(out_dir / "index.html", page)
    return out_dir / "index.html"


def _read(paths: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """Return the runs at these paths, and a sentence for each path that could not be read."""
    runs = []
    errors = []
    for path in find_runs(paths):
        try:
            runs.append(read_run(path))
        except RunError as error:
            # A folder that is not a run may hold only dumps, or TRL's completions.
            try:
                runs.append(run_of_dumps(path))
            except NoDumpsError:
                errors.append(error)
            except ValueError as other:
                errors.append(RunError(str(other)))
    if not runs:
        raise errors[0]
    # One wrong path must not prevent the report about the other runs.
    left_out = [f"Left out: {error}" for error in errors]
    for line in left_out:
        _log.warning(printable(line))
    names = [run.name for run in runs]
    # Runs whose directories have the same name get their parent's name as well.
    for place, run in enumerate(runs):
        if names.count(run.name) > 1:
            name = f"{run.path.resolve().parent.name}/{run.name}"
            runs[place] = replace(run, name=name)
    return runs, left_out
