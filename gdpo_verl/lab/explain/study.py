"""The toy policy of three skills on five tasks, with each estimator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from gdpo_verl.lab.explain.charts import Table, number
from gdpo_verl.lab.explain.toy import (
    GDPO,
    GRPO,
    LEARNING_RATE,
    UNWHITENED,
    Method,
    Skills,
    Training,
    over_seeds,
    train,
    verdict,
)

CHECKPOINTS = (50, 149)


@dataclass(frozen=True)
class Case:
    """A toy task and its results.

    Attributes:
      name: a heading.
      setting: what is special about the task.
      trainings: the results of each method, in the order in which they are drawn.
      faster: the baseline for missing whitening, GRPO with the learning rate that corresponds to
        it.
    """

    name: str
    setting: str
    trainings: Mapping[Method, Training]
    faster: Method


def study(name: str, setting: str, task: Skills, *, seeds: int, learning_rate: float) -> Case:
    """Train a task with GRPO, GDPO, GDPO without whitening, and a faster GRPO.

    The last one has GRPO's learning rate times the ratio of the spread of unwhitened advantages to
    that of GRPO's advantages in the first epoch.
    """
    run = partial(train, task, seeds=seeds, learning_rate=learning_rate)
    trainings = {method: run(method) for method in (GRPO, GDPO, UNWHITENED)}
    factor = round(trainings[UNWHITENED].spread / trainings[GRPO].spread, 3)
    faster = replace(GRPO, name=f"GRPO, learning rate × {factor:.2f}", lr_factor=factor)
    return Case(name, setting, trainings | {faster: run(faster)}, faster)


def study_all(
    *,
    correlation: float = 0.7,
    factor: float = 10.0,
    hard: float = 0.02,
    noise: float = 0.1,
    seeds: int = 20,
    learning_rate: float = LEARNING_RATE,
) -> list[Case]:
    """Train the five tasks of the page."""
    scales = (factor, 1.0, 1.0 / factor)
    tasks = [
        ("Independent rewards", "equally scaled, equally hard", Skills()),
        ("Correlated rewards", f"correlation {correlation:.1f}", Skills(correlation=correlation)),
        ("Different scales", f"scales {', '.join(map(number, scales))}", Skills(scales=scales)),
        ("Unequally hard", f"from {number(hard)}, 0.5, 0.9", Skills(start=(hard, 0.5, 0.9))),
        ("A reward that is noise", f"a coin flip of scale {number(noise)}", Skills(noise=noise)),
    ]
    return [study(*task, seeds=seeds, learning_rate=learning_rate) for task in tasks]


def case_table(cases: Sequence[Case]) -> Table:
    """Return head and rows: each case and method at both checkpoints, mean ± its error."""
    head = ["rewards", "method"]
    head += [f"{what}, epoch {epoch}" for epoch in CHECKPOINTS for what in ("mean", "slowest")]
    rows = []
    for case in cases:
        for method, training in case.trainings.items():
            measures = training.mean, training.slowest
            figures = []
            for epoch in CHECKPOINTS:
                for measure in measures:
                    figures.append(str(over_seeds(measure[epoch])))
            rows.append([case.name, method.name, *figures])
    return head, rows


def verdict_table(cases: Sequence[Case]) -> Table:
    """Return head and rows: which method is ahead in the slowest skill, over all epochs."""
    rows = []
    for case in cases:
        # The mean over all epochs is high for early and lasting success.
        grpo, gdpo, faster = (
            over_seeds(case.trainings[method].slowest.mean(dim=0))
            for method in (GRPO, GDPO, case.faster)
        )
        # The faster GRPO is not compared: it shows the effect of a learning rate.
        ahead = {1: "GDPO", 0: "neither", -1: "GRPO"}[verdict(gdpo, grpo)]
        rows.append([case.name, case.setting, *map(str, (grpo, gdpo, faster)), ahead])
    return ["rewards", "setting", "GRPO", "GDPO", "faster GRPO", "ahead"], rows
