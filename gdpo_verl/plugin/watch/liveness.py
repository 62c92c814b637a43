"""End a run in which a process has died, and name the process.

Without this module, verl 0.9.1 continues without the process, or waits for it forever:

- The rollouts that need a dead reward worker or vLLM server fail one by one. The step is trained
  and saved with the other rollouts, so that the prompts of the failed ones are lost
  (verl/trainer/ppo/v1/agent_loop_tq.py, `_run_prompt`; replay_buffer.py, `sample`).
- The prompts of a dead agent loop worker stay "running" (the same `sample`).
- The trainer waits forever when it sends weights to a vLLM that no longer receives them
  (verl/workers/rollout/vllm_rollout/bucketed_weight_transfer.py, `socket.recv()`).

verl calls a rollout a session.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from typing import Any

import ray
from ray.exceptions import ActorDiedError, OutOfMemoryError, RayError
from ray.util import list_named_actors

from gdpo_verl.plugin.watch import deaths
from gdpo_verl.upstream.hooks import wrap

logger = logging.getLogger(__name__)

POLL_SECONDS = 2.0
# After a death, the trainer has this time to end by itself with a traceback.
GRACE_SECONDS = 15.0
# The longest time between the first call that fails and Ray's report of the death. By default Ray
# declares a node dead after five failed health checks, one every three seconds.
NAMING_SECONDS = 30.0
_ANSWER_SECONDS = 5.0
_VLLM = "vllm_server_"


class ActorWatch:
    """Watch the named actors of this job. verl names all of its actors except the load balancer.

    Every named actor in the Ray namespace belongs to this job, because the names of two verl jobs
    in one namespace would collide. Start the watch in the trainer's process, when all actors exist.
    """

    def __init__(self) -> None:
        self._actors: dict[str, Any] = {}
        self._asked: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._death: str | None = None

    def start(self) -> None:
        """Check every `POLL_SECONDS`, and end this process `GRACE_SECONDS` after a death."""
        threading.Thread(target=self._run, name="gdpo-verl liveness", daemon=True).start()

    def stop(self) -> None:
        """Stop watching, because from now on actors end normally."""
        self._stopped.set()

    def first_death(self) -> str | None:
        """Describe the first death so far; None while all actors are alive."""
        with self._lock:
            if self._death is None and not self._stopped.is_set():
                try:
                    self._death = self._dead_actor() or self._dead_engine()
                except Exception:  # for example, Ray does not reply; verl will notice that itself
                    text = "gdpo-verl could not check whether the processes of this run are alive"
                    logger.warning(text, exc_info=True)
            return self._death

    def wait_for_death(self) -> str | None:
        """Return the first death, or None if Ray reports none within `NAMING_SECONDS`.

        A call to a dead actor may fail before Ray reports the death.
        """
        deadline = time.monotonic() + NAMING_SECONDS
        death = self.first_death()
        while death is None and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
            death = self.first_death()
        return death

    def check(self) -> None:
        """Raise RuntimeError if an actor has died."""
        death = self.first_death()
        if death:
            raise RuntimeError(death)

    def _dead_actor(self) -> str | None:
        """Describe the death of an actor that has ended since the last check; None without one."""
        names = set(list_named_actors())  # Ray lists only actors that are not dead
        for name in names - self._actors.keys():
            with contextlib.suppress(ValueError):  # the actor ended after it was listed
                self._actors[name] = ray.get_actor(name)
        for name in sorted(self._actors.keys() - names):
            handle = self._actors.pop(name)
            self._asked.pop(name, None)
            try:
                ray.get(handle.__ray_ready__.remote(), timeout=_ANSWER_SECONDS)
            except ActorDiedError as error:
                death = deaths.describe_actor_death(str(error))
                if death:
                    return death
            except OutOfMemoryError as error:
                return deaths.describe_memory_death(str(error)) or f"a worker died: {name}, {error}"
            except RayError:
                # Ray does not know yet whether the actor died. The next check asks again.
                self._actors[name] = handle
        return None

    def _dead_engine(self) -> str | None:
        """Describe the death of a vLLM engine, whose server may still be alive."""
        for name in [name for name in self._actors if name.startswith(_VLLM)]:
            answer = self._asked.get(name) or self._actors[name].__ray_call__.remote(_engine_death)
            self._asked[name] = answer
            if ray.wait([answer], timeout=1.0)[0]:
                del self._asked[name]
                with contextlib.suppress(RayError):  # if the server died, the next check reports it
                    death = ray.get(answer)
                    if death:
                        return f"a vLLM engine died: {death} of {name}"
        return None

    def _run(self) -> None:
        while not self._stopped.wait(POLL_SECONDS):
            death = self.first_death()
            if death and not self._stopped.is_set():
                # The launcher looks for this line in the output, so it is not written by logging.
                sys.stderr.write(f"gdpo-verl: {death}\n")
                sys.stderr.flush()
                time.sleep(GRACE_SECONDS)
                os._exit(1)


def check_at_each_poll(replay_buffer: Any, watch: ActorWatch) -> None:
    """Raise an error in the poll of the replay buffer that finds a death.

    Otherwise a step would be trained without the rollouts that failed because of the death.
    """

    def sync(original: Any) -> None:
        try:
            original()
        finally:  # a death explains an error of verl's poll, so it is raised instead of that error
            watch.check()

    wrap(replay_buffer, "_sync_metadata_from_transfer_queue", sync)


def _engine_death(server: Any) -> str | None:
    """Describe how the engine ended; None while it is alive. This runs in the server's process."""
    engine: Any = getattr(server, "engine", None)  # only the first node of a replica has an engine
    if not getattr(engine, "errored", False):
        return None
    manager = getattr(engine.engine_core.resources, "engine_manager", None)
    ended = manager.finished_procs() if manager is not None else {}
    for name, status in ended.items():
        if status:
            how = f"killed by {deaths.signal_name(-status)}" if status < 0 else f"status {status}"
            return f"{name} ({how})"
    return "EngineCore"
