"""A CPU platform for verl's `PlatformRegistry` (verl/plugin/platform/platform_base.py)."""

from __future__ import annotations

import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry

# verl reads the free and total memory of a device for its logs; a CPU has no device memory.
_NO_MEMORY = (1 << 33, 1 << 33)


class _Device(types.ModuleType):
    """`torch.cpu`; for each name of `torch.cuda` that it lacks, a function that returns 0."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(torch.cpu, name, lambda *args, **kwargs: 0)


def _device_module() -> types.ModuleType:
    device: Any = _Device("gdpo_verl_cpu_device")
    device.is_available = lambda: True
    device.device_count = lambda: 1
    device.current_device = lambda: 0
    device.get_device_name = lambda *args, **kwargs: "cpu"
    device.mem_get_info = lambda *args, **kwargs: _NO_MEMORY
    device.get_rng_state = lambda *args, **kwargs: torch.get_rng_state()
    device.set_rng_state = lambda state, *args, **kwargs: torch.set_rng_state(state)
    return device  # type: ignore[no-any-return]


class PlatformCPU(PlatformBase):
    """One or more logical devices on the cores of this machine."""

    device_name = "cpu"
    vendor_name = "cpu"
    device_module = _device_module()

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        # Not detected automatically: a machine whose GPU is not found should fail, not run slowly.
        return False

    def current_device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cpu")

    def device_count(self) -> int:
        return 1

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def ray_resource_name(self) -> str:
        # verl's ResourcePoolManager counts only the resources GPU and NPU
        # (verl/single_controller/ray/base.py), so a logical device is a logical GPU.
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        # Weights go to vLLM through shared memory instead of CUDA IPC handles.
        return False

    def _do_nothing(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing, in place of a function that only an accelerator needs."""

    # On a CPU the work is done when a call returns; there is nothing to select, to empty or to
    # trace.
    set_device = synchronize = empty_cache = set_allocator_settings = _do_nothing
    profiler_start = profiler_stop = cudart = _do_nothing


def register() -> None:
    """Make ``VERL_PLATFORM=cpu`` known to verl."""
    PlatformRegistry.register(platform="cpu")(PlatformCPU)
