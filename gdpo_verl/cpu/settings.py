"""Settings of `hardware=cpu` that depend on the model, the processor and the machine's memory.

The recipe's own values are the tiny policy's. A pretrained model is recognised by its number of
weights; of it only config.json is read.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gdpo_verl.plugin.model import has_configuration, is_lora

BUCKET = "actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes"
_MIB = 1 << 20
_SMALL = 10_000_000  # weights
# Attention is dense over a micro-batch, so that a longer one costs more.
_TOKENS = 512
# Ray, vLLM without its weights and what all of them import; then the activations' part of the rest.
_PROCESSES = 4 << 30
_SHARE = 0.5


def check_memory(config: Any) -> None:
    """Refuse a model whose weights and optimizer alone are larger than this machine's memory.

    Raises:
      ValueError: names the key, what there is and what it takes.
    """
    model = _read_config(config.actor_rollout_ref.model.path)
    if _weights(model) <= _SMALL:
        return
    taken = _fixed_bytes(config, model)
    if taken > memory():
        raise ValueError(
            "actor_rollout_ref.model.path: expected a model that can be trained in this machine's "
            f"{memory() / 2**30:.1f} GiB of memory, found one that takes {taken / 2**30:.1f} GiB "
            "with gradients, optimizer, vLLM and Ray. Train a smaller one, or adapters with "
            "actor_rollout_ref.model.lora_rank=32."
        )


def choose_settings(config: Any) -> dict[str, Any]:
    """Overrides for verl's whole configuration with a pretrained model; none with another."""
    from verl.trainer.ppo.utils import need_reference_policy

    model = _read_config(config.actor_rollout_ref.model.path)
    if _weights(model) < _SMALL:
        return {}
    half = multiplies_bfloat16()
    free = max(0, memory() - _fixed_bytes(config, model))
    # Of a token: what a layer keeps for the backward pass, and its logits several times.
    kept = model["num_hidden_layers"] * (10 * model["hidden_size"] + 4 * _inner(model))
    activations = kept * (2 if half else 4) + 4 * model["vocab_size"] * 4
    most = int(_SHARE * free / activations / config.trainer.n_gpus_per_node)
    row = config.data.max_prompt_length + config.data.max_response_length
    tokens = max(row, min(_TOKENS, most))
    # Packing pays where prompts are shared, and a mask can share them in full attention.
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
    # FSDP2 reads an adapter's types in its first forward. That must not be the reference's, where
    # the adapter is off: without its types the first update ends in bfloat16.
    reference_first = is_lora(config) and need_reference_policy(config)
    # What is trained on, this policy has sampled.
    if config.trainer.v1.trainer_mode == "sync" and not reference_first:
        chosen["algorithm.rollout_correction.bypass_mode"] = True
    return chosen


def memory() -> int:
    """The bytes that this machine has, or the container around this process."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    written = limit.read_text().strip() if limit.exists() else "max"
    return min(total, int(written)) if written.isdecimal() else total


def multiplies_bfloat16() -> bool:
    """Return whether this processor multiplies in bfloat16; else float32 is faster."""
    import torch

    able = torch.cpu.get_capabilities()
    return any(able.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def _weights(model: Mapping[str, Any]) -> int:
    """About the number of a model's weights; 0 of an unknown one."""
    if "hidden_size" not in model:
        return 0
    width = model["hidden_size"]
    layers = model["num_hidden_layers"]
    return int(width * (model["vocab_size"] + layers * 3 * (width + _inner(model))))


def _inner(model: Mapping[str, Any]) -> int:
    return int(model.get("intermediate_size") or 4 * model["hidden_size"])


def _fixed_bytes(config: Any, model: Mapping[str, Any]) -> int:
    """The bytes of a training whatever its micro-batches are."""
    # In float32 the weights, and but for LoRA gradients and two moments; then the weights with
    # which vLLM and the trainer compute.
    size = 2 if multiplies_bfloat16() else 4
    return _weights(model) * ((4 if is_lora(config) else 16) + 2 * size) + _PROCESSES


def _read_config(path: str) -> dict[str, Any]:
    """The text model's part of its config.json; empty where there is none, which verl will say."""
    from transformers import PretrainedConfig

    if not has_configuration(os.path.expanduser(path)):
        return {}
    for offline in (True, False):  # the cache first: a hub out of reach takes its time
        with contextlib.suppress(OSError, ValueError):
            found, _ = PretrainedConfig.get_config_dict(
                os.path.expanduser(path), local_files_only=offline
            )
            return dict(found.get("text_config", found))
    return {}
