"""Stop a run in which every rollout session fails, and say why.

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


def watch(replay_buffer: Any) -> None:
    """Raise from the buffer's next poll once every session so far has failed."""
    watcher = _Watch()

    def sync(original: Any) -> None:
        original()
        for partition in ("train", "val"):
            watcher.check(replay_buffer, partition)

    wrap(replay_buffer, "_sync_metadata_from_transfer_queue", sync)


class _Watch:
    def __init__(self) -> None:
        self.failed: dict[str, set[str]] = {}

    def check(self, buffer: Any, partition: str) -> None:
        failed = self.failed.setdefault(partition, set())
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
