"""Settings of `hardware=cpu` that depend on the model, the processor and the machine's memory.

The values in the recipe are suitable for a tiny policy. A model with more weights is treated as a
pretrained model, and gets other values. The number of weights is estimated from config.json.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gdpo_verl.upstream.model import has_configuration, is_lora

BUCKET = "actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes"
_MIB = 1 << 20
# A tiny policy has fewer weights than this number.
_SMALL = 10_000_000
# The largest number of tokens of a micro-batch. Attention is dense over a micro-batch, so a longer
# micro-batch costs more for each token.
_TOKENS = 512
# The memory of Ray, of vLLM without its weights, and of all imported packages, in bytes.
_PROCESSES = 4 << 30
# The share of the remaining memory that activations may use.
_SHARE = 0.5


def check_memory(config: Any) -> None:
    """Reject a model whose weights and optimizer do not fit into this machine's memory.

    Raises:
      ValueError: the model does not fit. The error names the key, the memory of the machine, and
        the memory that the model needs.
    """
    model = _read_config(config.actor_rollout_ref.model.path)
    if _weights(model) <= _SMALL:
        return
    needed = _fixed_bytes(config, model)
    if needed > memory():
        raise ValueError(
            "actor_rollout_ref.model.path: expected a model that can be trained in this machine's "
            f"{memory() / 2**30:.1f} GiB of memory, found one that needs {needed / 2**30:.1f} GiB "
            "with gradients, optimizer, vLLM and Ray. Train a smaller model, or train adapters "
            "with actor_rollout_ref.model.lora_rank=32."
        )


def choose_settings(config: Any) -> dict[str, Any]:
    """Choose overrides of verl's configuration for a pretrained model; none for a tiny policy."""
    from verl.trainer.ppo.utils import need_reference_policy

    model = _read_config(config.actor_rollout_ref.model.path)
    if _weights(model) < _SMALL:
        return {}
    half = multiplies_bfloat16()
    free = max(0, memory() - _fixed_bytes(config, model))
    # The memory for each token is what the layers keep for the backward pass, and several copies of
    # the logits.
    kept = model["num_hidden_layers"] * (10 * model["hidden_size"] + 4 * _inner(model))
    activations = kept * (2 if half else 4) + 4 * model["vocab_size"] * 4
    most = int(_SHARE * free / activations / config.trainer.n_gpus_per_node)
    row = config.data.max_prompt_length + config.data.max_response_length
    tokens = max(row, min(_TOKENS, most))
    # With shared prompts, packing is faster. A mask can share prompts only with full attention.
    shares = set(model.get("layer_types") or ["full_attention"]) == {"full_attention"}
    largest = max(model["vocab_size"], _inner(model)) * model["hidden_size"] * 4
    ours = "actor_rollout_ref"
    chosen: dict[str, Any] = {
        BUCKET: max(64, -(-largest // _MIB)),
        f"{ours}.model.use_remove_padding": shares,
        f"{ours}.actor.use_prefix_grouper": shares,
        f"{ours}.actor.use_dynamic_bsz": True,
        f"{ours}.actor.ppo_max_token_len_per_gpu": tokens,
    }
    for role in ("rollout", "ref"):
        chosen[f"{ours}.{role}.log_prob_use_dynamic_bsz"] = True
        chosen[f"{ours}.{role}.log_prob_max_token_len_per_gpu"] = tokens
    if half:
        chosen[f"{ours}.rollout.dtype"] = "bfloat16"
        for role in ("actor", "ref"):
            chosen[f"{ours}.{role}.fsdp_config.dtype"] = "bfloat16"
            chosen[f"{ours}.{role}.fsdp_config.mixed_precision.param_dtype"] = "bf16"
    # FSDP2 reads the dtypes of an adapter in its first forward pass. If this is the pass of the
    # reference policy, in which the adapter is off, the first update fails in bfloat16. Without the
    # bypass mode below, the first pass computes log-probabilities with the adapter.
    reference_first = is_lora(config) and need_reference_policy(config)
    # In the mode sync, the policy that trains has also sampled the responses, so its
    # log-probabilities need not be computed again.
    if config.trainer.v1.trainer_mode == "sync" and not reference_first:
        chosen["algorithm.rollout_correction.bypass_mode"] = True
    return chosen


def memory() -> int:
    """Return the memory of this machine, or the limit of the container if it is lower, in bytes."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    written = limit.read_text().strip() if limit.exists() else "max"
    return min(total, int(written)) if written.isdecimal() else total


def multiplies_bfloat16() -> bool:
    """Return whether this processor can multiply in bfloat16; otherwise float32 is faster."""
    import torch

    able = torch.cpu.get_capabilities()
    return any(able.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def _weights(model: Mapping[str, Any]) -> int:
    """Estimate the number of weights of a model; 0 for an unknown model."""
    if "hidden_size" not in model:
        return 0
    width = model["hidden_size"]
    layers = model["num_hidden_layers"]
    return int(width * (model["vocab_size"] + layers * 3 * (width + _inner(model))))


def _inner(model: Mapping[str, Any]) -> int:
    """Return the width of the inner layer of the MLPs."""
    return int(model.get("intermediate_size") or 4 * model["hidden_size"])


def _fixed_bytes(config: Any, model: Mapping[str, Any]) -> int:
    """Estimate the memory of a run without its micro-batches, in bytes."""
    # The trainer has the weights in float32 (4 bytes). Without LoRA it also has the gradients and
    # two moments of the optimizer. In addition, vLLM and the trainer each have a copy of the
    # weights in the dtype in which they compute.
    size = 2 if multiplies_bfloat16() else 4
    return _weights(model) * ((4 if is_lora(config) else 16) + 2 * size) + _PROCESSES


def _read_config(path: str) -> dict[str, Any]:
    """Read the part of config.json about the text model.

    The result is empty if there is no such file, because verl itself reports this.
    """
    from transformers import PretrainedConfig

    if not has_configuration(os.path.expanduser(path)):
        return {}
    for offline in (True, False):  # the cache comes first, because an unreachable hub takes long
        with contextlib.suppress(OSError, ValueError):
            content, _ = PretrainedConfig.get_config_dict(
                os.path.expanduser(path), local_files_only=offline
            )
            return dict(content.get("text_config", content))
    return {}
