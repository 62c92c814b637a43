"""Write the report: a page, a picture and a table."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from gdpo_verl.report.collapse import find_collapse
from gdpo_verl.report.figures import component_svg, run_colors, smoothing_window, write_curves
from gdpo_verl.report.runs import METRICS, Run, RunError, read_run
from gdpo_verl.report.samples import choose_samples
from gdpo_verl.report.table import summary_table, to_markdown


@dataclass(frozen=True)
class Link:
    """A file or directory of a run, as the page points to it."""

    what: str
    text: str
    href: str


def write_report(runs: Sequence[Path], out_dir: Path) -> Path:
    """Write index.html, curves.png and summary.md about one or several runs.

    Args:
      runs: run directories; the first ones get the first columns.
      out_dir: made when it does not exist; its files of these names are replaced.

    Returns:
      the path of index.html, which needs no other file and no network.

    Raises:
      RunError: no directory was given, or one of them holds no run.
    """
    if not runs:
        raise RunError("expected at least one run directory, found none. Give one or several.")
    found = _distinct_names([read_run(Path(path)) for path in runs])
    components = list(dict.fromkeys(name for run in found for name in run.components))
    out_dir = Path(out_dir)
    out_dir.mkdir(parents=True, exist_ok=True)
    rows = summary_table(found, components)
    page = _template().render(
        runs=found,
        components=components,
        colors=run_colors(found),
        facts=list(_facts(found)),
        # Matplotlib has escaped what the names hold; the rest of the page escapes itself.
        figures=[Markup(component_svg(found, component)) for component in components],
        window=smoothing_window(found),
        rows=rows,
        samples=choose_samples(found, components),
        collapse=find_collapse(found),
        links=[list(_links(run, out_dir)) for run in found],
    )
    write_curves(found, components, out_dir / "curves.png")
    (out_dir / "summary.md").write_text(to_markdown(found, rows), encoding="utf-8")
    index = out_dir / "index.html"
    index.write_text(page, encoding="utf-8")
    return index


def _template() -> Any:
    environment = Environment(
        loader=PackageLoader("gdpo_verl.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html.j2")


def _distinct_names(runs: list[Run]) -> list[Run]:
    """Runs whose directories share a name are called by their parents' too."""
    names = [run.name for run in runs]
    return [
        replace(run, name=f"{run.path.resolve().parent.name}/{run.name}")
        if names.count(run.name) > 1
        else run
        for run in runs
    ]


def _facts(runs: Sequence[Run]) -> Iterator[tuple[str, str]]:
    """What was run, as far as the runs know it; values that differ are all named."""
    sources = (
        source
        for run in runs
        for component in run.components
        for source in run.validation_series(component)
    )
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


def _links(run: Run, out_dir: Path) -> Iterator[Link]:
    checkpoints = run.setting("trainer.default_local_dir")
    places = (
        ("run", run.path),
        ("metrics", run.path / METRICS),
        ("log", run.path / "train.log"),
        ("configuration", run.path / "config.yaml"),
        ("training rollouts", run.path / "rollouts"),
        ("held-out completions", run.path / "validation"),
        ("checkpoints", Path(str(checkpoints)) if checkpoints else run.path / "checkpoints"),
    )
    for what, path in places:
        if path.exists():
            text = _relative(path, out_dir)
            yield Link(what, text, quote(text))


def _relative(path: Path, start: Path) -> str:
    try:
        return Path(os.path.relpath(path.resolve(), start.resolve())).as_posix()
    except ValueError:  # another drive
        return path.resolve().as_posix()
