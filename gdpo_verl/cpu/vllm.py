"""vLLM's CPU build with weights that can be updated while it serves.

The entry point `gdpo_cpu` of group `vllm.general_plugins`, which vLLM calls in each of its
processes before a model is loaded.
"""

from __future__ import annotations

import os

from gdpo_verl.cpu import chosen


def keep_plain_weights() -> None:
    """On CPU vLLM packs the weights of linear layers for oneDNN or its SGL kernels and drops
    the originals (vllm/model_executor/layers/utils.py, `dispatch_cpu_unquantized_gemm`), so
    the trainer's updates find no parameter to write to. Without both, layers stay plain."""
    if not chosen():
        return
    import vllm._custom_ops as ops

    ops._supports_onednn = False
    os.environ["VLLM_CPU_SGL_KERNEL"] = "0"
