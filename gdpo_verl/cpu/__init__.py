"""Run verl, FSDP2 and vLLM's CPU build on a machine without a GPU.

The platform is chosen with ``VERL_PLATFORM=cpu`` (verl's own switch) and the ``cpu`` hardware
recipe. It is loaded in each of verl's processes by `gdpo_verl.cpu.entry`, and in vLLM's by
`gdpo_verl.cpu.vllm`.

It is meant for learning and testing: the driver, Ray, vLLM and FSDP2 are the real ones, and they
are slow on a CPU. It supports the trainer modes sync, colocate_async and separate_async, but not
SGLang and Megatron.
"""

from __future__ import annotations

import os


def chosen() -> bool:
    """Return whether this process runs on the CPU platform."""
    return os.environ.get("VERL_PLATFORM", "").strip().lower() == "cpu"
