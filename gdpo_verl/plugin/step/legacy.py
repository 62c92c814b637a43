"""Hooks for verl's trainers without a TransferQueue: the checks of a run, and the metrics.

These are the legacy trainer, fully_async and one_step_off. They pass the components to an estimator
themselves, in `non_tensor_batch`. They do not pass the complete configuration, and an estimator
cannot return metrics. Each of them computes the metrics of a step with `compute_data_metrics`
(verl/trainer/ppo/metric_utils.py), from a batch that contains the components.
"""

from __future__ import annotations

from typing import Any

from gdpo_verl.plugin.checks import validation
from gdpo_verl.plugin.checks.checks import Moment, Run, check_run
from gdpo_verl.plugin.step import estimator
from gdpo_verl.plugin.step.trainer import TrainerHooks, given_up_on_error, hooks_of


def init(original: Any, trainer: Any, *args: Any, **kwargs: Any) -> None:
    """Wrap `RayPPOTrainer.__init__`: check the reward function before the first rollout."""
    original(trainer, *args, **kwargs)
    if validation.uses_plugin(trainer.config):
        check_run(Run(trainer.config, trainer), Moment.ROWS, Moment.RETURNED)
    _attach_hooks(trainer)


def before_advantage(original: Any, trainer: Any, *args: Any, **kwargs: Any) -> Any:
    """Wrap `SeparateRayPPOTrainer._fit_compute_advantage`."""
    _attach_hooks(trainer)
    return original(trainer, *args, **kwargs)


def metrics_of(batch: Any) -> dict[str, float]:
    """Compute our metrics of a batch, a `DataProto`; none if the run has no components."""
    trainer = estimator.legacy_trainer.get()
    metrics = dict[str, float]()
    hooks: TrainerHooks | None = getattr(trainer, "gdpo_hooks", None)
    if hooks is None:  # also after `given_up_on_error`
        return metrics
    with given_up_on_error(trainer):
        columns = batch.non_tensor_batch
        rows = estimator.rows_of_columns(hooks.objective, columns["uid"], columns)
        rewards = estimator.joined(rows, batch)
        hooks.check_score(rewards, batch)
        if hooks.objective.config.metrics:
            # Trackers accept only plain numbers.
            metrics = {k: float(v) for k, v in hooks.metrics(rewards).items()}
    return metrics


def _attach_hooks(trainer: Any) -> None:
    """Attach our state to the trainer at the first call, and make it known to the estimator."""
    if not hasattr(trainer, "gdpo_hooks"):
        trainer.gdpo_hooks = hooks_of(trainer.config)
        if trainer.gdpo_hooks is not None:
            run = Run(trainer.config)
            run.objective = trainer.gdpo_hooks.objective
            check_run(run, Moment.KEYS, Moment.CONFIGURATION, Moment.COMPONENTS)
    estimator.legacy_trainer.set(trainer)
