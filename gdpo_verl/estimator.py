"""The function that verl calls for ``algorithm.adv_estimator=gdpo``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import Tensor

from gdpo_verl.advantage import broadcast, count_tokens
from gdpo_verl.batch import RewardBatch
from gdpo_verl.config import Objective

# verl's default trainer hands an estimator no reward components, and its legacy trainer does
# not say which reward they come from; the trainer seam leaves here what is missing.
_batch: ContextVar[RewardBatch | None] = ContextVar("gdpo_verl_batch", default=None)
legacy_objective: ContextVar[Objective | None] = ContextVar("gdpo_verl_objective", default=None)


@contextmanager
def reward_batch(batch: RewardBatch) -> Iterator[None]:
    """Make `batch` the one that `gdpo` reads in this context."""
    token = _batch.set(batch)
    try:
        yield
    finally:
        _batch.reset(token)


def gdpo(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: Sequence[Any] | None = None,
    non_tensor_batch: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """GDPO as a verl advantage estimator (verl/trainer/ppo/core_algos.py, `register_adv_est`).

    On the default trainer the components come from the trainer seam; on the legacy trainer
    from `non_tensor_batch`, where each key that the reward returned is an array.

    Args:
      token_level_rewards: shape (B, T), in reward units; only shape and dtype are used.
      response_mask: shape (B, T), 0 or 1.
      index: B uids.
      non_tensor_batch: the legacy trainer's arrays of length B.

    Returns:
      Advantages and returns: the same tensor, shape (B, T).

    Raises:
      ValueError: a component is missing or not a number; names key and row.
      RuntimeError: called by something else than a trainer that the plug-in knows.
    """
    batch = _batch.get() or _legacy_batch(index, non_tensor_batch)
    counts = count_tokens(response_mask, token_level_rewards)
    advantage = broadcast(batch.gdpo(counts), response_mask, token_level_rewards.dtype)
    return advantage, advantage


def _legacy_batch(
    index: Sequence[Any] | None, non_tensor_batch: Mapping[str, Any] | None
) -> RewardBatch:
    objective = legacy_objective.get()
    if objective is None or index is None or non_tensor_batch is None:
        raise RuntimeError(
            "algorithm.adv_estimator=gdpo was called without reward components, by a trainer that "
            "gdpo-verl does not know. Run `gdpo-verl doctor`; trainers derived from verl's "
            "PPOTrainer work when they call its _compute_advantage."
        )
    columns = {key: non_tensor_batch[key] for key in objective.keys if key in non_tensor_batch}
    infos = [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]
    # The legacy trainer has one output a session and no padding rows at this point.
    keys = [f"{uid}_{row}_0" for row, uid in enumerate(index)]
    return RewardBatch(objective, infos or [{} for _ in keys], list(index), keys)


def unsupported(reason: str) -> Any:
    """An estimator that says why it cannot run."""

    def gdpo(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        raise RuntimeError(f"algorithm.adv_estimator=gdpo: {reason}")

    return gdpo
