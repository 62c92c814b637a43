"""Count the rollout sessions that fail; stop a run in which every one does, and say why.

verl 0.9.1 logs the exception of a session in the worker it failed in and goes on
(verl/trainer/ppo/v1/agent_loop_tq.py, `_run_prompt`): the synchronous trainer ends later with
an error that does not name the cause, the asynchronous ones refill for ever.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util import list_named_actors

from gdpo_verl.hooks import wrap

logger = logging.getLogger(__name__)

# verl's names of its agent loop workers (verl/experimental/agent_loop/agent_loop.py).
_WORKER = "agent_loop_worker_"
_ANSWER_SECONDS = 5.0

# In the process of an agent loop worker, the last session's error.
_error: BaseException | None = None


def record_errors(agent_loop_tq: Any) -> None:
    """Remember the last session's error in the worker's process (module `…v1.agent_loop_tq`)."""

    async def settle(original: Any, tasks: list[Any]) -> list[BaseException]:
        global _error
        errors: list[BaseException] = await original(tasks)
        if errors:
            _error = errors[-1]
        return errors

    wrap(agent_loop_tq, "_settle_session_tasks", settle)


class SessionFailures:
    """Counts the training sessions that failed, from what a replay buffer sees at each poll.

    Args:
      replay_buffer: verl's; its polls are watched from now on.
      group_size: sessions a prompt, `actor_rollout_ref.rollout.n`.
      stop: raise from the poll after which every session so far has failed.
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
            self._look(stop)

        wrap(replay_buffer, "_sync_metadata_from_transfer_queue", sync)

    def _look(self, stop: bool) -> None:
        if self._counts:
            try:
                self._count_new()
            except Exception:  # the metric is not worth a run
                self._counts = False
                logger.warning("gdpo/failed_sessions is no longer counted", exc_info=True)
        if stop:
            for partition in self._unanswered:
                self._stop_when_all_failed(partition)

    def take(self) -> int:
        """The failed sessions since the last call."""
        count, self._count = self._count, 0
        return count

    def _count_new(self) -> None:
        failed = set(self._buffer.failure_keys["train"])
        new = failed - self._counted
        if new:
            sessions = {key.rpartition("_")[0] for key in self._buffer.partitions["train"]}
            answered = Counter(session.rpartition("_")[0] for session in sessions)
            # A prompt may have been rolled out more than n times.
            self._count += sum(max(0, self._group_size - answered[uid]) for uid in new)
        self._counted = failed

    def _stop_when_all_failed(self, partition: str) -> None:
        buffer, failed = self._buffer, self._unanswered[partition]
        if buffer.finished_keys[partition] or buffer.partitions[partition]:
            failed.clear()
            return
        failed |= buffer.failure_keys[partition]
        waiting = len(buffer.pending_keys[partition]) + len(buffer.running_keys[partition])
        # The synchronous trainer waits until nothing runs any more; the others refill what failed
        # and would go on for ever.
        refills = buffer.trainer_mode != "sync"
        if failed and (not waiting or (refills and len(failed) > 2 * waiting)):
            raise RuntimeError(
                f"every rollout session failed: {len(failed)} prompts of the partition "
                f"{partition!r} so far, none with an answer. The last error: {_last_error()}. The "
                "log of the AgentLoopWorker has its traceback."
            )


def _last_error() -> str:
    for name in list_named_actors():
        if name.startswith(_WORKER):
            with contextlib.suppress(RayError, ValueError):  # a worker that is gone
                answer: Any = ray.get_actor(name).__ray_call__.remote(_remembered_error)
                if error := ray.get(answer, timeout=_ANSWER_SECONDS):
                    return str(error)
    return "unknown"


def _remembered_error(worker: Any) -> str | None:
    """Runs in the worker's process."""
    return None if _error is None else f"{type(_error).__name__}: {_error}"
