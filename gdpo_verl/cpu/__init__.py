"""verl, FSDP2 and vLLM's CPU build on a machine without a GPU.

Chosen by ``VERL_PLATFORM=cpu`` (verl's own switch) and the ``cpu`` hardware recipe. Loaded in
each of verl's processes by the entry point `gdpo_cpu` of group `verl.plugins`, and in vLLM's
by the one of group `vllm.general_plugins`; does nothing unless the variable is set.

For learning and testing: the driver, Ray, vLLM and FSDP2 are the real ones, and slow. Covered are
the trainer's modes sync, colocate_async and separate_async; SGLang and Megatron are not.
"""

from __future__ import annotations

import os


def chosen() -> bool:
    """Return whether this process runs on the CPU platform."""
    return os.environ.get("VERL_PLATFORM", "").strip().lower() == "cpu"


def activate() -> None:
    """Register the platform and fix what keeps verl from running on it."""
    from gdpo_verl.cpu import patches

    patches.apply()

    from gdpo_verl.cpu import platform  # imports verl, before which one of them has to be in place

    platform.register()


if chosen():
    activate()
