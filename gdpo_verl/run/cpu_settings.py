"""Settings of `hardware=cpu` that depend on the model, the processor and the machine's memory.

The recipe's own values are the tiny policy's. A pretrained model is recognised by its number of
weights; of it only config.json is read.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from gdpo_verl.run.memory import is_lora
from gdpo_verl.start import multiplies_bfloat16

BUCKET = "actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes"
_MIB = 1 << 20
_SMALL = 10_000_000  # weights
# Attention is dense over a micro-batch, so that a longer one costs more.
_TOKENS = 512
# Ray, vLLM without its weights and what all of them import; then the activations' part of the rest.
_PROCESSES = 4 << 30
_SHARE = 0.5


class Shape(NamedTuple):
    """A model's sizes, and the bytes that its training takes whatever the micro-batches are."""

    width: int
    inner: int
    layers: int
    words: int
    size: int  # of a number that is computed with
    fixed: int


def _shape(config: Any) -> tuple[Shape | None, dict[str, Any]]:
    """The sizes of a pretrained model, and its config.json; None for a tiny or unknown one."""
    found = _read_config(config.actor_rollout_ref.model.path)
    model = found.get("text_config", found)
    if "hidden_size" not in model:
        return None, model
    width, layers, words = (model[k] for k in ("hidden_size", "num_hidden_layers", "vocab_size"))
    inner = model.get("intermediate_size") or 4 * width
    weights = words * width + layers * width * (3 * width + 3 * inner)
    if weights < _SMALL:
        return None, model
    size = 2 if multiplies_bfloat16() else 4
    # In float32 the weights, and but for LoRA gradients and two moments; then vLLM's weights and
    # those that the trainer computes with.
    fixed = weights * ((4 if is_lora(config) else 16) + 2 * size) + _PROCESSES
    return Shape(width, inner, layers, words, size, fixed), model


def check_memory(config: Any) -> None:
    """Refuse a model whose weights and optimizer alone are larger than this machine's memory.

    Raises:
      ValueError: names the key, what there is and what it takes.
    """
    shape, _ = _shape(config)
    if shape and shape.fixed > memory():
        raise ValueError(
            "actor_rollout_ref.model.path: expected a model that can be trained in this machine's "
            f"{memory() / 2**30:.1f} GiB of memory, found one that takes {shape.fixed / 2**30:.1f} "
            "GiB with gradients, optimizer, vLLM and Ray. Train a smaller one, or adapters with "
            "actor_rollout_ref.model.lora_rank=32."
        )


def choose_settings(config: Any) -> dict[str, Any]:
    """Overrides for verl's whole configuration with a pretrained model; none with another."""
    shape, model = _shape(config)
    if shape is None:
        return {}
    width, inner, layers, words, size, fixed = shape
    half, free = size == 2, max(0, memory() - fixed)
    # Of a token: what a layer keeps for the backward pass, and its logits several times.
    activations = layers * (10 * width + 4 * inner) * size + 4 * words * 4
    most = int(_SHARE * free / activations / config.trainer.n_gpus_per_node)
    row = config.data.max_prompt_length + config.data.max_response_length
    tokens = max(row, min(_TOKENS, most))
    # Packing pays where prompts are shared, and a mask can share them in full attention.
    shares = set(model.get("layer_types") or ["full_attention"]) == {"full_attention"}
    ours = "actor_rollout_ref"
    chosen: dict[str, Any] = {
        BUCKET: max(64, -(-max(words, inner) * width * 4 // _MIB)),
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
    if config.trainer.v1.trainer_mode == "sync":  # what is trained on, this policy has sampled
        chosen["algorithm.rollout_correction.bypass_mode"] = True
    return chosen


def describe(config: Any) -> str:
    """What was chosen, or set in its place, in a few words."""
    actor = config.actor_rollout_ref.actor
    once = ", each prompt once for its responses" if actor.use_prefix_grouper else ""
    return f"computes in {actor.fsdp_config.dtype}{once}"


def memory() -> int:
    """The bytes that this machine has, or the container around this process."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    written = limit.read_text().strip() if limit.exists() else "max"
    return min(total, int(written)) if written.isdecimal() else total


def _read_config(path: str) -> dict[str, Any]:
    """The model's config.json; empty where there is none, which verl will say."""
    from huggingface_hub import hf_hub_download

    file = os.path.join(os.path.expanduser(path), "config.json")
    try:
        if not os.path.isdir(os.path.dirname(file)):
            file = hf_hub_download(path, "config.json")
        found: dict[str, Any] = json.loads(Path(file).read_text(encoding="utf-8"))
        return found
    except (OSError, ValueError):
        return {}
