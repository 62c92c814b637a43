"""A CPU platform for verl's `PlatformRegistry` (verl/plugin/platform/platform_base.py)."""

from __future__ import annotations

import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry

# verl logs the free and the total memory of a device. A CPU has no device memory, so these numbers
# are placeholders.
_NO_MEMORY = (1 << 33, 1 << 33)


class _Device(types.ModuleType):
    """A replacement of `torch.cuda` with the functions of `torch.cpu`.

    A function that `torch.cpu` lacks returns 0.
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(torch.cpu, name, lambda *args, **kwargs: 0)


def _device_module() -> types.ModuleType:
    """Return the module that verl uses in place of `torch.cuda`."""
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
        # verl must not choose this platform automatically. If a GPU is not found, a run should fail
        # instead of running slowly.
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
        # (verl/single_controller/ray/base.py), so each logical device is declared as a GPU.
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        # Weights are sent to vLLM through shared memory instead of CUDA IPC handles.
        return False

    def _do_nothing(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing. It replaces functions that only an accelerator needs."""

    # On a CPU the work is done when a call returns, so there is nothing to wait for. There is also
    # no device to select, no cache to empty and no trace to record.
    set_device = synchronize = empty_cache = set_allocator_settings = _do_nothing
    profiler_start = profiler_stop = cudart = _do_nothing


def register() -> None:
    """Register the platform, so that verl accepts ``VERL_PLATFORM=cpu``."""
    PlatformRegistry.register(platform="cpu")(PlatformCPU)
