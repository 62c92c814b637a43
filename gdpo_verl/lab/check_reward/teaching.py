"""Measure from a policy's responses what a set of rewards can teach it, and give advice."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

import torch
from omegaconf import OmegaConf

from gdpo_verl.lab.replay.advice import advise
from gdpo_verl.lab.replay.capacity import capacity
from gdpo_verl.lab.replay.figures import Figures, known_passing
from gdpo_verl.lab.replay.forecast import Forecast, groups_of_size
from gdpo_verl.lab.replay.output import verdict_lines
from gdpo_verl.lab.rundir.settings import ESTIMATORS, Setting
from gdpo_verl.lab.text import columns
from gdpo_verl.plugin.step.batch import RewardBatch


def teaching(config: Any, batch: RewardBatch) -> dict[str, Any]:
    """Return advice, capacity and forecast from a batch of a policy's responses, for `--json`.

    Returns:
      a dict with `advice`, a list of dicts with `override` and `because`; `advice_conclusion`, a
      concluding text; `advice_lines`, both for a terminal; `capacity`, see `lab.replay.capacity`;
      `forecast`, see `lab.replay.forecast`.
    """
    objective = batch.rows.objective
    decomposition = batch.decomposition
    chosen = str(config.algorithm.get("adv_estimator"))
    setting = Setting(objective, chosen if chosen in ESTIMATORS else ESTIMATORS[0])
    figures = Figures(known_passing(objective))
    figures.add(setting, decomposition, setting.advantage(decomposition))
    verdict = advise(figures)
    prompts = OmegaConf.select(config, "data.train_batch_size")
    prompts_a_step = int(prompts or len(set(batch.group_ids)))
    size = int(config.actor_rollout_ref.rollout.n)
    return {
        "advice": [vars(advice) for advice in verdict.advice],
        "advice_conclusion": verdict.conclusion,
        "advice_lines": verdict_lines(verdict),
        "capacity": capacity(
            decomposition.rewards,
            batch.group_ids,
            objective.keys,
            size=size,
        ),
        "forecast": forecast_at_size(batch, size).for_step(prompts_a_step),
    }


def forecast_at_size(batch: RewardBatch, size: int) -> Forecast:
    """Measure the push in groups of the run's size; the forecast is empty without full groups."""
    objective = batch.rows.objective
    new_groups: Mapping[int, Hashable] = groups_of_size(batch.group_ids, size)
    forecast = Forecast()
    if new_groups:
        raw = batch.raw[list(new_groups)]
        tokens = torch.ones(len(raw))
        graded: dict[str, list[Any]] = {}
        for key, column in batch.graded.items():
            graded[key] = [column[row] for row in new_groups]
        names = [str(row) for row in new_groups]
        groups = list(new_groups.values())
        decomposition = objective.decompose(raw, groups, tokens, 0, graded, names)
        forecast.add(objective.keys, decomposition)
    return forecast


def capacity_lines(measured: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a table of capacity by group size, and of sentences below it."""
    varies: Mapping[str, Mapping[str, float]] = measured["varies"]
    if not varies:
        yield (
            f"capacity: not known, because {measured['answers']} responses to a prompt are too few"
        )
        return
    keys = list(next(iter(varies.values())))
    sizes = [f"n = {size}" for size in varies]
    rows: list[Sequence[str]] = [("groups that vary", *sizes)]
    for key in keys:
        shares_of_key = [f"{shares[key]:.1%}" for shares in varies.values()]
        rows.append((key, *shares_of_key))
    yield from columns(rows)
    if measured["teaches"] is None:
        yield (
            f"capacity at actor_rollout_ref.rollout.n={measured['size']}: not known, because "
            f"{measured['answers']} responses to a prompt are too few"
        )
    else:
        yield (
            f"capacity at actor_rollout_ref.rollout.n={measured['size']}: "
            f"{measured['teaches']:.1f} of {measured['rewards']} rewards"
        )
