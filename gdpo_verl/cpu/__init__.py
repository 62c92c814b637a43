"""Run verl, FSDP2 and vLLM's CPU build on a machine without a GPU.

A run uses this platform with ``VERL_PLATFORM=cpu`` (a switch of verl) and the ``cpu`` hardware
recipe. `gdpo_verl.cpu.entry` loads it in each of verl's processes, and `gdpo_verl.cpu.vllm` in each
of vLLM's processes.

The platform is meant for learning and testing. The driver, Ray, vLLM and FSDP2 are the real ones,
and they are slow on a CPU. The trainer modes sync, colocate_async and separate_async are supported.
SGLang and Megatron are not supported.
"""

from __future__ import annotations

import os


def chosen() -> bool:
    """Return whether this process runs on the CPU platform."""
    return os.environ.get("VERL_PLATFORM", "").strip().lower() == "cpu"
