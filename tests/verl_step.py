"""One micro-batch through verl's own FSDP engine code on the CPU, counted by PyTorch's tracker."""

from __future__ import annotations

import contextlib
import types
from typing import Any

import torch
from torch.distributed._tools.mem_tracker import MemTracker
from torch.overrides import TorchFunctionMode
from transformers import AutoModelForCausalLM, Qwen2Config
from verl.models.transformers.monkey_patch import apply_monkey_patch
from verl.utils import tensordict_utils as tu
from verl.utils import torch_functional
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

_SOFTMAX = (torch.softmax, torch.nn.functional.softmax, torch.nn.functional.log_softmax)
_SUMS = (torch.logsumexp, torch.sum)


class CudaAutocast(TorchFunctionMode):
    """CUDA's autocast to bfloat16, which computes these in float32; the CPU's does not."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in _SOFTMAX:
            kwargs["dtype"] = torch.float32
        elif func in _SUMS and args[0].dtype is torch.bfloat16:
            args = (args[0].float(), *args[1:])
        return func(*args, **kwargs)


def count_bytes(
    shape: Qwen2Config,
    rows: list[int],
    *,
    dtype: torch.dtype,
    update: bool,
    entropy: bool,
    packed: bool = True,
    fused: bool = False,
    chunked: bool = False,
) -> int:
    """The peak of all tensors but the weights, in bytes.

    Args:
      shape: of the model.
      rows: their lengths in tokens.
      update: with gradients, else old log-probabilities.
      entropy: computed, and part of the loss of an update.
    """
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(shape, dtype=dtype, attn_implementation="sdpa")
    forward = type(model).forward
    apply_monkey_patch(
        model,
        use_remove_padding=packed,
        use_fused_kernels=fused,
        fused_kernels_backend="torch",
    )
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train(update)
    engine = _engine(model, chunked)
    micro_batch = _micro_batch(rows, shape.vocab_size, entropy, packed, fused)
    tracker = MemTracker()
    tracker.track_external(model)
    autocast = CudaAutocast() if dtype is torch.bfloat16 else contextlib.nullcontext()
    try:
        with tracker, autocast, contextlib.nullcontext() if update else torch.no_grad():
            _step(engine, micro_batch, update, entropy)
    finally:
        type(model).forward = forward
    peak = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]
    weights = sum(parameter.numel() for parameter in model.parameters()) * dtype.itemsize
    return int(peak["Total"]) - weights


def _step(engine: Any, micro_batch: Any, update: bool, entropy: bool) -> None:
    inputs, wanted = engine.prepare_model_inputs(micro_batch)
    output = engine.module(**inputs, use_cache=False)
    found = engine.prepare_model_outputs(output, wanted, micro_batch, None)
    del output
    if update:
        loss = found["log_probs"].values().float().sum()
        if entropy:
            loss = loss - 0.001 * found["entropy"].values().float().sum()
        loss.backward()


def _engine(model: Any, chunked: bool) -> Any:
    engine = object.__new__(FSDPEngineWithLMHead)
    engine.module = model
    engine.use_ulysses_sp, engine.ulysses_sequence_parallel_size = False, 1
    engine.pad_to_length = False
    engine.engine_config = types.SimpleNamespace(
        entropy_checkpointing=False,
        entropy_from_logits_with_chunking=chunked,
        entropy_from_logits_chunk_size=2048,
    )
    engine.compute_entropy_from_logits = (
        torch_functional.entropy_from_logits_with_chunking
        if chunked
        else torch_functional.entropy_from_logits
    )
    return engine


def _micro_batch(rows: list[int], vocabulary: int, entropy: bool, packed: bool, fused: bool) -> Any:
    def nested(tensors: list[torch.Tensor]) -> torch.Tensor:
        return torch.nested.as_nested_tensor(tensors, layout=torch.jagged)

    return tu.get_tensordict(
        {
            "input_ids": nested([torch.randint(vocabulary, (length,)) for length in rows]),
            "position_ids": nested([torch.arange(length) for length in rows]),
        },
        {
            "temperature": 1.0,
            "use_remove_padding": packed,
            "use_fused_kernels": fused,
            "calculate_entropy": entropy,
            "pad_token_id": 0,
        },
    )
