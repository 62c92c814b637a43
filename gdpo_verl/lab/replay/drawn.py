"""A folder of dumps as a run that the report draws: the metrics are computed from its rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from omegaconf import OmegaConf

from gdpo_verl.diagnostics import batch_metrics, component_metrics
from gdpo_verl.lab.replay import Request, SourceReplay
from gdpo_verl.lab.replay.rows import Reader, Step
from gdpo_verl.lab.replay.settings import decomposed
from gdpo_verl.lab.replay.sources import Source, find_source, read_layout
from gdpo_verl.lab.rundir.metrics import Metrics
from gdpo_verl.lab.rundir.run import Run


def run_of_dumps(path: Path) -> Run:
    """The run that a folder of dumps is of, as far as its rows tell of it.

    Without components the score that verl dumps is drawn alone.

    Raises:
      ValueError: there are no dumps, or a row cannot be read; names file and line.
    """
    source = find_source(path)
    layout = read_layout(source, None, None, (), bare=True)
    notes = [f"{path}: no metrics; those of rewards are computed from the dumped rows."]
    if layout.components:
        of_source = SourceReplay(Request([path]), {}, path, None)
        notes += of_source.notes
        of_source.notes = notes
        reader, measure = of_source.reader, _of_components(of_source)
    else:
        notes.append(f"{path}: the rows hold no components; the score is drawn.")
        reader, measure = Reader(source, layout, ""), _of_score
    metrics: dict[int, Metrics] = {}
    for step in reader.steps(notes):
        # As a tracker writes them, without the weights of their means.
        metrics[step.number] = {key: float(value) for key, value in measure(step).items()}
    return Run(
        path=path,
        name=path.resolve().name,
        metrics=metrics,
        rollouts=_by_step(source),
        validation={},
        config=OmegaConf.create({}),
        launch={},
        notes=tuple(notes),
    )


def has_no_dumps(path: Path) -> bool:
    """Return whether a path holds nothing that could be drawn."""
    if path.is_file() and path.suffix not in (".jsonl", ".parquet"):
        return True
    try:
        return not find_source(path).files
    except ValueError:
        return True


def _of_components(of_source: SourceReplay) -> Callable[[Step], Metrics]:
    def measure(step: Step) -> Metrics:
        of_source.look_at_first(step)
        setting = of_source.recorded
        decomposition = decomposed(setting, step, list(range(len(step.groups))))
        objective = setting.objective
        return batch_metrics(
            decomposition,
            objective.keys,
            ranges=objective.ranges,
            outcome=objective.outcome_column,
            trains=setting.estimator == "gdpo",
        )

    return measure


def _of_score(step: Step) -> Metrics:
    score = torch.tensor(step.score, dtype=torch.float64)[:, None]
    return component_metrics(score, step.groups, ["score"])


def _by_step(source: Source) -> dict[int, Path]:
    return {step: path for step, path in source.files.items() if step is not None}
