"""A folder of dumps as a run that the report draws: the metrics are computed from its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from gdpo_verl.config.components import Component
from gdpo_verl.diagnostics import batch_metrics
from gdpo_verl.lab.rundir.dumps import find_dumps
from gdpo_verl.lab.rundir.metrics import Metrics
from gdpo_verl.lab.rundir.responses import Batch
from gdpo_verl.lab.rundir.run import Run
from gdpo_verl.lab.rundir.settings import Setting, recorded_setting
from gdpo_verl.lab.rundir.source import Source
from gdpo_verl.names import SCORES


def run_of_dumps(path: Path) -> Run:
    """Return the run of a folder of dumps, with the metrics that follow from its rows.

    Where the rows have no components, only the score that verl dumps is drawn. What cannot be read
    is named in the notes, and drawn as far as it goes.

    Raises:
      ValueError: there are no dumps.
    """
    files = find_dumps(path)
    notes = [f"{path}: no metrics; those of rewards are computed from the dumped rows."]
    metrics: dict[int, Metrics] = {}
    try:
        source = Source(path)
        if not source.components:
            notes.append(f"{path}: the rows hold no components; the score is drawn.")
            source.components = [Component("score")]
        setting = recorded_setting(source)
    except ValueError as error:
        notes.append(f"No metrics: {error}")
    else:
        for number, file in source.files.items():
            try:
                metrics |= _metrics_of(source.batches_of(number, file), setting)
            except ValueError as error:
                notes.append(f"The metrics of {file.name} are left out: {error}")
        notes += source.notes
    return Run(
        path=path,
        name=path.resolve().name,
        metrics=metrics,
        rollouts={step: file for step, file in files.items() if step is not None},
        notes=tuple(notes),
    )


def _metrics_of(batches: Sequence[Batch], setting: Setting) -> dict[int, Metrics]:
    """Return the metrics of each step, as a training computes them."""
    trains = setting.estimator == "gdpo"
    of_steps: dict[int, list[tuple[int, Mapping[str, float]]]] = {}
    for batch in batches:
        found = batch_metrics(setting.decompose(batch), setting.objective, trains=trains)
        of_steps.setdefault(batch.step, []).append((len(batch.responses), found))
    return {step: _of_mini_batches(parts) for step, parts in of_steps.items()}


def _of_mini_batches(parts: Sequence[tuple[int, Mapping[str, float]]]) -> Metrics:
    """Return the metrics of a step from those of its mini-batches, as verl aggregates them.

    A mean has the weight of what it is over, without one that of the responses
    (`gdpo_verl.plugin.step.aggregation`).
    """
    metrics: Metrics = {}
    for key in dict.fromkeys(key for _, found in parts for key in found):
        having = [(size, found[key]) for size, found in parts if key in found]
        values = [float(value) for _, value in having]
        weights = [getattr(value, "weight", size) for size, value in having]
        if key.startswith(SCORES) and key.endswith("/min"):
            metrics[key] = min(values)
        elif key.startswith(SCORES) and key.endswith("/max"):
            metrics[key] = max(values)
        elif any(weights):
            metrics[key] = fmean(values, weights)
        else:
            metrics[key] = values[0]
    return metrics
