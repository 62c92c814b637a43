"""The function that verl calls for ``algorithm.adv_estimator=gdpo``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from gdpo_verl.advantage import Estimation, MaskedRows
from gdpo_verl.advantage.checks import result_dtype
from gdpo_verl.config import GdpoConfig, Objective
from gdpo_verl.plugin.batch import RewardBatch
from gdpo_verl.plugin.row_key import RowKey


@dataclass
class AdvantageStep:
    """The exchange between trainer seam and estimator in one call of verl's.

    verl's default trainer hands an estimator no reward components; the seam does, and gets back
    what verl has read from its queue.

    Attributes:
      objective: components, weights and settings.
      infos: what the reward returned for each row (verl's `reward_extra_info`).
      row_keys: verl's names of the rows.
      padding: the rows that verl added to fill the batch.
      global_step: of the training.
      uids, response_mask, scores: as verl reads them: B uids, and two tensors of shape (B, T),
        the mask after rollout correction. None until the call has come so far.
      batch, decomposition: the rows joined to sessions, and what is computed from them.
    """

    objective: Objective
    infos: Sequence[Mapping[str, Any]]
    row_keys: Sequence[str]
    padding: Sequence[bool]
    global_step: int = 0
    uids: Sequence[Any] | None = None
    response_mask: Tensor | None = None
    scores: Tensor | None = None
    batch: RewardBatch | None = None
    decomposition: Estimation | None = None

    def record_inputs(self, uids: Sequence[Any], response_mask: Tensor, scores: Tensor) -> None:
        """Keep what verl has read for this call."""
        self.uids, self.response_mask, self.scores = uids, response_mask, scores

    def decompose(self, token_counts: Tensor | None) -> tuple[RewardBatch, Estimation]:
        """Join the rows to sessions, and compute what is made of them."""
        assert self.uids is not None
        self.batch = RewardBatch(self.objective, self.infos, self.uids, self.row_keys, self.padding)
        self.batch.error_share()  # raises where a judge is down
        self.decomposition = self.batch.decompose(token_counts, self.global_step)
        return self.batch, self.decomposition


_step: ContextVar[AdvantageStep | None] = ContextVar("gdpo_verl_step", default=None)
# A trainer without a TransferQueue does not tell the estimator which reward its components come
# from; `gdpo_verl.plugin.legacy` notes here which one this process has.
legacy_trainer: ContextVar[Any] = ContextVar("gdpo_verl_legacy_trainer", default=None)


@contextmanager
def advantage_step(step: AdvantageStep) -> Iterator[None]:
    """Make `step` the one that `gdpo` reads and fills in this context."""
    token = _step.set(step)
    try:
        yield
    finally:
        _step.reset(token)


def capture_inputs(original: Any, data: Any, *args: Any, **kwargs: Any) -> Any:
    """Let the seam of another estimator see what verl has read.

    Wraps `compute_advantage_for_multi_trajectories` (verl/trainer/ppo/v1/utils.py).
    """
    if (step := _step.get()) is not None:
        step.record_inputs(
            data.non_tensor_batch["uid"],
            data.batch["response_mask"],
            data.batch["token_level_scores"],
        )
    return original(data, *args, **kwargs)


def gdpo(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: Sequence[Any] | None = None,
    config: Any = None,
    non_tensor_batch: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """GDPO as a verl advantage estimator (verl/trainer/ppo/core_algos.py, `register_adv_est`).

    On the default trainer the components come from the trainer seam. Other trainers hand
    them over in `non_tensor_batch`, where each key that the reward returned is an array.

    Args:
      token_level_rewards: shape (B, T), in reward units; only shape and dtype are used.
      response_mask: shape (B, T), 0 or 1.
      index: B uids.
      config: verl's `algorithm` node.
      non_tensor_batch: arrays of length B.

    Returns:
      Advantages and returns: the same tensor, shape (B, T).

    Raises:
      ValueError: a component is missing or not a number; names key and row.
      RuntimeError: called without components.
    """
    rows = MaskedRows(response_mask, len(token_level_rewards), result_dtype(token_level_rewards))
    step = _step.get() or _step_of_arguments(index, config, non_tensor_batch)
    if step.uids is None and index is not None:
        step.record_inputs(index, response_mask, token_level_rewards)
    batch, decomposition = step.decompose(rows.counts)
    advantage = rows.scale_(batch.to_rows(decomposition.advantage))
    return advantage, advantage


def _step_of_arguments(
    index: Sequence[Any] | None, config: Any, non_tensor_batch: Mapping[str, Any] | None
) -> AdvantageStep:
    """The step of a trainer without our seam, which hands over the components itself.

    verl's legacy trainer does, and others that call its `compute_advantage`: see
    `gdpo_verl.plugin.legacy`.
    """
    seam = getattr(legacy_trainer.get(), "gdpo_seam", None)
    objective: Objective | None = getattr(seam, "objective", None)
    if index is None or non_tensor_batch is None or (objective is None and config is None):
        raise RuntimeError(
            "algorithm.adv_estimator=gdpo was called without reward components, by a trainer that "
            "gdpo-verl does not know. Run `gdpo-verl doctor`; trainers derived from verl's "
            "PPOTrainer work when they call its _compute_advantage, and others when they pass "
            "config and non_tensor_batch to verl's compute_advantage."
        )
    if objective is None:
        # The reward, and so its declaration, is unknown here.
        objective = GdpoConfig.from_algorithm(config).resolve((), list(non_tensor_batch))
    return step_of_columns(objective, index, non_tensor_batch)


def step_of_columns(
    objective: Objective, uids: Sequence[Any], columns: Mapping[str, Any]
) -> AdvantageStep:
    """The step of a batch without padding rows, one output a session.

    Args:
      columns: arrays of length B, of which those of the components are read.
    """
    known = {key: columns[key] for key in objective.keys if key in columns}
    infos = [dict(zip(known, values, strict=True)) for values in zip(*known.values(), strict=True)]
    keys = [str(RowKey(str(uid), row, 0)) for row, uid in enumerate(uids)]
    return AdvantageStep(objective, infos or [{} for _ in keys], keys, [False] * len(keys))


def unsupported(reason: str) -> Any:
    """An estimator that says why it cannot run."""

    def gdpo(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        raise RuntimeError(f"algorithm.adv_estimator=gdpo: {reason}")

    return gdpo
