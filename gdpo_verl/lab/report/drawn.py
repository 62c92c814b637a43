"""Read a folder of dumps as a run of the report: its metrics are computed from the rows."""

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
    """Return a folder of dumps as a run, with the metrics that follow from its rows.

    If the rows have no components, the run has only the score that verl dumps. The notes of the run
    name everything that could not be read.

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
    """Return the metrics of each step, as training computes them."""
    trains = setting.estimator == "gdpo"
    of_steps: dict[int, list[tuple[int, Mapping[str, float]]]] = {}
    for batch in batches:
        decomposition = setting.decompose(batch)
        by_turn = setting.by_turn(decomposition, batch) if trains else None
        metrics = batch_metrics(decomposition, setting.objective, trains=trains, by_turn=by_turn)
        of_steps.setdefault(batch.step, []).append((len(batch.responses), metrics))
    return {step: _of_mini_batches(parts) for step, parts in of_steps.items()}


def _of_mini_batches(parts: Sequence[tuple[int, Mapping[str, float]]]) -> Metrics:
    """Combine the metrics of a step's mini-batches, as verl does.

    The value of a mini-batch has its own weight, for example the number of groups over which it is
    a mean. Without such a weight the number of responses counts
    (`gdpo_verl.plugin.step.aggregation`).
    """
    metrics: Metrics = {}
    for key in dict.fromkeys(key for _, of_part in parts for key in of_part):
        sized = [(size, of_part[key]) for size, of_part in parts if key in of_part]
        values = [float(value) for _, value in sized]
        weights = [getattr(value, "weight", size) for size, value in sized]
        if key.startswith(SCORES) and key.endswith("/min"):
            metrics[key] = min(values)
        elif key.startswith(SCORES) and key.endswith("/max"):
            metrics[key] = max(values)
        elif any(weights):
            metrics[key] = fmean(values, weights)
        else:
            metrics[key] = values[0]
    return metrics
