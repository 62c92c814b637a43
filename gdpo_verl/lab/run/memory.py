"""The settings to lower when memory runs out."""

from __future__ import annotations

import re

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


def remedy_for(error: str) -> str | None:
    """Name the key to lower, for the words in which torch, vLLM or Ray ran out of memory.

    >>> remedy_for("torch.OutOfMemoryError: CUDA out of memory. Tried to …")[:55]
    'lower actor_rollout_ref.actor.ppo_max_token_len_per_gpu'
    >>> remedy_for("KeyError: 'format'")
    """
    return next((remedy for words, remedy in _REMEDIES.items() if re.search(words, error)), None)
