"""Estimate the memory that a run needs at least, and name remedies when memory runs out.

The numbers are only information, and no run may be rejected because of them. They have not been
compared with the use of a GPU, and activations, fragmentation and the engines' buffers come on top.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from gdpo_verl.upstream.model import has_configuration, is_lora

_REMEDIES = {
    r"CUDA out of memory": (
        "lower actor_rollout_ref.actor.ppo_max_token_len_per_gpu where it was in an update, "
        "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu where in log-probabilities "
        "(without use_dynamic_bsz ppo_ and log_prob_micro_batch_size_per_gpu), or "
        "actor_rollout_ref.rollout.gpu_memory_utilization, or "
        "set actor_rollout_ref.actor.fsdp_config.param_offload=true and optimizer_offload=true"
    ),
    r"No available memory for the cache blocks": (
        "raise actor_rollout_ref.rollout.gpu_memory_utilization or tensor_model_parallel_size, or "
        "take a smaller model"
    ),
    r"larger than the available KV cache": (
        "lower actor_rollout_ref.rollout.max_model_len (data.max_prompt_length + "
        "data.max_response_length is enough), or raise gpu_memory_utilization there; without a GPU "
        "ray_kwargs.ray_init.runtime_env.env_vars.VLLM_CPU_KVCACHE_SPACE, in GiB"
    ),
    r"less than desired GPU memory utilization": (
        "lower actor_rollout_ref.rollout.gpu_memory_utilization, or end what else uses the GPU"
    ),
    r"(?:running|ran) low on memory": (
        "Ray ended a worker for want of the machine's own memory; lower "
        "actor_rollout_ref.rollout.agent.num_workers, reward.num_workers or "
        "data.train_batch_size, end what else runs, or switch off param_offload and "
        "optimizer_offload where the GPU has room"
    ),
}


class Shape(NamedTuple):
    """A model's number of weights, and of entries in its vocabulary."""

    weights: int
    vocabulary: int


def load_shape(model: Any) -> Shape | None:
    """Return the sizes of verl's ``actor_rollout_ref.model``; None without its configuration."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    remote_code = bool(model.get("trust_remote_code", False))
    try:
        if not has_configuration(model.path):
            return None
        architecture = AutoConfig.from_pretrained(model.path, trust_remote_code=remote_code)
        with torch.device("meta"):  # the weights are counted without being allocated
            empty = AutoModelForCausalLM.from_config(architecture, trust_remote_code=remote_code)
        weights = sum(parameter.numel() for parameter in empty.parameters())
        return Shape(weights, architecture.get_text_config().vocab_size)
    except Exception:
        return None  # verl itself reports a model that cannot be loaded


def needs(config: Any, shape: Shape) -> Iterator[tuple[str, float]]:
    """Yield the largest tensors that each device stores under verl's configuration, with bytes."""
    model, actor, rollout = (config.actor_rollout_ref[key] for key in ("model", "actor", "rollout"))
    if actor.strategy in ("fsdp", "fsdp2"):
        fsdp = actor.fsdp_config
        devices = config.trainer.nnodes * config.trainer.n_gpus_per_node
        # The size -1 means all devices.
        shards = fsdp.fsdp_size if 0 < fsdp.fsdp_size < devices else devices
        size = 0 if fsdp.offload_policy else _bytes(fsdp.model_dtype or "fp32")
        shard = shape.weights * size / shards
        yield f"weights in {shards} shard(s){_between_uses(fsdp.param_offload)}", shard
        if not is_lora(config):
            yield "their gradients in an update", shard
            yield f"the optimizer's two moments{_between_uses(fsdp.optimizer_offload)}", 2 * shard
    parts = rollout.tensor_model_parallel_size * rollout.pipeline_model_parallel_size
    if not rollout.quantization:
        size = shape.weights * _bytes(rollout.dtype)
        yield f"{rollout.name}'s copy of the weights in {parts} part(s)", size / parts
    # Without dynamic batches a micro-batch is a number of rows, each padded to the longest.
    unit = "max_token_len"
    tokens_a_unit = 1
    if not actor.use_dynamic_bsz:
        unit = "micro_batch_size"
        tokens_a_unit = config.data.max_prompt_length + config.data.max_response_length
    updates = actor[f"ppo_{unit}_per_gpu"] or 0
    infers = rollout[f"log_prob_{unit}_per_gpu"] or 0
    key = f"actor.ppo_{unit}" if updates >= infers else f"rollout.log_prob_{unit}"
    tokens = max(updates, infers) * tokens_a_unit
    fused = ", never all at once by use_fused_kernels" if model.use_fused_kernels else ""
    what = f"logits of one micro-batch, {tokens:,} tokens by actor_rollout_ref.{key}_per_gpu{fused}"
    yield what, tokens * shape.vocabulary * 4


def _between_uses(offloaded: bool) -> str:
    return ", in the machine's memory between uses" if offloaded else ""


def _bytes(dtype: str) -> int:
    """Return the bytes of one weight; unknown names, such as `auto`, count as half precision."""
    return 4 if dtype in ("fp32", "float32", "float") else 2


def remedy_for(error: str) -> str | None:
    """Return the remedy for an error of torch, vLLM or Ray about memory; None for other errors.

    >>> remedy_for("torch.OutOfMemoryError: CUDA out of memory. Tried to …")[:55]
    'lower actor_rollout_ref.actor.ppo_max_token_len_per_gpu'
    >>> remedy_for("KeyError: 'format'")
    """
    return next((remedy for words, remedy in _REMEDIES.items() if re.search(words, error)), None)
