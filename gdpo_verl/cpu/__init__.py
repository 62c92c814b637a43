"""verl, FSDP2 and vLLM's CPU build on a machine without a GPU.

Chosen by ``VERL_PLATFORM=cpu`` (verl's own switch) and the ``cpu`` hardware recipe. Loaded in
each of verl's processes by `gdpo_verl.cpu.entry`, and in vLLM's by `gdpo_verl.cpu.vllm`.

For learning and testing: the driver, Ray, vLLM and FSDP2 are the real ones, and slow. Covered are
the trainer's modes sync, colocate_async and separate_async; SGLang and Megatron are not.
"""

from __future__ import annotations

import os


def chosen() -> bool:
    """Return whether this process runs on the CPU platform."""
    return os.environ.get("VERL_PLATFORM", "").strip().lower() == "cpu"
