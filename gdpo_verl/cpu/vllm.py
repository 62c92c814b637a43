"""Patches of vLLM's CPU build: its weights can be updated, and it does not waste a core.

This module is the entry point `gdpo_cpu` in the group `vllm.general_plugins`. vLLM calls it in each
of its processes, before a model is loaded.
"""

from __future__ import annotations

import os
from typing import Any

from gdpo_verl.cpu import chosen
from gdpo_verl.upstream.hooks import wrap

# The time between two checks for a message, in milliseconds.
RECHECK_MS = 2


def apply() -> None:
    """Apply both patches to this process if it runs on the CPU platform."""
    if chosen():
        keep_plain_weights()
        wait_without_spinning()


def keep_plain_weights() -> None:
    """Keep vLLM from packing the weights of linear layers.

    On a CPU, vLLM packs these weights for oneDNN or for its SGL kernels, and drops the originals
    (vllm/model_executor/layers/utils.py, `dispatch_cpu_unquantized_gemm`). The trainer's updates
    would then find no parameter to write to.
    """
    import vllm._custom_ops as ops

    ops._supports_onednn = False
    os.environ["VLLM_CPU_SGL_KERNEL"] = "0"


def wait_without_spinning() -> None:
    """Let vLLM's processes sleep while they wait, and check for messages more often.

    vLLM's engine and its worker take turns. The process that waits spins for a second before it
    sleeps (vllm/distributed/device_communicators/shm_broadcast.py, `SpinCondition`). It spins on a
    core that the agent loop needs. A reader that sleeps may miss a notification. It then checks
    again only after `SHM_READER_RECHECK_INTERVAL_MS`, which is 5 s, as long as several steps.
    """
    from vllm.distributed.device_communicators import shm_broadcast

    def initialize(original: Any, condition: Any, *args: Any, **kwargs: Any) -> None:
        original(condition, *args, **kwargs)
        condition.busy_loop_s = 0.0

    wrap(shm_broadcast.SpinCondition, "__init__", initialize)
    shm_broadcast.SHM_READER_RECHECK_INTERVAL_MS = RECHECK_MS
