"""End a training in which a process has died, and say which.

verl 0.9.1 carries on without one, or waits for it forever:

- the sessions of a dead reward worker or vLLM fail one by one, and the step is trained and saved
  on what is left (verl/trainer/ppo/v1/agent_loop_tq.py, `_run_prompt`; replay_buffer.py,
  `sample`), so that its prompts are lost;
- the prompts of a dead agent loop worker stay "running" (the same `sample`);
- weights are sent to a vLLM that no longer receives
  (verl/workers/rollout/vllm_rollout/bucketed_weight_transfer.py, `socket.recv()`).
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

from gdpo_verl.plugin import deaths
from gdpo_verl.plugin.hooks import wrap

logger = logging.getLogger(__name__)

POLL_SECONDS = 2.0
# The time the trainer has after a death to end with a traceback.
GRACE_SECONDS = 15.0
# The time from the first call that fails until Ray knows why. By default a node is dead to it after
# five failed health checks, one every three seconds.
NAMING_SECONDS = 30.0
_ANSWER_SECONDS = 5.0
_VLLM = "vllm_server_"


class ActorWatch:
    """Watches the named actors of this job: verl names all but its load balancer.

    They are this job's alone, because two jobs of verl's in one namespace of Ray's would collide
    by their names. Start it in the trainer's process, when all actors are there.
    """

    def __init__(self) -> None:
        self._actors: dict[str, Any] = {}
        self._asked: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._death: str | None = None

    def start(self) -> None:
        """Look every `POLL_SECONDS`, and end this process `GRACE_SECONDS` after a death."""
        threading.Thread(target=self._run, name="gdpo-verl liveness", daemon=True).start()

    def stop(self) -> None:
        """Stop watching; actors end normally from here on."""
        self._stopped.set()

    def first_death(self) -> str | None:
        """Describe the first death so far; None while all live."""
        with self._lock:
            if self._death is None and not self._stopped.is_set():
                try:
                    self._death = self._dead_actor() or self._dead_engine()
                except Exception:  # Ray itself is not to be asked, say, and verl will find out
                    logger.warning("no look at the processes of this run", exc_info=True)
            return self._death

    def wait_for_death(self) -> str | None:
        """The first death, looked for until Ray must know of one; None when there is none.

        A call to an actor that is gone may fail before Ray says that it is.
        """
        deadline = time.monotonic() + NAMING_SECONDS
        while (death := self.first_death()) is None and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        return death

    def check(self) -> None:
        """Raise RuntimeError after a death."""
        death = self.first_death()
        if death:
            raise RuntimeError(death)

    def _dead_actor(self) -> str | None:
        names = set(list_named_actors())  # those that are not dead
        for name in names - self._actors.keys():
            with contextlib.suppress(ValueError):  # gone in between
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
                self._actors[name] = handle  # Ray does not know yet; asked again at the next look
        return None

    def _dead_engine(self) -> str | None:
        """Describe the death of a vLLM engine, a process that its server outlives."""
        for name in [name for name in self._actors if name.startswith(_VLLM)]:
            answer = self._asked.get(name) or self._actors[name].__ray_call__.remote(_engine_death)
            self._asked[name] = answer
            if ray.wait([answer], timeout=1.0)[0]:
                del self._asked[name]
                with contextlib.suppress(RayError):  # the server itself died: the next look
                    death = ray.get(answer)
                    if death:
                        return f"a vLLM engine died: {death} of {name}"
        return None

    def _run(self) -> None:
        while not self._stopped.wait(POLL_SECONDS):
            death = self.first_death()
            if death and not self._stopped.is_set():
                # The launcher looks for this line in the output, so logging may not change it.
                sys.stderr.write(f"gdpo-verl: {death}\n")
                sys.stderr.flush()
                time.sleep(GRACE_SECONDS)
                os._exit(1)


def check_at_each_poll(replay_buffer: Any, watch: ActorWatch) -> None:
    """Raise from the poll that finds a death, before a step is trained without its sessions."""

    def sync(original: Any) -> None:
        try:
            original()
        finally:  # a death is the reason of the sessions that failed
            watch.check()

    wrap(replay_buffer, "_sync_metadata_from_transfer_queue", sync)


def _engine_death(server: Any) -> str | None:
    """Run in the server's process; describes the engine's end, None while it lives."""
    engine: Any = getattr(server, "engine", None)  # the first node of a replica alone has one
    if not getattr(engine, "errored", False):
        return None
    manager = getattr(engine.engine_core.resources, "engine_manager", None)
    ended = manager.finished_procs() if manager is not None else {}
    for name, status in ended.items():
        if status:
            how = f"killed by {deaths.signal_name(-status)}" if status < 0 else f"status {status}"
            return f"{name} ({how})"
    return "EngineCore"
