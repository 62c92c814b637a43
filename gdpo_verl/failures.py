"""Count the rollout sessions that fail; stop a run in which every one does, and say why.

verl 0.9.1 logs the exception of a session in the worker it failed in and goes on
(verl/trainer/ppo/v1/agent_loop_tq.py, `_run_prompt`): the synchronous trainer ends later with
an error that does not name the cause, the asynchronous ones refill for ever.
"""

from __future__ import annotations

from typing import Any

import transfer_queue as tq

from gdpo_verl.hooks import wrap

_PARTITION = "gdpo_verl_failures"
_KEY = "last"


def record_errors(agent_loop_tq: Any) -> None:
    """Keep the last session error where the trainer can read it (module `…v1.agent_loop_tq`)."""

    async def settle(original: Any, tasks: list[Any]) -> list[BaseException]:
        errors: list[BaseException] = await original(tasks)
        if errors:
            text = f"{type(errors[-1]).__name__}: {errors[-1]}"
            await tq.async_kv_put(key=_KEY, partition_id=_PARTITION, tag={"error": text})
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

        def sync(original: Any) -> None:
            original()
            self._count_new()
            if stop:
                for partition in self._unanswered:
                    self._stop_when_all_failed(partition)

        wrap(replay_buffer, "_sync_metadata_from_transfer_queue", sync)

    def take(self) -> int:
        """The failed sessions since the last call."""
        count, self._count = self._count, 0
        return count

    def _count_new(self) -> None:
        failed = set(self._buffer.failure_keys["train"])
        new = failed - self._counted
        if new:
            sessions = {tuple(key.split("_")[:2]) for key in self._buffer.partitions["train"]}
            answered = sum(uid in new for uid, _ in sessions)
            self._count += len(new) * self._group_size - answered
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
    tags = (tq.kv_list(_PARTITION) or {}).get(_PARTITION, {})
    return str(tags.get(_KEY, {}).get("error", "unknown"))
