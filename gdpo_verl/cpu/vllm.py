"""Patches of vLLM's CPU build: weights that can be updated while it serves, on few cores.

This is the entry point `gdpo_cpu` of the group `vllm.general_plugins`, which vLLM calls in each of
its processes before a model is loaded.
"""

from __future__ import annotations

import os
from typing import Any

from gdpo_verl.cpu import chosen
from gdpo_verl.upstream.hooks import wrap

RECHECK_MS = 2


def apply() -> None:
    """Apply both patches to this process, on the CPU platform."""
    if chosen():
        keep_plain_weights()
        wait_without_spinning()


def keep_plain_weights() -> None:
    """On CPU vLLM packs the weights of linear layers for oneDNN or its SGL kernels and drops
    the originals (vllm/model_executor/layers/utils.py, `dispatch_cpu_unquantized_gemm`), so
    the trainer's updates find no parameter to write to. Without packing, layers stay plain."""
    import vllm._custom_ops as ops

    ops._supports_onednn = False
    os.environ["VLLM_CPU_SGL_KERNEL"] = "0"


def wait_without_spinning() -> None:
    """vLLM's engine and its worker take turns. The process that waits spins for a second before it
    sleeps (vllm/distributed/device_communicators/shm_broadcast.py, `SpinCondition`), on a core
    that the agent loop needs. A reader that sleeps may miss a notification, and then checks again
    only after `SHM_READER_RECHECK_INTERVAL_MS`, 5 s, as long as several steps."""
    from vllm.distributed.device_communicators import shm_broadcast

    def initialize(original: Any, condition: Any, *args: Any, **kwargs: Any) -> None:
        original(condition, *args, **kwargs)
        condition.busy_loop_s = 0.0

    wrap(shm_broadcast.SpinCondition, "__init__", initialize)
    shm_broadcast.SHM_READER_RECHECK_INTERVAL_MS = RECHECK_MS
