"""The memory of one micro-batch while verl computes log-probabilities or an update.

verl's FSDP engine (verl/workers/engine/fsdp/transformer_impl.py) runs the model, then for all
tokens of the micro-batch the log-probabilities and, where asked for, the entropy. The factors
below are bytes, counted by PyTorch's memory tracker on verl's own functions (tests/test_memory.py
counts them again): for bfloat16, where autocast computes every softmax in float32, and for float32.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

logger = logging.getLogger(__name__)

Phase = Literal["log_prob", "update"]

# For each token and entry of the vocabulary, with the logits in memory at once
# (verl/utils/torch_functional.py, `logprobs_from_logits` and `entropy_from_logits`).
_LOG_PROB = (10, 12)  # no gradients; verl computes the entropy always
_UPDATE = (6, 16)
_UPDATE_PADDED = (8, 20)  # the unpadded rows are copied out of the padded ones
_UPDATE_ENTROPY = (26, 28)  # actor.entropy_coeff is not 0
_CHUNKED_LOGITS, _CHUNKED_ENTROPY = (2, 4), (12, 8)
_ENTROPY_CHUNK = 2048
# The same where the logits are made and thrown away by chunks of tokens
# (verl/utils/experimental/torch_functional.py, `FusedLinearForPPO`), and how many gradients as
# large as the matrix of the vocabulary it holds.
_FUSED_LOG_PROB, _FUSED_UPDATE, _FUSED_UPDATE_ENTROPY = (12, 12), (16, 12), (24, 20)
_FUSED_CHUNK, _FUSED_GRADIENTS = 512, 4
# In one layer, for each token and each number of its width: hidden states; inner states of the
# MLP. In units of a number's own size.
_INFER_LAYER, _UPDATE_LAYER, _KEPT_LAYER = (4.6, 3), (15, 6), (16, 4)
# Rows of which verl's partition is tried.
_ROWS = 256


@dataclass(frozen=True)
class Shape:
    """A decoder's sizes that decide its memory; `embeddings` are 1 (tied) or 2 matrices."""

    weights: int
    layers: int
    hidden: int
    inner: int
    vocabulary: int


@dataclass(frozen=True)
class MicroBatch:
    """The largest micro-batch of a phase.

    Attributes:
      tokens: that the model computes, padding included.
      span: tokens between which attention is computed: a pack's, or the longest row's.
      key: the configuration key that sets its size.
    """

    tokens: int
    span: int
    key: str


@dataclass(frozen=True)
class Work:
    """Bytes that a phase needs beside the training's state.

    Attributes:
      vocabulary: for logits, log-probabilities, entropy and their gradients.
      layers: for the layers' hidden states, kept and in work, and the mask of attention.
      gathered: for weights that FSDP gathers, and their gradients.
    """

    micro_batch: MicroBatch
    vocabulary: float
    layers: float
    gathered: float

    @property
    def total(self) -> float:
        return self.vocabulary + self.layers + self.gathered


def load_shape(model: Any) -> Shape | None:
    """A model's sizes, from its configuration alone; None when they cannot be told.

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
        text = found.get_text_config()
        sizes = (text.num_hidden_layers, text.hidden_size, text.intermediate_size, text.vocab_size)
    except Exception as error:
        # Whether the model can be loaded at all is verl's to say.
        logger.debug("the weights of %s could not be counted: %s", model.path, error)
        return None
    return Shape(int(sum(parameter.numel() for parameter in empty.parameters())), *sizes)


def micro_batch(config: Any, phase: Phase) -> MicroBatch:
    """The largest micro-batch that verl makes in a phase.

    With packing it is never above the limit of tokens. Without, rows are padded to the longest of
    their micro-batch; how many come together is asked of verl's own partition, for rows whose
    lengths are spread evenly between an eighth of the longest and the longest.
    """
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    prefix, place = (
        ("actor_rollout_ref.actor.ppo_", actor)
        if phase == "update"
        else ("actor_rollout_ref.rollout.log_prob_", rollout)
    )
    name = prefix.rpartition(".")[2]
    longest = config.data.max_prompt_length + config.data.max_response_length
    rows = _rows(config, phase)
    packed = bool(config.actor_rollout_ref.model.use_remove_padding)
    if not actor.use_dynamic_bsz:
        key = "micro_batch_size_per_gpu"
        tokens = (place[f"{name}{key}"] or rows) * longest
    else:
        key = "max_token_len_per_gpu"
        tokens = min(place[f"{name}{key}"], rows * longest)
        if not packed:
            tokens = _padded(tokens, longest, rows)
    return MicroBatch(tokens, tokens if packed else longest, f"{prefix}{key}")


def work(config: Any, shape: Shape, phase: Phase) -> Work:
    """The memory that a phase needs for its largest micro-batch.

    Args:
      config: verl's whole configuration.
      shape: the model's.
      phase: "log_prob" computes old log-probabilities, "update" trains.
    """
    batch = micro_batch(config, phase)
    size = compute_bytes(config)
    matrix = size * shape.hidden * shape.vocabulary
    gathered = matrix + 2 * size * (shape.weights - matrix / size) / max(shape.layers, 1)
    if phase == "update" and not is_lora(config):
        fused = config.actor_rollout_ref.model.use_fused_kernels
        gathered += (_FUSED_GRADIENTS if fused else 1) * matrix
    vocabulary = sum(_vocabulary(config, batch.tokens, phase, size)) * shape.vocabulary
    layers = _layers(config, shape, batch, phase, size)
    return Work(batch, vocabulary, layers, gathered)


def compute_bytes(config: Any) -> int:
    """Bytes of one number in the computation: FSDP's param_dtype, bfloat16 unless set."""
    policy = config.actor_rollout_ref.actor.fsdp_config.get("mixed_precision") or {}
    return 4 if policy.get("param_dtype", "bf16") in ("fp32", "float32", "float") else 2


def is_lora(config: Any) -> bool:
    """Tell whether adapters are trained in place of the weights."""
    model = config.actor_rollout_ref.model
    return bool(model.lora_rank or model.get("lora_adapter_path"))


def _vocabulary(config: Any, tokens: int, phase: Phase, size: int) -> Iterator[float]:
    model, actor = config.actor_rollout_ref.model, config.actor_rollout_ref.actor
    kind = size == 4
    entropy = actor.entropy_coeff != 0 or actor.calculate_entropy
    if model.use_fused_kernels:
        update = _FUSED_UPDATE_ENTROPY if entropy else _FUSED_UPDATE
        factors = update if phase == "update" else _FUSED_LOG_PROB
        yield factors[kind] * min(tokens, _FUSED_CHUNK)
    elif phase == "update" and entropy:
        yield _UPDATE_ENTROPY[kind] * tokens
    elif phase == "update":
        yield (_UPDATE if model.use_remove_padding else _UPDATE_PADDED)[kind] * tokens
    elif actor.entropy_from_logits_with_chunking and model.use_remove_padding:
        yield _CHUNKED_LOGITS[kind] * tokens
        yield _CHUNKED_ENTROPY[kind] * min(tokens, _ENTROPY_CHUNK)
    else:
        yield _LOG_PROB[kind] * tokens


def _layers(config: Any, shape: Shape, batch: MicroBatch, phase: Phase, size: int) -> float:
    def numbers(factors: tuple[float, float]) -> float:
        return factors[0] * shape.hidden + factors[1] * shape.inner

    model = config.actor_rollout_ref.model
    flash = (model.get("override_config") or {}).get("attn_implementation", "") != "sdpa"
    mask = 0 if flash else (1 + size * (phase == "update")) * batch.span
    if phase == "log_prob":
        return batch.tokens * (size * numbers(_INFER_LAYER) + mask)
    if model.enable_gradient_checkpointing:
        kept: float = size * shape.layers * shape.hidden
    else:
        kept = size * (shape.layers - 1) * numbers(_KEPT_LAYER)
    return batch.tokens * (kept + size * numbers(_UPDATE_LAYER) + mask)


def _rows(config: Any, phase: Phase) -> int:
    devices = config.trainer.nnodes * config.trainer.n_gpus_per_node
    prompts = (
        config.actor_rollout_ref.actor.ppo_mini_batch_size
        if phase == "update"
        else config.data.train_batch_size
    )
    return max(1, int(prompts * config.actor_rollout_ref.rollout.n // devices))


def _padded(limit: int, longest: int, rows: int) -> int:
    import torch
    from verl.utils import tensordict_utils as tu
    from verl.utils.seqlen_balancing import rearrange_micro_batches

    lengths = torch.linspace(longest / 8, longest, min(rows, _ROWS)).long().tolist()
    ids = torch.nested.as_nested_tensor(
        [torch.zeros(length, dtype=torch.int8) for length in lengths], layout=torch.jagged
    )
    batch = tu.get_tensordict({"input_ids": ids}, {})
    _, parts = rearrange_micro_batches(batch, max(limit, longest))
    return int(max(len(part) * max(lengths[row] for row in part) for part in parts))
