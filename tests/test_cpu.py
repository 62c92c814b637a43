"""Each departure from upstream that the CPU platform makes, and that upstream still needs it."""

from __future__ import annotations

import inspect

from test_plugin import in_fresh_process

PROBE = """
import importlib.metadata, inspect, json, os
result = {}
import verl
from verl.utils import distributed
import torch
def capture(*args, backend=None, **kwargs):
    result["backend"] = backend
torch.distributed.init_process_group = capture
distributed.initialize_global_process_group_ray()
try:
    result["vllm"] = importlib.metadata.version("vllm")
except importlib.metadata.PackageNotFoundError:
    result["vllm"] = None
result["engine_device"] = os.environ.get("VERL_ENGINE_DEVICE")
from verl.plugin.platform import PlatformRegistry
result["platforms"] = sorted(PlatformRegistry.registered_names())
import vllm.plugins
vllm.plugins.load_general_plugins()
from vllm.model_executor.layers import utils
layer = torch.nn.Linear(64, 64, bias=False)
utils.dispatch_cpu_unquantized_gemm(layer, remove_weight=True)
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer
buffer = ReplayBuffer("sync", {}, None, "drop", {})
result["poll"] = buffer.poll_interval
result["weight"] = layer.weight.numel()
print("@" + json.dumps(result))
"""

STOCK_PLATFORM = """
from verl.plugin.platform import set_platform
from gdpo_verl.cpu.platform import PlatformCPU
set_platform(PlatformCPU())
"""


def test_departures_are_applied_on_the_cpu_platform() -> None:
    found = in_fresh_process(PROBE, VERL_PLATFORM="cpu")

    assert found["backend"] == "cpu:gloo"
    assert found["vllm"] == "0.27.1+cpu"
    assert found["engine_device"] == "cuda"
    assert "cpu" in found["platforms"]
    assert found["weight"] == 64 * 64
    assert found["poll"] == 0.1


def test_upstream_still_needs_each_departure() -> None:
    # The platform alone, registered by hand: what verl and vLLM do without our departures.
    found = in_fresh_process(
        STOCK_PLATFORM + PROBE,
        VERL_PLATFORM="",
        VERL_USE_EXTERNAL_PLUGINS="none",
        VLLM_PLUGINS="",
    )
    assert found["backend"] == "cpu:gloo,cpu:gloo", "use_one_gloo_backend can go"
    assert found["vllm"] is None, "name_vllm can go"
    assert found["weight"] == 0, "keep_plain_weights can go"


def test_verl_has_no_fsdp_engine_for_the_cpu() -> None:
    from verl.workers.engine import EngineRegistry

    engines = EngineRegistry._engines["language_model"]["fsdp2"]
    devices = {key[0] if isinstance(key, tuple) else key for key in engines}
    assert "cpu" not in devices, "use_fsdp_engine can go"
    assert "cuda" in devices


def test_verl_counts_no_other_devices_than_gpu_and_npu() -> None:
    from verl.single_controller.ray.base import ResourcePoolManager

    source = inspect.getsource(ResourcePoolManager)
    assert '"GPU"' in source
    assert "get_platform" not in source, "PlatformCPU.ray_resource_name may be CPU"


def test_verls_replay_buffer_polls_every_two_seconds() -> None:
    from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

    from gdpo_verl.cpu.departures import POLL_SECONDS

    upstream = inspect.signature(ReplayBuffer.__init__).parameters["poll_interval"].default
    assert upstream > POLL_SECONDS, "poll_often can go"


def test_platform_is_never_chosen_by_itself() -> None:
    code = (
        "import json\nfrom verl.plugin.platform import get_platform\n"
        "print('@' + json.dumps(get_platform().device_name))"
    )
    assert in_fresh_process(code, VERL_PLATFORM="") == "cuda"
    assert in_fresh_process(code, VERL_PLATFORM="cpu") == "cpu"


def test_torch_refuses_a_device_named_twice() -> None:
    import pytest
    from torch.distributed.distributed_c10d import BackendConfig

    with pytest.raises(ValueError, match="cpu"):
        BackendConfig("cpu:gloo,cpu:gloo")
