"""A folder of dumps as a run that the report draws: the metrics are computed from its rows."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import torch
from omegaconf import OmegaConf

from gdpo_verl.diagnostics import batch_metrics, component_metrics
from gdpo_verl.lab.replay import recorded_batches
from gdpo_verl.lab.replay.settings import Setting, asked_algorithm, setting_of
from gdpo_verl.lab.replay.sources import Batch, Source, find_dumps
from gdpo_verl.lab.rundir.metrics import Metrics
from gdpo_verl.lab.rundir.run import Run


def run_of_dumps(path: Path) -> Run:
    """The run that a folder of dumps is of, as far as its rows tell of it.

    Without components the score that verl dumps is drawn alone.

    Raises:
      ValueError: there are no dumps, or a row cannot be read; names file and line.
    """
    source = Source(path)
    source.notes.append(f"{path}: no metrics; those of rewards are computed from the dumped rows.")
    metrics: dict[int, Metrics] = {}
    found = _of_components(source) if source.components else _of_score(source)
    for step, values in found:
        # As a tracker writes them, without the weights of their means.
        metrics[step] = {key: float(value) for key, value in values.items()}
    return Run(
        path=path,
        name=path.resolve().name,
        metrics=metrics,
        rollouts={step: file for step, file in source.files.items() if step is not None},
        validation={},
        config=OmegaConf.create({}),
        launch={},
        notes=tuple(source.notes),
    )


def has_no_dumps(path: Path) -> bool:
    """Return whether a path holds nothing that could be drawn."""
    if path.is_file():
        return path.suffix not in (".jsonl", ".parquet")
    try:
        return not find_dumps(path)
    except ValueError:
        return True


def _of_score(source: Source) -> Iterator[tuple[int, Metrics]]:
    source.notes.append(f"{source.path}: the rows hold no components; the score is drawn.")
    for batch in source.batches():
        score = torch.tensor([[each.score] for each in batch.answers], dtype=torch.float64)
        yield batch.step, component_metrics(score, batch.groups, ["score"])


def _of_components(source: Source) -> Iterator[tuple[int, Metrics]]:
    asked = setting_of(asked_algorithm(source, {}), source)
    batches = recorded_batches(source, (), asked)
    for step, found in groupby(batches, key=lambda pair: pair[0].step):
        of_step = list(found)
        answers = [answer for batch, _ in of_step for answer in batch.answers]
        yield step, _measured(of_step[0][1], Batch(step, answers))


def _measured(setting: Setting, batch: Batch) -> Metrics:
    objective = setting.objective
    return batch_metrics(
        setting.decompose(batch),
        objective.keys,
        ranges=objective.ranges,
        outcome=objective.outcome_column,
        trains=setting.estimator == "gdpo",
    )
