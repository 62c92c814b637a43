"""A model's fit on its devices, estimated from configuration files before Ray starts.

The training's state (weights, gradients, the optimizer's) and the largest micro-batch's work
(`gdpo_verl.run.activations`), without fragments and the engine's own buffers. What passes may still
run out of memory; `remedy_for` then reads the error.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gdpo_verl.run.activations import Phase, Shape, Work, is_lora, load_shape, work

GIB = 1 << 30
# What the CUDA contexts of the trainer and of a sleeping vLLM, and NCCL, keep: assumed.
CONTEXT = 2 * GIB
# AdamW: the weights, their gradients and two moments, all in the weights' type.
_STATES = 4
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


@dataclass(frozen=True)
class Bound:
    """A need of memory.

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

    @property
    def fits(self) -> bool:
        return self.needed <= self.available


def check_memory(config: Any, *, on_cpu: bool) -> None:
    """Refuse a model that cannot fit on this machine's devices.

    Says nothing where it cannot know: a model whose configuration is not available or is not a
    language model's, engines other than FSDP, a GPU that `nvidia-smi` does not know.

    Args:
      config: verl's whole configuration.
      on_cpu: whether its devices are the machine's cores.

    Raises:
      ValueError: names the model, the need, what is there and what to lower.
    """
    if config.actor_rollout_ref.actor.strategy not in ("fsdp", "fsdp2"):
        return
    shape = load_shape(config.actor_rollout_ref.model)
    total = machine_memory() if on_cpu else device_memory()
    if shape is None or total is None:
        return
    for bound in (cpu_bounds if on_cpu else gpu_bounds)(config, shape, total):
        if not bound.fits:
            raise ValueError(refusal(config, shape, bound))


def refusal(config: Any, shape: Shape, bound: Bound) -> str:
    """Say why a run does not fit, with the key to change."""
    return (
        f"actor_rollout_ref.model.path: {config.actor_rollout_ref.model.path!r}, "
        f"{shape.weights / 1e9:.2f} billion weights, does not fit: {bound.what} "
        f"{bound.needed / GIB:.1f} GiB, and there are {bound.available / GIB:.1f} GiB. "
        f"{bound.lower}"
    )


def gpu_bounds(config: Any, shape: Shape, total: int) -> Iterator[Bound]:
    """The memory that training and sampling need on one GPU.

    Args:
      config: verl's whole configuration.
      shape: the model's.
      total: bytes on one GPU.
    """
    rollout, fsdp = config.actor_rollout_ref.rollout, config.actor_rollout_ref.actor.fsdp_config
    own = 0.0 if fsdp.offload_policy else _own_weights(config, shape.weights) / _shards(config)
    moments = 0.0 if is_lora(config) else 2 * own
    gradients = 0.0 if is_lora(config) else own
    # A sleeping vLLM has given its share back.
    sleeps = rollout.free_cache_engine and rollout.get("enable_sleep_mode", True)
    room = (total if sleeps else (1 - rollout.gpu_memory_utilization) * total) - CONTEXT
    resident = own + (0.0 if fsdp.optimizer_offload else moments)
    yield _phase_bound(config, shape, "log_prob", resident, room)
    yield _phase_bound(config, shape, "update", own + moments + gradients, room)
    utilization = rollout.gpu_memory_utilization
    parallel = rollout.tensor_model_parallel_size * rollout.pipeline_model_parallel_size
    if not rollout.quantization:
        yield Bound(
            f"{rollout.name} needs for its copy of the weights, in {parallel} parts,",
            shape.weights * _bytes(rollout.dtype) / parallel,
            utilization * total,
            "Raise actor_rollout_ref.rollout.tensor_model_parallel_size or "
            f"gpu_memory_utilization (now {utilization}), or take a smaller model.",
        )
    if config.actor_rollout_ref.hybrid_engine:
        yield Bound(
            f"while {rollout.name} samples with gpu_memory_utilization={utilization}, the "
            "training's own state needs beside it on each GPU",
            (0 if fsdp.param_offload else own) + (0 if fsdp.optimizer_offload else moments),
            (1 - utilization) * total,
            "Lower actor_rollout_ref.rollout.gpu_memory_utilization, or set "
            "actor_rollout_ref.actor.fsdp_config.optimizer_offload=true and param_offload=true.",
        )


def cpu_bounds(config: Any, shape: Shape, total: int) -> Iterator[Bound]:
    """The memory that the logical devices of one machine without a GPU need together.

    Args:
      config: verl's whole configuration.
      shape: the model's.
      total: bytes of memory of the machine.
    """
    rollout = config.actor_rollout_ref.rollout
    devices = config.trainer.n_gpus_per_node
    copies = devices / rollout.tensor_model_parallel_size
    own = _own_weights(config, shape.weights) / _shards(config)
    state = devices * (own if is_lora(config) else _STATES * own)
    state += copies * shape.weights * _bytes(rollout.dtype)
    yield Bound(
        f"training and the copies of {rollout.name} ({copies:.0f}) need on this machine at least",
        state,
        total,
        "Take a smaller model, LoRA (actor_rollout_ref.model.lora_rank=32) or a machine with a "
        "GPU; fewer logical devices (trainer.n_gpus_per_node) need fewer copies.",
    )
    phases: tuple[Phase, ...] = ("log_prob", "update")
    for phase in phases:
        needs = work(config, shape, phase)
        yield Bound(
            f"{_NAMES[phase]} needs on this machine about",
            state + devices * needs.total,
            total,
            f"Lower {needs.micro_batch.key}.",
        )


_NAMES = {"log_prob": "computing log-probabilities", "update": "an update"}


def _phase_bound(config: Any, shape: Shape, phase: Phase, state: float, available: float) -> Bound:
    needs = work(config, shape, phase)
    tokens, shards = needs.micro_batch.tokens, _shards(config)
    return Bound(
        f"{_NAMES[phase]} needs on each GPU for its state, in {shards} shards, "
        f"{state / GIB:.1f} GiB and for {tokens:,} tokens at a time {needs.total / GIB:.1f} GiB, "
        "together about",
        state + needs.total,
        available,
        _lower_work(config, needs) if needs.total > state else _LOWER_STATE,
    )


_LOWER_STATE = (
    "Lower it by more GPUs (trainer.n_gpus_per_node, trainer.nnodes), LoRA "
    "(actor_rollout_ref.model.lora_rank=32), half precision "
    "(actor_rollout_ref.actor.fsdp_config.model_dtype=bfloat16) or a smaller model."
)


def _lower_work(config: Any, needs: Work) -> str:
    """The key at fault, and what makes the work smaller without changing its size."""
    model = config.actor_rollout_ref.model
    longest = config.data.max_prompt_length + config.data.max_response_length
    lower = f"Lower {needs.micro_batch.key}"
    if needs.micro_batch.key.endswith("max_token_len_per_gpu"):
        lower += f" (at least {longest}, prompt and response together)"
    if not model.use_remove_padding:
        lower += ", or set actor_rollout_ref.model.use_remove_padding=true: rows are padded now"
    if not model.use_fused_kernels and needs.vocabulary > needs.layers:
        lower += (
            ", or set actor_rollout_ref.model.use_fused_kernels=true: the logits of all tokens "
            f"take {needs.vocabulary / GIB:.1f} GiB of it now"
        )
    return f"{lower}."


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
    """Name the key to lower, for the words in which torch, vLLM or Ray ran out of memory.

    >>> remedy_for("torch.OutOfMemoryError: CUDA out of memory. Tried to …")[:55]
    'lower actor_rollout_ref.actor.ppo_max_token_len_per_gpu'
    >>> remedy_for("KeyError: 'format'")
    """
    found = (remedy for words, remedy in _REMEDIES.items() if re.search(words, error))
    return next(found, None)


def _shards(config: Any) -> int:
    devices = config.trainer.nnodes * config.trainer.n_gpus_per_node
    size = config.actor_rollout_ref.actor.fsdp_config.fsdp_size
    return int(size if 0 < size < devices else devices)


def _own_weights(config: Any, weights: int) -> float:
    return weights * _bytes(config.actor_rollout_ref.actor.fsdp_config.model_dtype or "fp32")


def _bytes(dtype: str) -> int:
    """Bytes of one weight; unknown names, `auto` among them, count as half precision."""
    return 4 if dtype in ("fp32", "float32", "float") else 2
