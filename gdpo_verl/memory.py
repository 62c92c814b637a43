"""Whether a model can fit on its devices at all, told from configuration files before Ray starts.

Lower bounds, so that nothing is refused that could run: weights, gradients and the optimizer's
state, without activations, the reference policy or a cache. What passes may still run out of
memory; `remedy_for` then reads the error.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

logger = logging.getLogger(__name__)

GIB = 1 << 30
# AdamW: the weights, their gradients and two moments, all in the weights' type.
_STATES = 4
_REMEDIES = {
    r"CUDA out of memory": (
        "lower actor_rollout_ref.actor.ppo_max_token_len_per_gpu (or, without use_dynamic_bsz, "
        "ppo_micro_batch_size_per_gpu) and actor_rollout_ref.rollout.gpu_memory_utilization, or "
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


@dataclass(frozen=True)
class Bound:
    """A need of memory that nothing in the run can avoid.

    Attributes:
      what: the need, in words.
      needed: bytes on one device (without a GPU: on one machine).
      available: bytes that it may use there.
      lower: what to change.
    """

    what: str
    needed: float
    available: float
    lower: str


def check_memory(config: Any, *, on_cpu: bool) -> None:
    """Refuse a model that cannot fit on this machine's devices.

    Says nothing where it cannot know: a model whose configuration cannot be had or is not a
    language model's, engines other than FSDP, a GPU that `nvidia-smi` does not know.

    Args:
      config: verl's whole configuration.
      on_cpu: whether its devices are the machine's cores.

    Raises:
      ValueError: names the model, the need, what is there and what to lower.
    """
    if config.actor_rollout_ref.actor.strategy not in ("fsdp", "fsdp2"):
        return
    weights = count_weights(config.actor_rollout_ref.model)
    if weights is None:
        return
    total = machine_memory() if on_cpu else device_memory()
    if total is None:
        return
    for bound in (cpu_bounds if on_cpu else gpu_bounds)(config, weights, total):
        if bound.needed > bound.available:
            raise ValueError(
                f"actor_rollout_ref.model.path: {config.actor_rollout_ref.model.path!r}, "
                f"{weights / 1e9:.2f} billion weights, does not fit: {bound.what} at least "
                f"{bound.needed / GIB:.1f} GiB, and there are {bound.available / GIB:.1f} GiB. "
                f"{bound.lower}"
            )


def gpu_bounds(config: Any, weights: int, total: int) -> Iterator[Bound]:
    """What training and sampling need at least on one GPU.

    Args:
      config: verl's whole configuration.
      weights: how many the model has.
      total: bytes on one GPU.
    """
    rollout, fsdp = config.actor_rollout_ref.rollout, config.actor_rollout_ref.actor.fsdp_config
    shards, share = _shards(config), _training_share(config, weights)
    if not fsdp.offload_policy:
        yield Bound(
            f"training needs on each GPU, in {shards} shards,",
            share,
            total,
            "Lower it by more GPUs (trainer.n_gpus_per_node, trainer.nnodes), LoRA "
            "(actor_rollout_ref.model.lora_rank=32), half precision "
            "(actor_rollout_ref.actor.fsdp_config.model_dtype=bfloat16) or a smaller model.",
        )
    utilization = rollout.gpu_memory_utilization
    parallel = rollout.tensor_model_parallel_size * rollout.pipeline_model_parallel_size
    if not rollout.quantization:
        yield Bound(
            f"{rollout.name} needs for its copy of the weights, in {parallel} parts,",
            weights * _bytes(rollout.dtype) / parallel,
            utilization * total,
            "Raise actor_rollout_ref.rollout.tensor_model_parallel_size or "
            f"gpu_memory_utilization (now {utilization}), or take a smaller model.",
        )
    if config.actor_rollout_ref.hybrid_engine and not fsdp.offload_policy:
        # Training's state that stays on the GPU while vLLM samples; gradients are gone by then.
        own = _own_weights(config, weights) / shards
        stays = 0 if fsdp.param_offload else own
        if not (fsdp.optimizer_offload or _is_lora(config)):
            stays += 2 * own
        yield Bound(
            f"while {rollout.name} samples with gpu_memory_utilization={utilization}, the "
            "training's own state needs beside it on each GPU",
            stays,
            (1 - utilization) * total,
            "Lower actor_rollout_ref.rollout.gpu_memory_utilization, or set "
            "actor_rollout_ref.actor.fsdp_config.optimizer_offload=true and param_offload=true.",
        )


def cpu_bounds(config: Any, weights: int, total: int) -> Iterator[Bound]:
    """What the logical devices of one machine without a GPU need at least together.

    Args:
      config: verl's whole configuration.
      weights: how many the model has.
      total: bytes of memory of the machine.
    """
    rollout = config.actor_rollout_ref.rollout
    devices = config.trainer.n_gpus_per_node
    copies = devices / rollout.tensor_model_parallel_size
    yield Bound(
        f"training and the copies of {rollout.name} ({copies:.0f}) need on this machine",
        devices * _training_share(config, weights) + copies * weights * _bytes(rollout.dtype),
        total,
        "Take a smaller model, LoRA (actor_rollout_ref.model.lora_rank=32) or a machine with a "
        "GPU; fewer logical devices (trainer.n_gpus_per_node) need fewer copies.",
    )


def count_weights(model: Any) -> int | None:
    """How many weights a model has, from its configuration; None when that cannot be told.

    Args:
      model: verl's ``actor_rollout_ref.model``.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    remote_code = bool(model.get("trust_remote_code", False))
    try:
        found = AutoConfig.from_pretrained(model.path, trust_remote_code=remote_code)
        with torch.device("meta"):
            empty = AutoModelForCausalLM.from_config(found, trust_remote_code=remote_code)
    except Exception as error:
        # Whether the model can be loaded at all is verl's to say.
        logger.debug("the weights of %s could not be counted: %s", model.path, error)
        return None
    return int(sum(parameter.numel() for parameter in empty.parameters()))


def device_memory() -> int | None:
    """Bytes of this machine's smallest GPU, or None when `nvidia-smi` knows none."""
    # Not torch: the process that asks may not be given a GPU by Ray, and must not take one.
    if shutil.which("nvidia-smi") is None:
        return None
    command = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    mebibytes = [int(line) for line in answer.stdout.split() if line.isdecimal()]
    return min(mebibytes) << 20 if answer.returncode == 0 and mebibytes else None


def machine_memory() -> int:
    """Bytes of memory of this machine."""
    return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def remedy_for(error: str) -> str | None:
    """What to lower, for the words in which torch, vLLM or Ray say that memory ran out.

    >>> remedy_for("torch.OutOfMemoryError: CUDA out of memory. Tried to …")[:59]
    'lower actor_rollout_ref.actor.ppo_max_token_len_per_gpu (or'
    >>> remedy_for("KeyError: 'format'")
    """
    found = (remedy for words, remedy in _REMEDIES.items() if re.search(words, error))
    return next(found, None)


def _shards(config: Any) -> int:
    devices = config.trainer.nnodes * config.trainer.n_gpus_per_node
    size = config.actor_rollout_ref.actor.fsdp_config.fsdp_size
    return int(size if 0 < size < devices else devices)


def _is_lora(config: Any) -> bool:
    model = config.actor_rollout_ref.model
    return bool(model.lora_rank or model.get("lora_adapter_path"))


def _own_weights(config: Any, weights: int) -> float:
    return weights * _bytes(config.actor_rollout_ref.actor.fsdp_config.model_dtype or "fp32")


def _training_share(config: Any, weights: int) -> float:
    adamw = config.actor_rollout_ref.actor.optim.optimizer == "AdamW"
    # Of LoRA's own state, which is small, nothing is counted.
    states = 1 if _is_lora(config) else _STATES if adamw else 2
    return states * _own_weights(config, weights) / _shards(config)


def _bytes(dtype: str) -> int:
    """Bytes of one weight; unknown names, `auto` among them, count as half precision."""
    return 4 if dtype in ("fp32", "float32", "float") else 2
