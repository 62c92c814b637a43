"""A folder of dumps as a run that the report draws: the metrics are computed from its rows."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from gdpo_verl.config.components import Component
from gdpo_verl.diagnostics import batch_metrics
from gdpo_verl.lab.replay.settings import asked_setting, parse_overrides, recorded_batches
from gdpo_verl.lab.replay.sources import Batch, Source
from gdpo_verl.lab.rundir.metrics import Metrics
from gdpo_verl.lab.rundir.run import Run


def run_of_dumps(path: Path) -> Run:
    """Return the run of a folder of dumps, with the metrics that follow from its rows.

    Where the rows have no components, only the score that verl dumps is drawn.

    Raises:
      ValueError: there are no dumps, or a row cannot be read; names file and line.
    """
    source = Source(path)
    source.notes.append(f"{path}: no metrics; those of rewards are computed from the dumped rows.")
    metrics: dict[int, Metrics] = {}
    if not source.components:
        source.notes.append(f"{path}: the rows hold no components; the score is drawn.")
        source.components = [Component("score")]
    batches = recorded_batches(source, asked_setting(source, parse_overrides([])))
    for step, found in groupby(batches, key=lambda pair: pair[0].step):
        # The mini-batches of a step together.
        of_step = list(found)
        setting = of_step[0][1]
        answers = [answer for batch, _ in of_step for answer in batch.answers]
        values = batch_metrics(
            setting.decompose(Batch(step, answers)),
            setting.objective,
            trains=setting.estimator == "gdpo",
        )
        # As a tracker writes them, without the weights of their means.
        metrics[step] = {key: float(value) for key, value in values.items()}
    return Run(
        path=path,
        name=path.resolve().name,
        metrics=metrics,
        rollouts={step: file for step, file in source.files.items() if step is not None},
        notes=tuple(source.notes),
    )
