"""The seam into verl's trainers: components in, metrics and dumps out.

verl 0.9.1's default trainer calls an estimator without reward components
(verl/trainer/ppo/v1/trainer_base.py, `_compute_advantage`), and its rollout dump leaves them
out (`_log_rollout_data`). The methods are wrapped once, on the base class `PPOTrainer`, so
every trainer mode and every derived trainer has them. A run that asks for nothing of ours passes
through untouched; in a run with another estimator, what fails here is logged once and given up.
For crashes see `gdpo_verl.plugin.liveness` and `gdpo_verl.run.checkpoints`.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from omegaconf import open_dict
from ray.exceptions import RayActorError

from gdpo_verl import diagnostics
from gdpo_verl.advantage import GDPO, Decomposition, MaskedRows
from gdpo_verl.config import Objective
from gdpo_verl.hooks import wrap
from gdpo_verl.plugin import estimator, liveness, queue, replay_buffer, validation
from gdpo_verl.plugin.batch import RewardBatch
from gdpo_verl.plugin.dumps import DumpSettings, log_rollout_data
from gdpo_verl.plugin.estimator import AdvantageStep
from gdpo_verl.run import checkpoints

logger = logging.getLogger(__name__)

# Relative; verl keeps scores in float32.
SCORE_TOLERANCE = 1e-4


def install(v1: Any) -> None:
    """Wrap the default trainer's base class (module `verl.trainer.ppo.v1`)."""
    trainer = v1.PPOTrainer
    wrap(trainer, "_init_dataloader", _init_dataloader)
    wrap(trainer, "_compute_advantage", _compute_advantage)
    wrap(trainer, "_log_rollout_data", log_rollout_data)
    wrap(trainer, "_dump_generations", _dump_generations)
    wrap(trainer, "_save_checkpoint", _save_checkpoint)
    wrap(trainer, "fit", _fit)
    base = sys.modules[trainer.__module__]
    wrap(base, "compute_advantage_for_multi_trajectories", estimator.see_batch)
    wrap(base.MetricsAggregator, "_get_aggregation_type", _aggregation)
    wrap(base.MetricsAggregator, "_get_metric_weight", _metric_weight)
    wrap(base.MetricsAggregator, "_aggregate_single_metric", _aggregate)


def install_legacy(ray_trainer: Any) -> None:
    """Wrap the legacy trainer's constructor (module `verl.trainer.ppo.ray_trainer`)."""
    wrap(ray_trainer.RayPPOTrainer, "__init__", _init_legacy)


class Seam:
    """The state of one trainer, from its first row to its last dump."""

    def __init__(self, config: Any, objective: Objective) -> None:
        self.config = config
        self.objective = objective
        self.estimates = validation.is_gdpo(config)
        self.failures: replay_buffer.SessionFailures | None = None
        self.dump = Dump(objective)
        self._score_checked = False

    def step(self, batch: Any) -> AdvantageStep:
        """The components of the batch's rows, in the order of its keys: all that is fetched."""
        padding = [bool(tag.get("is_padding", False)) for tag in batch.tags]
        return AdvantageStep(self.objective, self._infos(batch), batch.keys, padding)

    def _infos(self, batch: Any) -> list[dict[str, Any]]:
        model = self.config.reward.reward_model
        if not model.enable or model.enable_resource_pool:
            return queue.reward_infos(batch.keys, batch.partition_id)
        # A reward model that shares the trainer's devices runs after the rollout, and verl
        # writes what it returns into fields of the queue (`_compute_reward_colocate`).
        return queue.columns(batch.keys, batch.partition_id, self.objective.keys)

    def report(self, step: AdvantageStep, global_step: int, metrics: dict[str, Any]) -> None:
        """Add the metrics of this step, and keep its columns for the dump."""
        wants_metrics = self.objective.config.metrics
        wants_dump = DumpSettings.of(self.config.trainer).has(global_step)
        if step.decomposition is None and (wants_metrics or wants_dump):
            step.decompose(_token_counts(step) if wants_dump else None)
        if step.batch is None or step.decomposition is None:
            return
        self._check_score(step, step.batch)
        if wants_metrics:
            metrics.update(self._metrics(step.batch, step.decomposition))
        if wants_dump:
            self.dump.keep(step.batch, step.decomposition, step.row_keys, global_step)

    def _metrics(self, batch: RewardBatch, decomposition: Decomposition) -> dict[str, float]:
        keys, groups = self.objective.keys, decomposition.groups
        failed = self.failures.take() if self.failures else 0
        metrics = diagnostics.component_metrics(
            decomposition.raw, groups, keys, ranges=self.objective.ranges
        )
        metrics |= diagnostics.contribution_metrics(decomposition, keys)
        metrics |= diagnostics.collapse_metrics(decomposition)
        metrics |= diagnostics.coverage_metrics(
            decomposition.rewards, groups, failed_sessions=failed
        )
        metrics |= diagnostics.parse_error_metrics(batch.parse_errors)
        metrics |= diagnostics.outcome_metrics(decomposition, self.objective.outcome_column)
        if self.estimates:
            chosen = decomposition.chosen
            metrics["gdpo/whiten_shift"] = -chosen.mean * chosen.factor
            metrics |= diagnostics.variant_metrics(decomposition)
        if self.objective.config.schedule:
            weights = decomposition.weights.tolist()
            metrics |= {f"gdpo/{key}/weight": w for key, w in zip(keys, weights, strict=True)}
        return metrics

    def _check_score(self, step: AdvantageStep, batch: RewardBatch) -> None:
        """Warn once when the reward's score is not the weighted sum that GDPO decouples."""
        if self._score_checked or step.scores is None:
            return
        self._score_checked = True
        scores = step.scores.sum(dim=1).to("cpu", torch.float64)
        real, sums = batch.real, batch.score()
        difference = (sums[real] - scores[real]).abs() / scores[real].abs().clamp(min=1.0)
        if len(difference) and float(difference.max()) > SCORE_TOLERANCE:
            row = int(real[int(difference.argmax())])
            logger.warning(
                "reward: for row %s the score is %.6g, but the weighted sum of the components %s "
                "is %.6g. A GRPO control would optimise something else than GDPO decouples; use "
                "reward.reward_manager.name=%s, or return the sum as 'score'.",
                step.row_keys[row],
                float(scores[row]),
                list(self.objective.keys),
                float(sums[row]),
                validation.MANAGER_NAME,
            )


class Dump:
    """The columns that a rollout dump gets: components and advantages of each row.

    These are GDPO's, GRPO's, and those of a variant where one is chosen.

    verl dumps a step's rows together when all its mini-batches are done. What a trainer never
    dumps is forgotten at its next step.
    """

    def __init__(self, objective: Objective) -> None:
        variant = objective.config.estimator
        # By the chosen one's name; a user's function may have any.
        self.variant = "" if variant is GDPO else f"{variant.name}_advantage"
        self.names = [*objective.keys, "gdpo_advantage", "grpo_advantage"]
        self.names += [self.variant] if self.variant else []
        self._step = -1
        self._tables: list[torch.Tensor] = []
        self._rows: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def keep(
        self,
        batch: RewardBatch,
        decomposition: Decomposition,
        row_keys: Sequence[str],
        global_step: int,
    ) -> None:
        """Keep the rows of one mini-batch of a step."""
        if global_step != self._step:
            self.clear()
            self._step = global_step
        advantages = [batch.to_rows(decomposition.gdpo), batch.to_rows(decomposition.grpo)]
        if self.variant:
            advantages.append(batch.to_rows(decomposition.advantage))
        table = torch.cat([batch.raw, torch.stack(advantages, dim=1)], dim=1)[batch.real]
        for row, place in enumerate(batch.real.tolist(), start=len(self._rows)):
            self._rows[row_keys[place]] = row
        self._tables.append(table)

    def columns(self, row_keys: list[str]) -> dict[str, list[Any]]:
        """The columns of these rows, None for padding and what is not scored; empty for others."""
        if self._rows.keys().isdisjoint(row_keys):
            return {}
        nothing = torch.full((1, len(self.names)), torch.nan, dtype=torch.float64)
        table = torch.cat([*self._tables, nothing])[
            [self._rows.get(key, len(self._rows)) for key in row_keys]
        ]
        values = table.numpy().astype(object)
        values[table.isnan().numpy()] = None
        return {name: column.tolist() for name, column in zip(self.names, values.T, strict=True)}

    def clear(self) -> None:
        """Forget all rows."""
        self._tables.clear()
        self._rows.clear()


def _init_dataloader(original: Any, trainer: Any, *args: Any, **kwargs: Any) -> Any:
    config = trainer.config
    trainer.gdpo_seam = None
    if not validation.asks(config):
        return original(trainer, *args, **kwargs)
    if validation.is_gdpo(config):
        validation.check_machine(config)
    seam = _seam(config)
    if seam is not None:
        _fix_seed(config)
    result = original(trainer, *args, **kwargs)
    trainer.gdpo_seam = seam
    buffer = getattr(trainer, "replay_buffer", None)
    replay_buffer.filter_by_components(buffer, None if seam is None else seam.objective)
    if validation.is_gdpo(config):
        validation.check_data_sources(config, trainer.train_dataset, trainer.val_dataset)
        returned = validation.probe_reward(config, trainer.tokenizer, trainer.train_dataset)
        validation.objective_of(config, returned)
    if seam is not None and buffer is not None:
        seam.failures = replay_buffer.SessionFailures(
            buffer, config.actor_rollout_ref.rollout.n, stop=seam.estimates
        )
    return result


def _fix_seed(config: Any) -> None:
    # Without data.seed, verl draws other rows for data.train_max_samples at each start, also when
    # it resumes (verl/utils/dataset/rl_dataset.py). With this one they stay, and so does the order
    # in which it shuffles without a seed, by a new generator (verl/trainer/ppo/utils.py).
    if config.data.get("seed") is None:
        with open_dict(config):
            config.data.seed = torch.Generator().initial_seed()


def _seam(config: Any) -> Seam | None:
    objective = validation.objective_of(config) if validation.asks(config) else None
    return None if objective is None else Seam(config, objective)


@contextlib.contextmanager
def _given_up_on_error(trainer: Any) -> Iterator[None]:
    """Under another estimator, log what is raised in this context and go on without the seam."""
    try:
        yield
    except Exception:
        if trainer.gdpo_seam is None or trainer.gdpo_seam.estimates:
            raise
        logger.warning("no more metrics for the reward components in this run", exc_info=True)
        trainer.gdpo_seam = None


def _compute_advantage(original: Any, trainer: Any, *args: Any, **kwargs: Any) -> Any:
    if not hasattr(trainer, "gdpo_seam"):  # a derived trainer with a data loader of its own
        trainer.gdpo_seam = _seam(trainer.config)
    if trainer.gdpo_seam is None:
        return original(trainer, *args, **kwargs)
    return _with_components(original, trainer, trainer.gdpo_seam, *args, **kwargs)


def _with_components(
    original: Any, trainer: Any, seam: Seam, batch: Any, metrics: dict[str, Any]
) -> Any:
    step = None
    with _given_up_on_error(trainer):
        step = seam.step(batch)
    if step is None:
        return original(trainer, batch, metrics)
    step.global_step = getattr(trainer, "global_steps", 0)
    with estimator.advantage_step(step):
        result = original(trainer, batch, metrics)
    with _given_up_on_error(trainer):
        seam.report(step, step.global_step, metrics)
    return result


def _token_counts(step: AdvantageStep) -> torch.Tensor:
    assert step.response_mask is not None
    return MaskedRows(step.response_mask, len(step.row_keys), torch.float32).counts


# Of verl's `_dump_generations(self, inputs, outputs, gts, scores, reward_extra_infos_dict, …)`.
_COLUMNS, _COLUMNS_PLACE = "reward_extra_infos_dict", 4


def _dump_generations(original: Any, trainer: Any, *args: Any, **kwargs: Any) -> Any:
    seam: Seam | None = getattr(trainer, "gdpo_seam", None)
    if seam is not None and len(seam.dump):
        with _given_up_on_error(trainer):
            args, kwargs = _with_columns(seam.dump, args, kwargs)
    return original(trainer, *args, **kwargs)


def _with_columns(
    dump: Dump, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Add the dump's columns to the arguments; validation's dump has its own."""
    place = _COLUMNS_PLACE
    given = kwargs[_COLUMNS] if _COLUMNS in kwargs else args[place]
    columns = dump.columns(given.get("uid", []))
    if not columns:
        return args, kwargs
    dump.clear()
    if _COLUMNS in kwargs:
        return args, kwargs | {_COLUMNS: given | columns}
    return (*args[:place], given | columns, *args[place + 1 :]), kwargs


def _save_checkpoint(original: Any, trainer: Any, *args: Any, **kwargs: Any) -> None:
    if getattr(trainer, "gdpo_seam", None) is None:
        original(trainer, *args, **kwargs)
    else:
        checkpoints.save(original, trainer, *args, **kwargs)


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


def _metric_weight(
    original: Any, aggregator: Any, metric_name: str, metrics: dict[str, Any], sample_count: int
) -> Any:
    # verl weighs each mean by the rows of its mini-batch (`_get_metric_weight`), also one that is
    # taken over few of them.
    value = metrics.get(metric_name)
    if isinstance(value, diagnostics.Weighted):
        return value.weight
    return original(aggregator, metric_name, metrics, sample_count)


def _aggregate(original: Any, aggregator: Any, metric_name: str, values: list[float]) -> Any:
    # verl leaves a mini-batch without the metric out of its mean (`_aggregate_single_metric`); a
    # code that no answer of it has is 0 there.
    if not metric_name.startswith(diagnostics.PARSE_ERROR_CODE):
        return original(aggregator, metric_name, values)
    weights = aggregator.metric_weights
    rows = sum(weights[diagnostics.PARSE_ERROR_SHARE])
    return sum(v * w for v, w in zip(values, weights[metric_name], strict=True)) / rows


def _init_legacy(original: Any, trainer: Any, *args: Any, **kwargs: Any) -> None:
    original(trainer, *args, **kwargs)
    if validation.is_gdpo(trainer.config):
        returned = validation.probe_reward(trainer.config, trainer.tokenizer, trainer.train_dataset)
        validation.check_schedule(trainer.config, legacy=True)
        estimator.legacy_objective.set(validation.objective_of(trainer.config, returned))
