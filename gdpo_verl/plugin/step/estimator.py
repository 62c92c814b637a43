"""The function that verl calls for ``algorithm.adv_estimator=gdpo``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gdpo_verl.advantage import MaskedRows
from gdpo_verl.advantage.checks import result_dtype
from gdpo_verl.config import GdpoConfig, Objective
from gdpo_verl.config.wording import NEEDS_TRAINER_HOOKS
from gdpo_verl.plugin.step.batch import RewardBatch, RewardRows
from gdpo_verl.upstream.row_key import RowKey


@dataclass
class AdvantageStep:
    """The data that the trainer hooks and the estimator exchange during one call of verl.

    verl's default trainer passes no reward components to an estimator. The hooks pass them here,
    and get back the data that verl has read from its queue.

    Attributes:
      rows: the rows with their rewards, from the hooks.
      data: verl's `DataProto` of the rows, as verl's own function got it.
      batch: the batch, if `gdpo` or the derived components needed it.
    """

    rows: RewardRows
    data: Any = None
    batch: RewardBatch | None = None


_step: ContextVar[AdvantageStep | None] = ContextVar("gdpo_verl_step", default=None)
# A trainer without a TransferQueue does not tell the estimator which reward function returned the
# components. Therefore `gdpo_verl.plugin.step.legacy` stores the trainer of this process here.
legacy_trainer: ContextVar[Any] = ContextVar("gdpo_verl_legacy_trainer", default=None)


@contextmanager
def advantage_step(step: AdvantageStep) -> Iterator[None]:
    """Let `gdpo` read and fill this `step` within the context."""
    token = _step.set(step)
    try:
        yield
    finally:
        _step.reset(token)


def capture_inputs(original: Any, data: Any, *args: Any, **kwargs: Any) -> Any:
    """Store the data that verl has read, for the hooks of a run with another estimator.

    This wraps `compute_advantage_for_multi_trajectories` (verl/trainer/ppo/v1/utils.py).
    """
    step = _step.get()
    if step is not None and step.data is None:
        step.data = data
        if step.rows.objective.config.derived:
            step.batch = joined(step.rows, data)
            add_derived(step.batch, data)
    return original(data, *args, **kwargs)


def joined(rows: RewardRows, data: Any) -> RewardBatch:
    """Create the batch of the rows if verl has not called our estimator.

    Args:
      rows: the rows with their rewards.
      data: verl's `DataProto` of the rows.

    Raises:
      RewardErrors: too many rows have no reward.
    """
    mask = data.batch["response_mask"]
    batch = RewardBatch.of(rows, data.non_tensor_batch["uid"], mask.sum(dim=1), mask)
    batch.check_errors()
    return batch


def add_derived(batch: RewardBatch, data: Any) -> None:
    """Add the derived components to the score that verl's own estimators normalise.

    verl scores a response before its group is complete (verl/trainer/ppo/v1/trainer_base.py:
    `_compute_advantage` gets `token_level_scores` from the reward loop). Therefore this function
    adds the contribution of the derived components to the score at the last token of each row. It
    does so in both tensors that verl's estimators read.

    Args:
      batch: the batch.
      data: verl's `DataProto` of the same rows. Its tensors are replaced and not changed in place,
        because verl uses the same tensor under several names.
    """
    assert batch.rows.masks is not None
    added = batch.score() - batch.returned_score()
    last = torch.tensor([max(len(mask), 1) - 1 for mask in batch.rows.masks])
    places = torch.arange(len(last))
    for name in ("token_level_scores", "token_level_rewards"):
        tensor = data.batch[name].clone()
        column = last.to(tensor.device).clamp(max=tensor.shape[1] - 1)
        tensor[places, column] += added.to(tensor)
        data.batch[name] = tensor


def gdpo(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: Sequence[Any] | None = None,
    config: Any = None,
    non_tensor_batch: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """Compute GDPO as a verl advantage estimator (see verl/trainer/ppo/core_algos.py).

    In the default trainer the components come from the trainer hooks. Other trainers pass them in
    `non_tensor_batch`, which has an array for each key that the reward function returned.

    Args:
      token_level_rewards: shape (B, T), in reward units. Only the shape and the dtype are used.
      response_mask: shape (B, T), 0 or 1.
      index: the uid of each row.
      config: verl's `algorithm` node.
      non_tensor_batch: arrays of length B.

    Returns:
      The advantages and the returns, which are the same tensor: shape (B, T).

    Raises:
      ValueError: a component is missing or not a number. The error names key and row.
      RuntimeError: the function was called without components.
    """
    tokens = MaskedRows(response_mask, len(token_level_rewards), result_dtype(token_level_rewards))
    step = _step.get() or AdvantageStep(_rows_of_arguments(index, config, non_tensor_batch))
    assert index is not None  # verl's default trainer always has uids
    if step.batch is None:
        step.batch = RewardBatch.of(step.rows, index, tokens.counts, response_mask)
        step.batch.check_errors()
    on_tokens = step.batch.on_tokens(tokens)
    return on_tokens, on_tokens


def _rows_of_arguments(
    index: Sequence[Any] | None, config: Any, non_tensor_batch: Mapping[str, Any] | None
) -> RewardRows:
    """Return the rows for a trainer that passes the components itself.

    verl's legacy trainer does this, and so do other trainers that call its `compute_advantage`. See
    `gdpo_verl.plugin.step.legacy`.
    """
    hooks = getattr(legacy_trainer.get(), "gdpo_hooks", None)
    objective: Objective | None = getattr(hooks, "objective", None)
    if index is None or non_tensor_batch is None or (objective is None and config is None):
        raise RuntimeError(
            "algorithm.adv_estimator=gdpo: expected the reward components, found none: gdpo-verl "
            "does not know this trainer. Run `gdpo-verl doctor`. A trainer derived from verl's "
            "PPOTrainer works when it calls its _compute_advantage. Another trainer works when it "
            "passes config and non_tensor_batch to verl's compute_advantage."
        )
    if objective is None:
        # The reward function is not known here, and neither is its declaration.
        objective = GdpoConfig.from_algorithm(config).resolve((), list(non_tensor_batch))
    return rows_of_columns(objective, index, non_tensor_batch)


def rows_of_columns(
    objective: Objective, uids: Sequence[Any], columns: Mapping[str, Any]
) -> RewardRows:
    """Return the rows of a batch that has no padding, and one output for each session.

    Args:
      objective: the components.
      uids: the uid of each row.
      columns: arrays of length B. Only the arrays of components are read.
    """
    if objective.masks_key:
        raise ValueError(f"{objective.masks_key}: {NEEDS_TRAINER_HOOKS}")
    present = [key for key in objective.columns if key in columns]
    infos = []
    for row in range(len(uids)):
        infos.append({key: columns[key][row] for key in present})
    keys = [str(RowKey(str(uid), row, 0)) for row, uid in enumerate(uids)]
    return RewardRows(objective, infos, keys)


def unsupported(reason: str) -> Any:
    """Return an estimator that raises an error with the reason why it cannot run."""

    def gdpo(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        raise RuntimeError(f"algorithm.adv_estimator=gdpo: {reason}")

    return gdpo
