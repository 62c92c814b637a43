"""Additions to verl's replay buffer: count failed sessions, name their error, filter groups.

verl calls a rollout a session.

*Failures.* verl 0.9.1 logs the exception of a session in its worker and continues
(verl/trainer/ppo/v1/agent_loop_tq.py, `_run_prompt`). If all sessions fail, the synchronous trainer
ends later with an error that does not name the cause, and the asynchronous trainers sample new
prompts forever.

*Filter.* verl drops a group if one metric, by default the score, is equal in all of its rows
(verl/trainer/ppo/v1/replay_buffer.py, `_dapo_filtered_keys`). GDPO still learns from such a group
when its components vary. With ``algorithm.filter_groups.metric=components`` a group is dropped only
if the configured variant of GDPO gives no advantage to any of its rows.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util import list_named_actors

from gdpo_verl.config import Objective
from gdpo_verl.names import FAILED_SESSIONS
from gdpo_verl.plugin.checks.validation import FILTER_METRIC
from gdpo_verl.plugin.step.batch import RewardBatch, RewardRows
from gdpo_verl.plugin.step.queue import response_masks, reward_infos
from gdpo_verl.upstream.hooks import wrap
from gdpo_verl.upstream.row_key import RowKey

logger = logging.getLogger(__name__)

# The beginning of the names of verl's agent loop workers
# (verl/experimental/agent_loop/agent_loop.py).
_WORKER = "agent_loop_worker_"
_ANSWER_SECONDS = 5.0

# The error of the last failed session, in the process of an agent loop worker.
_error: BaseException | None = None


def record_errors(agent_loop_tq: Any) -> None:
    """Store the last error of a session in the process of an agent loop worker.

    The argument is the module `verl.trainer.ppo.v1.agent_loop_tq`.
    """

    async def settle(original: Any, tasks: list[Any]) -> list[BaseException]:
        global _error
        errors: list[BaseException] = await original(tasks)
        if errors:
            _error = errors[-1]
        return errors

    wrap(agent_loop_tq, "_settle_session_tasks", settle)


class SessionFailures:
    """Count the training sessions that failed, at each poll of a replay buffer.

    Args:
      replay_buffer: verl's replay buffer, whose polls are wrapped.
      group_size: the number of sessions for each prompt, `actor_rollout_ref.rollout.n`.
      stop: whether to raise an error if every session so far has failed.
    """

    def __init__(self, replay_buffer: Any, group_size: int, *, stop: bool) -> None:
        self._buffer = replay_buffer
        self._group_size = group_size
        self._count = 0
        self._counted: set[str] = set()
        self._unanswered: dict[str, set[str]] = {"train": set(), "val": set()}
        self._counts = True

        def sync(original: Any) -> None:
            original()
            if self._counts:
                try:
                    self._count_new()
                except Exception:  # a metric must not end a run
                    self._counts = False
                    text = "%s is no longer reported, because failed sessions could not be counted"
                    logger.warning(text, FAILED_SESSIONS.key, exc_info=True)
            if stop:
                for partition in self._unanswered:
                    self._stop_when_all_failed(partition)

        wrap(replay_buffer, "_sync_metadata_from_transfer_queue", sync)

    def take(self) -> int:
        """Return the number of failed sessions since the last call."""
        count = self._count
        self._count = 0
        return count

    def _count_new(self) -> None:
        failed = set(self._buffer.failure_keys["train"])
        new = failed - self._counted
        if new:
            rows = map(RowKey.parse, self._buffer.partitions["train"])
            sessions = {(row.uid, row.session) for row in rows}
            answered = Counter(uid for uid, _ in sessions)
            # The number is not below 0, because a prompt may have more than n sessions.
            self._count += sum(max(0, self._group_size - answered[uid]) for uid in new)
        self._counted = failed

    def _stop_when_all_failed(self, partition: str) -> None:
        buffer = self._buffer
        failed = self._unanswered[partition]
        if buffer.finished_keys[partition] or buffer.partitions[partition]:
            failed.clear()
            return
        failed |= buffer.failure_keys[partition]
        waiting = len(buffer.pending_keys[partition]) + len(buffer.running_keys[partition])
        # The synchronous trainer waits until no session runs. The other trainers replace failed
        # prompts and would continue forever.
        refills = buffer.trainer_mode != "sync"
        if failed and (not waiting or (refills and len(failed) > 2 * waiting)):
            raise RuntimeError(
                f"every rollout session failed: {len(failed)} prompts of the partition "
                f"{partition!r} so far, and none has a response. The last error: {last_error()}. "
                "The log of the AgentLoopWorker has its traceback."
            )


def last_error() -> str:
    """Return the error of a failed session, from the first worker that has stored one."""
    for name in list_named_actors():
        if name.startswith(_WORKER):
            with contextlib.suppress(RayError, ValueError):  # the worker has ended
                answer: Any = ray.get_actor(name).__ray_call__.remote(_remembered_error)
                error = ray.get(answer, timeout=_ANSWER_SECONDS)
                if error:
                    return str(error)
    return "unknown"


def _remembered_error(worker: Any) -> str | None:
    """Describe the stored error. This runs in the worker's process.

    If a reward function raised the error, Ray's error has it as its `cause`.
    """
    error = getattr(_error, "cause", None) or _error
    return None if error is None else f"{type(error).__name__}: {error}"


def filter_by_components(
    replay_buffer: Any, objective: Objective | None, global_step: Callable[[], int]
) -> None:
    """Let verl's replay buffer filter groups by components, if this is configured.

    Args:
      replay_buffer: verl's replay buffer.
      objective: the components; None if the run has none.
      global_step: a function that returns the global step of the run, for scheduled weights.

    Raises:
      ValueError: the filter is configured, and the reward function has no components.
    """
    # A custom sampler does not get this attribute from verl, because it has its own filter.
    if getattr(replay_buffer, "filter_groups_metric", None) != FILTER_METRIC:
        return
    if objective is None:
        raise ValueError(
            f"algorithm.filter_groups.metric={FILTER_METRIC}: expected declared components, found "
            "none. Declare them with gdpo_verl.rewards.declares on the reward function, or set "
            "algorithm.gdpo_reward_keys=[...]."
        )
    weights = objective.weights

    def filtered(original: Any, partition_id: str) -> tuple[set[str], Counter[float]]:
        nonlocal weights
        if partition_id != "train":
            return set(), Counter()
        finished = replay_buffer.finished_keys[partition_id]
        classified = replay_buffer._dapo_classification_cache[partition_id]
        current_weights = objective.weights_at(global_step())
        # Groups must be classified again when scheduled weights change.
        if current_weights != weights:
            weights = current_weights
            classified.clear()
        for uid in classified.keys() - finished:
            del classified[uid]
        new = finished - classified.keys()
        rows = replay_buffer.partitions[partition_id]
        keys = [key for key in rows if RowKey.parse(key).uid in new]
        silent = _silent_groups(keys, partition_id, objective, global_step())
        classified.update(dict.fromkeys(new) | silent)
        dropped = {uid: score for uid, score in classified.items() if score is not None}
        return set(dropped), Counter(dropped.values())

    wrap(replay_buffer, "_dapo_filtered_keys", filtered)


def _silent_groups(
    keys: list[str], partition_id: str, objective: Objective, global_step: int
) -> dict[str, float]:
    """Return the groups of several rows to which the estimator gives no advantage, and their score.

    The score is that of the last row of the group.
    """
    if not keys:
        return {}
    infos = reward_infos(keys, partition_id)
    uids = [RowKey.parse(key).uid for key in keys]
    masks = response_masks(keys, partition_id) if objective.masks_key else None
    rows = RewardRows(objective, infos, keys, global_step=global_step, masks=masks)
    batch = RewardBatch.of(rows, uids)
    has_signal = batch.trained.has_signal.tolist()
    learns = {group for group, has in zip(batch.group_ids, has_signal, strict=True) if has}
    sizes = Counter(batch.group_ids)
    scores = dict(zip(uids, batch.score().tolist(), strict=True))
    return {uid: scores[uid] for uid in sizes if sizes[uid] > 1 and uid not in learns}
