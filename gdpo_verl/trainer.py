"""The seam into verl's trainers: components in, metrics and dumps out.

verl 0.9.1's default trainer calls an estimator without reward components
(verl/trainer/ppo/v1/trainer_base.py, `_compute_advantage`), and its rollout dump leaves them
out (`_log_rollout_data`). The methods are wrapped once, on the base class `PPOTrainer`, so
every trainer mode and every derived trainer has them. What a killed process would make of a
run is in `gdpo_verl.liveness` and `gdpo_verl.saving`.
"""

from __future__ import annotations

import inspect
import logging
import sys
from typing import Any

import torch
from omegaconf import open_dict
from ray.exceptions import RayActorError

from gdpo_verl import checks, diagnostics, estimator, failures, filtering, liveness, queue, saving
from gdpo_verl.batch import RewardBatch
from gdpo_verl.config import Objective
from gdpo_verl.hooks import wrap

logger = logging.getLogger(__name__)

# Relative; verl keeps scores in float32.
SCORE_TOLERANCE = 1e-4


def install(v1: Any) -> None:
    """Wrap the default trainer's base class (module `verl.trainer.ppo.v1`)."""
    trainer = v1.PPOTrainer
    wrap(trainer, "_init_dataloader", _init_dataloader)
    wrap(trainer, "_compute_advantage", _compute_advantage)
    wrap(trainer, "_dump_generations", _dump_generations)
    wrap(trainer, "_save_checkpoint", _save_checkpoint)
    wrap(trainer, "fit", _fit)
    aggregator = sys.modules[trainer.__module__].MetricsAggregator
    wrap(aggregator, "_get_aggregation_type", _aggregation)


def install_legacy(ray_trainer: Any) -> None:
    """Wrap the legacy trainer's constructor (module `verl.trainer.ppo.ray_trainer`)."""
    wrap(ray_trainer.RayPPOTrainer, "__init__", _init_legacy)


class Seam:
    """What one trainer carries from its first row to its last dump."""

    def __init__(self, config: Any, objective: Objective) -> None:
        self.config = config
        self.objective = objective
        self.estimates = checks.is_gdpo(config)
        self.failures: failures.SessionFailures | None = None
        self.score_checked = False
        # Columns of the rollout dump by row key, kept from the advantage to the dump.
        self.dump: dict[str, dict[str, Any]] = {}

    def read(self, batch: Any) -> tuple[RewardBatch, torch.Tensor]:
        """Components and summed scores of the batch's rows, in the order of its keys."""
        fields = _fetch(batch, ["extra_fields", "uid", "rm_scores"])
        infos = self._infos(batch, fields["extra_fields"])
        padding = [bool(tag.get("is_padding", False)) for tag in batch.tags]
        uids = queue.values(fields["uid"])
        rewards = RewardBatch(self.objective, infos, uids, batch.keys, padding)
        scores = torch.stack([row.sum() for row in fields["rm_scores"].unbind()])
        return rewards, scores

    def _infos(self, batch: Any, extra_fields: Any) -> list[dict[str, Any]]:
        model = self.config.reward.reward_model
        if not model.enable or model.enable_resource_pool:
            return queue.reward_infos(extra_fields)
        # A reward model that shares the trainer's devices runs after the rollout, and verl
        # writes what it returns into fields of the queue (`_compute_reward_colocate`).
        names = list(self.objective.keys)
        columns = _fetch(batch, names)
        values = zip(*(queue.values(columns[name]) for name in names), strict=True)
        return [dict(zip(names, row, strict=True)) for row in values]

    def check_score(self, rewards: RewardBatch, scores: torch.Tensor, keys: list[str]) -> None:
        """Warn once when the reward's score is not the weighted sum that GDPO decouples."""
        if self.score_checked:
            return
        self.score_checked = True
        real = rewards.real
        returned = scores.to("cpu", torch.float64)[real]
        difference = (rewards.score()[real] - returned).abs() / returned.abs().clamp(min=1.0)
        if len(difference) and float(difference.max()) > SCORE_TOLERANCE:
            row = int(real[int(difference.argmax())])
            logger.warning(
                "reward: for row %s the score is %.6g, but the weighted sum of the components %s "
                "is %.6g. A GRPO control would optimise something else than GDPO decouples; use "
                "reward.reward_manager.name=%s, or return the sum as 'score'.",
                keys[row],
                float(scores[row]),
                list(self.objective.keys),
                float(rewards.score()[row]),
                checks.MANAGER_NAME,
            )

    def report(
        self, rewards: RewardBatch, token_counts: torch.Tensor, batch: Any, metrics: dict
    ) -> None:
        """Add the metrics of this batch, and keep its columns for the dump."""
        if self.objective.config.metrics:
            keys, groups, options = self.objective.keys, rewards.group_ids, rewards.options
            raw = rewards.raw[rewards.last_rows]
            counted = rewards.rewards[rewards.last_rows]
            metrics.update(
                diagnostics.component_metrics(raw, groups, keys, ranges=self.objective.ranges)
            )
            metrics.update(diagnostics.contribution_metrics(counted, groups, keys, **options))
            metrics.update(diagnostics.collapse_metrics(counted, groups, **options))
            failed = self.failures.take() if self.failures else 0
            metrics.update(diagnostics.coverage_metrics(counted, groups, failed_sessions=failed))
            metrics.update(diagnostics.parse_error_metrics(rewards.parse_errors))
            if self.estimates:
                metrics["gdpo/whiten_shift"] = rewards.whiten_shift(token_counts)
        if self.config.trainer.get("rollout_data_dir", None):
            self._keep_for_dump(rewards, token_counts, batch.keys)

    def dump_columns(self, keys: list[str]) -> dict[str, list[Any]]:
        """Components and both advantages of the rows, None for padding; forgets them."""
        names = [*self.objective.keys, "gdpo_advantage", "grpo_advantage"]
        columns = {name: [self.dump.get(key, {}).get(name) for key in keys] for name in names}
        self.dump.clear()
        return columns

    def _keep_for_dump(
        self, rewards: RewardBatch, token_counts: torch.Tensor, keys: list[str]
    ) -> None:
        gdpo, grpo = rewards.gdpo(token_counts).tolist(), rewards.grpo().tolist()
        raw = [[None if value != value else value for value in row] for row in rewards.raw.tolist()]
        for row in rewards.real.tolist():
            columns = dict(zip(self.objective.keys, raw[row], strict=True))
            self.dump[keys[row]] = columns | {
                "gdpo_advantage": gdpo[row],
                "grpo_advantage": grpo[row],
            }


def _init_dataloader(original: Any, trainer: Any) -> None:
    config, buffer = trainer.config, trainer.replay_buffer
    if checks.is_gdpo(config):
        checks.check_machine(config)
    seam = _seam(config)
    if checks.is_gdpo(config) or seam is not None:
        _fix_seed(config)
    original(trainer)
    trainer.gdpo_seam = seam
    filtering.filter_by_components(buffer, trainer.gdpo_seam and trainer.gdpo_seam.objective)
    if checks.is_gdpo(config):
        checks.check_data_sources(config, trainer.train_dataset, trainer.val_dataset)
        returned = checks.probe_reward(config, trainer.tokenizer, trainer.train_dataset)
        checks.objective_of(config, returned)
    if trainer.gdpo_seam is not None:
        trainer.gdpo_seam.failures = failures.SessionFailures(
            buffer, config.actor_rollout_ref.rollout.n, stop=checks.is_gdpo(config)
        )


def _fix_seed(config: Any) -> None:
    # Without data.seed, verl draws other rows for data.train_max_samples at each start, also when
    # it resumes (verl/utils/dataset/rl_dataset.py). With this one they stay, and so does the order
    # in which it shuffles without a seed, by a new generator (verl/trainer/ppo/utils.py).
    if config.data.get("seed") is None:
        with open_dict(config):
            config.data.seed = torch.Generator().initial_seed()


def _seam(config: Any) -> Seam | None:
    objective = checks.objective_of(config)
    return None if objective is None else Seam(config, objective)


def _compute_advantage(original: Any, trainer: Any, batch: Any, metrics: dict[str, Any]) -> Any:
    if not hasattr(trainer, "gdpo_seam"):  # a derived trainer with a data loader of its own
        trainer.gdpo_seam = _seam(trainer.config)
    seam: Seam | None = trainer.gdpo_seam
    if seam is None:
        return original(trainer, batch, metrics)
    if not seam.estimates:
        return _report_only(original, trainer, seam, batch, metrics)
    rewards, scores = seam.read(batch)
    seam.check_score(rewards, scores, batch.keys)
    with estimator.reward_batch(rewards):
        result = original(trainer, batch, metrics)
    seam.report(rewards, _token_counts(batch), batch, metrics)
    return result


def _report_only(
    original: Any, trainer: Any, seam: Seam, batch: Any, metrics: dict[str, Any]
) -> Any:
    """Metrics and dumps beside another estimator, which they must not stop."""
    result = original(trainer, batch, metrics)
    try:
        rewards, scores = seam.read(batch)
        seam.check_score(rewards, scores, batch.keys)
        seam.report(rewards, _token_counts(batch), batch, metrics)
    except Exception:
        logger.warning("no more metrics for the reward components in this run", exc_info=True)
        trainer.gdpo_seam = None
    return result


def _token_counts(batch: Any) -> torch.Tensor:
    # Read after upstream's call: rollout correction may have rewritten the mask.
    mask = _fetch(batch, ["response_mask"])["response_mask"]
    return torch.stack([row.sum() for row in mask.unbind()])


def _dump_generations(original: Any, trainer: Any, *args: Any, **kwargs: Any) -> None:
    arguments = inspect.signature(original).bind(trainer, *args, **kwargs).arguments
    seam: Seam | None = getattr(trainer, "gdpo_seam", None)
    columns = arguments["reward_extra_infos_dict"]
    # Validation is dumped the same way, and brings the components itself.
    if seam is not None and not seam.dump.keys().isdisjoint(columns.get("uid", [])):
        arguments["reward_extra_infos_dict"] = columns | seam.dump_columns(columns["uid"])
    original(**arguments)


def _save_checkpoint(original: Any, trainer: Any) -> None:
    if getattr(trainer, "gdpo_seam", None) is None:
        original(trainer)
    else:
        saving.save(original, trainer)


def _fit(original: Any, trainer: Any, *args: Any, **kwargs: Any) -> Any:
    if getattr(trainer, "gdpo_seam", None) is None:
        return original(trainer, *args, **kwargs)
    watch = liveness.Watch()
    liveness.check_at_each_poll(trainer.replay_buffer, watch)
    watch.start()
    try:
        result = original(trainer, *args, **kwargs)
    except RayActorError as error:
        if death := watch.wait_for_death():
            raise RuntimeError(death) from error
        raise
    watch.stop()
    return result


def _aggregation(original: Any, aggregator: Any, metric_name: str) -> Any:
    # verl decides by substrings of the whole name, so a component named "summary" would be summed
    # over mini-batches (verl/trainer/ppo/v1/utils.py, `_get_aggregation_type`).
    if not metric_name.startswith("gdpo/"):
        return original(aggregator, metric_name)
    return {"min": "min", "max": "max"}.get(metric_name.rpartition("/")[2], "weighted_avg")


def _init_legacy(original: Any, trainer: Any, *args: Any, **kwargs: Any) -> None:
    original(trainer, *args, **kwargs)
    if checks.is_gdpo(trainer.config):
        returned = checks.probe_reward(trainer.config, trainer.tokenizer, trainer.train_dataset)
        estimator.legacy_objective.set(checks.objective_of(trainer.config, returned))


def _fetch(batch: Any, fields: list[str]) -> Any:
    return queue.fetch(batch.keys, batch.partition_id, fields)
