"""The hooks in verl's default trainer: they pass components in, and add metrics and dump columns.

The default trainer of verl 0.9.1 calls an estimator without reward components
(verl/trainer/ppo/v1/trainer_base.py, `_compute_advantage`), and its rollout dump leaves them out
(`_log_rollout_data`). The methods of the base class `PPOTrainer` are wrapped, so every trainer mode
and every derived trainer has the hooks. The hooks do not change a run that does not use the
plug-in. In a run with another estimator, an error in this module is logged once, and the hooks are
switched off.

For crashes of processes see `gdpo_verl.plugin.watch.liveness` and `gdpo_verl.lab.run.checkpoints`.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from omegaconf import open_dict
from ray.exceptions import RayActorError

from gdpo_verl import diagnostics, names
from gdpo_verl.config import Objective
from gdpo_verl.plugin.checks import reward, validation
from gdpo_verl.plugin.checks.checks import Moment, Run, check_run
from gdpo_verl.plugin.checks.reward_function import MANAGER_NAME
from gdpo_verl.plugin.step import aggregation, estimator, queue, replay_buffer
from gdpo_verl.plugin.step.batch import RewardBatch, RewardRows
from gdpo_verl.plugin.step.dumps import Dump, DumpSettings, log_rollout_data
from gdpo_verl.plugin.step.estimator import AdvantageStep
from gdpo_verl.plugin.watch import checkpoint, liveness
from gdpo_verl.reward_dicts import RewardErrors
from gdpo_verl.upstream.hooks import wrap

logger = logging.getLogger(__name__)


def install(v1: Any) -> None:
    """Wrap the methods of the default trainer's base class; `v1` is `verl.trainer.ppo.v1`."""
    trainer = v1.PPOTrainer
    wrap(trainer, "_init_dataloader", _init_dataloader)
    wrap(trainer, "_compute_advantage", _compute_advantage)
    wrap(trainer, "_log_rollout_data", log_rollout_data)
    wrap(trainer, "_dump_generations", _dump_generations)
    wrap(trainer, "_save_checkpoint", _save_checkpoint)
    wrap(trainer, "fit", _fit)
    base = sys.modules[trainer.__module__]
    wrap(base, "compute_advantage_for_multi_trajectories", estimator.capture_inputs)
    aggregation.install(base.MetricsAggregator)


def _with_hooks(wrapper: Callable[..., Any]) -> Callable[..., Any]:
    """Use the wrapper only if the trainer has our hooks; otherwise call verl's method alone."""

    def wrapped(original: Any, trainer: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(trainer, "gdpo_hooks", None) is None:
            return original(trainer, *args, **kwargs)
        return wrapper(original, trainer, *args, **kwargs)

    return wrapped


class TrainerHooks:
    """Our state in one trainer, from its first row to its last dump."""

    def __init__(self, config: Any, objective: Objective) -> None:
        self.config = config
        self.estimates = validation.is_gdpo(config)
        # verl's own estimators give each response a single advantage, so per-turn components are
        # summed for them.
        self.objective = objective if self.estimates else objective.of_answers()
        self.failures: replay_buffer.SessionFailures | None = None
        self.dump = Dump(self.objective)
        self._failures_warned = self._score_checked = False

    def rows(self, batch: Any, global_step: int) -> RewardRows:
        """Fetch the rewards of the rows of a batch, in the order of the batch's keys."""
        model = self.config.reward.reward_model
        if model.enable and not model.enable_resource_pool:
            # The reward model shares the trainer's devices and runs after the rollout. verl writes
            # its results into fields of the queue (`_compute_reward_colocate`).
            infos = queue.columns(batch.keys, batch.partition_id, self.objective.columns)
        else:
            infos = queue.reward_infos(batch.keys, batch.partition_id)
        padding = [bool(tag.get("is_padding", False)) for tag in batch.tags]
        masks = None
        if self.objective.masks_key:
            masks = queue.response_masks(batch.keys, batch.partition_id)
        return RewardRows(self.objective, infos, batch.keys, padding, global_step, masks)

    def report(self, step: AdvantageStep, metrics: dict[str, Any]) -> None:
        """Add the metrics of this step, and keep the columns for its dump."""
        wants_metrics = self.objective.config.metrics
        wants_dump = DumpSettings.of(self.config.trainer).has(step.rows.global_step)
        batch = step.batch
        if batch is None and (wants_metrics or wants_dump):
            # Another estimator was called, so the batch has not been computed yet.
            batch = estimator.joined(step.rows, step.data)
        if batch is None:
            return
        if step.data is not None:
            self.check_score(batch, step.data)
        failed = self._failed_sessions(len(batch.infos))
        if wants_metrics:
            metrics.update(self.metrics(batch, failed))
        if wants_dump:
            self.dump.keep(batch)

    def metrics(self, batch: RewardBatch, failed_sessions: int = 0) -> dict[str, float]:
        """Compute the metrics of a batch."""
        metrics = diagnostics.batch_metrics(
            batch.decomposition,
            self.objective,
            failed_sessions=failed_sessions,
            trains=self.estimates,
            by_turn=batch.by_turn,
        )
        for key, lists in batch.turn_lists.items():
            metrics |= diagnostics.turn_metrics(key, lists)
        metrics |= diagnostics.parse_error_metrics(batch.parse_errors)
        metrics[names.REWARD_ERRORS.key] = batch.error_share
        return metrics

    def _failed_sessions(self, rows: int) -> int:
        """Count the sessions that failed since the last batch, and warn at the first failure."""
        failed = self.failures.take() if self.failures else 0
        if failed and not self._failures_warned:
            self._failures_warned = True
            logger.warning(
                "%d of %d rollout sessions failed and are left out (metric %s), because the reward "
                "function or the agent loop raised an error. The last error: %s.",
                failed,
                failed + rows,
                names.FAILED_SESSIONS.key,
                replay_buffer.last_error(),
            )
        return failed

    def check_score(self, batch: RewardBatch, data: Any) -> None:
        """Warn once if the score is not the weighted sum of the components.

        Args:
          batch: the batch.
          data: verl's `DataProto` of the same rows.
        """
        if self._score_checked:
            return
        self._score_checked = True
        # verl stores the score of a row at its last token. The other tokens have 0.
        scores = data.batch["token_level_scores"].sum(dim=1).to("cpu", torch.float64)
        real = batch.sessions.real
        sums = batch.score()
        difference = (sums[real] - scores[real]).abs() / scores[real].abs().clamp(min=1.0)
        if len(difference) and float(difference.max()) > reward.SCORE_TOLERANCE:
            row = int(real[int(difference.argmax())])
            logger.warning(
                "reward: for row %s the score is %.6g, but the weighted sum of the components %s "
                "is %.6g. A GRPO baseline would optimise something else than GDPO. Use "
                "reward.reward_manager.name=%s, or return the sum as 'score'.",
                batch.rows.keys[row],
                float(scores[row]),
                list(self.objective.keys),
                float(sums[row]),
                MANAGER_NAME,
            )


def _init_dataloader(original: Any, trainer: Any, *args: Any, **kwargs: Any) -> Any:
    """Check the run, and attach our hooks to the trainer."""
    config = trainer.config
    trainer.gdpo_hooks = None
    if not validation.uses_plugin(config):
        return original(trainer, *args, **kwargs)
    run = Run(config, trainer)
    check_run(run, Moment.FILES, Moment.COMPONENTS)
    objective = run.objective
    hooks = None if objective is None else TrainerHooks(config, objective)
    if hooks is not None and config.data.get("seed") is None:
        # Without data.seed, verl draws different rows for data.train_max_samples at each start,
        # also when it resumes a run (verl/utils/dataset/rl_dataset.py). With this seed the rows
        # stay the same. The order of the rows is unchanged, because verl uses a new generator
        # without a seed, which has the same initial seed (verl/trainer/ppo/utils.py).
        with open_dict(config):
            config.data.seed = torch.Generator().initial_seed()
    result = original(trainer, *args, **kwargs)
    trainer.gdpo_hooks = hooks
    buffer = getattr(trainer, "replay_buffer", None)
    # The filter does not depend on the estimator, so that a GDPO run and its baseline learn from
    # the same groups.
    replay_buffer.filter_by_components(buffer, objective, lambda: trainer.global_steps)
    check_run(run, Moment.ROWS, Moment.RETURNED)
    if hooks is not None and buffer is not None:
        hooks.failures = replay_buffer.SessionFailures(
            buffer, config.actor_rollout_ref.rollout.n, stop=hooks.estimates
        )
    return result


def hooks_of(config: Any) -> TrainerHooks | None:
    """Return our state for a run, or None if the run has no components."""
    objective = validation.objective_of(config) if validation.uses_plugin(config) else None
    return None if objective is None else TrainerHooks(config, objective)


@contextlib.contextmanager
def given_up_on_error(trainer: Any) -> Iterator[None]:
    """Log an error in this context, and continue the run without our hooks.

    The error is raised nevertheless if the run cannot do without the hooks: if the estimator is
    GDPO, if there are derived components, or if our reward manager could not compute a score.
    """
    try:
        yield
    except RewardErrors:
        raise
    except Exception as error:
        # A ValueError means that a row lacks components. Our reward manager has then kept the score
        # of the reward function, which is not the weighted sum.
        sums = trainer.config.reward.reward_manager.name == MANAGER_NAME
        no_score = sums and isinstance(error, ValueError)
        hooks = trainer.gdpo_hooks
        if hooks is None or hooks.estimates or hooks.objective.config.derived or no_score:
            raise
        text = "this run has no more metrics for the reward components, because of an error"
        logger.warning(text, exc_info=True)
        trainer.gdpo_hooks = None


def _compute_advantage(original: Any, trainer: Any, *args: Any, **kwargs: Any) -> Any:
    if not hasattr(trainer, "gdpo_hooks"):  # a derived trainer with its own data loader
        trainer.gdpo_hooks = hooks_of(trainer.config)
    if trainer.gdpo_hooks is None:
        return original(trainer, *args, **kwargs)
    return _with_components(original, trainer, trainer.gdpo_hooks, *args, **kwargs)


@queue.collector_paused()
def _with_components(
    original: Any, trainer: Any, hooks: TrainerHooks, batch: Any, metrics: dict[str, Any]
) -> Any:
    rows = None
    with given_up_on_error(trainer):
        rows = hooks.rows(batch, getattr(trainer, "global_steps", 0))
    if rows is None:
        return original(trainer, batch, metrics)
    step = AdvantageStep(rows)
    with estimator.advantage_step(step):
        result = original(trainer, batch, metrics)
    if hooks.objective.config.derived and not hooks.config.algorithm.use_kl_in_reward:
        # verl itself writes this tensor back only with a KL penalty. Without this, verl's metrics
        # would use the score of the reward function, which lacks the derived components.
        name = "token_level_rewards"
        lengths = [len(mask) for mask in rows.masks or ()]
        table = step.data.batch[name]
        queue.put_response_tokens(batch.keys, batch.partition_id, name, table, lengths)
    with given_up_on_error(trainer):
        hooks.report(step, metrics)
    return result


@_with_hooks
def _dump_generations(
    original: Any,
    trainer: Any,
    inputs: Any,
    outputs: Any,
    gts: Any,
    scores: Any,
    reward_extra_infos_dict: dict[str, Any],
    *args: Any,
    **kwargs: Any,
) -> Any:
    # The parameter has verl's name, because verl may pass it by keyword.
    infos = reward_extra_infos_dict
    with given_up_on_error(trainer):
        infos = trainer.gdpo_hooks.dump.move_into(infos)
    return original(trainer, inputs, outputs, gts, scores, infos, *args, **kwargs)


_save_checkpoint = _with_hooks(checkpoint.save)


@_with_hooks
def _fit(original: Any, trainer: Any, *args: Any, **kwargs: Any) -> Any:
    watch = liveness.ActorWatch()
    liveness.check_at_each_poll(trainer.replay_buffer, watch)
    watch.start()
    try:
        result = original(trainer, *args, **kwargs)
    except RayActorError as error:
        death = watch.wait_for_death()
        if death:
            raise RuntimeError(death) from error
        raise
    watch.stop()  # from now on verl ends its actors itself
    return result
