"""Compute each prompt once for all of its responses, in verl's FSDP engine.

The responses of a group follow the same prompt, but verl's engine computes the prompt again for
each response. With this module, a micro-batch is a single row. It has each distinct prompt once,
followed by the responses to it. An attention mask lets each response see only its prompt and
itself. Log-probabilities and gradients are the same as with separate rows. Logits are computed only
for response tokens.

The switch is verl's key ``actor_rollout_ref.actor.use_prefix_grouper``. verl 0.9.1 has this key,
but its engine (verl/workers/engine) does not read it. The idea comes from Prefix Grouper
(https://arxiv.org/abs/2506.05433).
"""

from __future__ import annotations

import logging
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from omegaconf import OmegaConf

from gdpo_verl.plugin import contract
from gdpo_verl.upstream.dependencies import source_of, violations
from gdpo_verl.upstream.hooks import wrap

logger = logging.getLogger(__name__)

KEY = "actor_rollout_ref.actor.use_prefix_grouper"
# The settings that are needed, with the values that are possible. None means that the key may be
# missing.
_NEEDS: dict[str, tuple[Any, ...]] = {
    "trainer.use_v1": (True, None),
    "actor_rollout_ref.actor.strategy": ("fsdp2", "fsdp"),
    "actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size": (1, None),
    "actor_rollout_ref.actor.fsdp_config.pad_to_length": (False, None),
    "actor_rollout_ref.model.override_config.attn_implementation": ("sdpa",),
    "actor_rollout_ref.model.use_remove_padding": (True,),
    "actor_rollout_ref.model.use_fused_kernels": (False,),
}
# The name of an attribute of an engine, and of an entry of its batches, that is true if prompts are
# shared. verl passes its own settings, such as use_remove_padding, in the same way.
_FLAG = "gdpo_shares_prompts"


class Packed(NamedTuple):
    """A micro-batch as one row of T tokens, of which N are response tokens.

    Attributes:
      tokens: int64, shape (T,): the indices of the micro-batch's tokens that are computed.
      mask: bool, shape (T, T): whether a token (first axis) sees another token (second axis).
      predictors: int64, shape (N,): for each response token, the index in `tokens` of the token
        that predicts it.
      places: int64, shape (N,): for each response token, the index in the micro-batch at which verl
        expects its log-probability. It is one before the token itself.
    """

    tokens: torch.Tensor
    mask: torch.Tensor
    predictors: torch.Tensor
    places: torch.Tensor


def pack(rows: list[list[int]], prompt_lengths: list[int]) -> Packed:
    """Pack rows of token ids into one row, with each distinct prompt once.

    Args:
      rows: the token ids of prompt and response of each row.
      prompt_lengths: the number of prompt tokens of each row.
    """
    tokens = list[int]()
    predictors = list[int]()
    places = list[int]()
    # A segment is a prompt or a response: its length, its number, and the number of its prompt.
    segments = list[tuple[int, int, int]]()
    # The segment of each prompt, and the index of its last token in `tokens`.
    prompts = dict[tuple[int, ...], tuple[int, int]]()
    begin = 0
    for row, length in zip(rows, prompt_lengths, strict=True):
        prompt = tuple(row[:length])
        middle = begin + length
        end = begin + len(row)
        if prompt not in prompts:
            prompts[prompt] = len(segments), len(tokens) + length - 1
            segments.append((length, len(segments), len(segments)))
            tokens += range(begin, middle)
        segment, last = prompts[prompt]
        segments.append((end - middle, len(segments), segment))
        if end > middle:
            # The last token of the prompt predicts the first token of the response. Each token of
            # the response predicts the next one.
            predictors.append(last)
            predictors += range(len(tokens), len(tokens) + end - middle - 1)
        places += range(middle - 1, end - 1)
        tokens += range(middle, end)
        begin = end
    lengths, segment_of, prompt_of = torch.tensor(segments).unbind(1)
    segment_of = segment_of.repeat_interleave(lengths)
    prompt_of = prompt_of.repeat_interleave(lengths)
    # A token sees the earlier tokens of its own segment and of its prompt.
    mask = ((segment_of[:, None] == segment_of) | (prompt_of[:, None] == segment_of)).tril()
    return Packed(torch.tensor(tokens), mask, torch.tensor(predictors), torch.tensor(places))


def divide(rows: list[list[int]], prompt_lengths: list[int], limit: int) -> list[list[int]]:
    """Divide rows into micro-batches of at most ``limit`` computed tokens.

    Rows with the same prompt are put together. A row with more than ``limit`` tokens is a
    micro-batch of its own.

    Returns:
      The numbers of the rows of each micro-batch.
    """
    prompts = [tuple(row[:length]) for row, length in zip(rows, prompt_lengths, strict=True)]
    parts = list[list[int]]()
    prompts_in_part = set[tuple[int, ...]]()
    room = 0  # the number of tokens that still fit into the last micro-batch
    for row in sorted(range(len(rows)), key=prompts.__getitem__):
        count = len(rows[row])
        if prompts[row] in prompts_in_part:
            count -= len(prompts[row])
        if count > room or not parts:
            parts.append([])
            prompts_in_part = set()
            room = limit
            count = len(rows[row])
        parts[-1].append(row)
        prompts_in_part.add(prompts[row])
        room -= count
    return parts


def share(worker: Any) -> None:
    """Let the engines of a verl worker, for the actor and the reference policy, share prompts.

    If the settings do not fit, prompts are not shared, and a warning is logged. (A run that uses
    gdpo-verl does not come here then, because `check` rejects it.)
    """
    from verl.workers.engine.fsdp import transformer_impl

    roles = [role for role in (worker.actor, worker.ref) if role is not None]
    models = [role.engine.model_config.hf_config.get_text_config() for role in roles]
    layers = {kind for model in models for kind in getattr(model, "layer_types", None) or ()}
    wrong = _unmet(OmegaConf.create({"actor_rollout_ref": worker.config}))
    if layers - {"full_attention"}:
        wrong.append(f"full attention in all layers, not {sorted(layers)}")
    if wrong:
        logger.warning("%s has no effect, because it needs %s", KEY, ", ".join(wrong))
        return
    for role in roles:
        setattr(role.engine, _FLAG, True)
    _install(transformer_impl)


@cache
def _install(engine: Any) -> None:
    """Wrap verl's engine (verl/workers/engine/fsdp/transformer_impl.py) in this process."""
    from verl.utils import device
    from verl.utils.tensordict_utils import (
        assign_non_tensor,
        get_non_tensor_data,
        index_select_tensor_dict,
    )

    def forward_backward(original: Any, self: Any, data: Any, *args: Any, **kwargs: Any) -> Any:
        assign_non_tensor(data, **{_FLAG: getattr(self, _FLAG, False)})
        return original(self, data, *args, **kwargs)

    def micro_batches(original: Any, data: Any, dp_group: Any = None, **kwargs: Any) -> Any:
        if not (_shares(data) and get_non_tensor_data(data, "use_dynamic_bsz", True)):
            return original(data=data, dp_group=dp_group, **kwargs)
        parts = divide(*_rows(data), data["max_token_len_per_gpu"])
        # The processes of FSDP gather weights together, so all of them need the same number of
        # micro-batches. A process with fewer of them splits its longest ones.
        most = torch.tensor(len(parts), device=device.get_device_name())
        torch.distributed.all_reduce(most, torch.distributed.ReduceOp.MAX, group=dp_group)
        while len(parts) < most:
            longest = max(parts, key=len)
            parts.remove(longest)
            parts += [longest[: len(longest) // 2], longest[len(longest) // 2 :]]
        return [index_select_tensor_dict(data, part) for part in parts], parts

    def inputs(original: Any, self: Any, micro_batch: Any) -> Any:
        model_inputs, output_args = original(self, micro_batch)
        if not _shares(micro_batch):
            return model_inputs, output_args
        packed = Packed(*(tensor.to(micro_batch.device) for tensor in pack(*_rows(micro_batch))))
        for name in ("input_ids", "position_ids"):
            model_inputs[name] = model_inputs[name][:, packed.tokens]
        model_inputs["attention_mask"] = packed.mask[None, None]
        model_inputs["logits_to_keep"] = packed.predictors
        for name in ("input_ids_rmpad_rolled", "temperature_rmpad"):
            output_args[name] = output_args[name][packed.places]
        return model_inputs, {**output_args, _FLAG: packed.places}

    def outputs(
        original: Any, self: Any, output: Any, output_args: Any, micro_batch: Any, **more: Any
    ) -> Any:
        more |= {"output": output, "output_args": output_args}
        places = output_args.get(_FLAG)
        if places is None:
            return original(self, micro_batch=micro_batch, **more)
        # verl's own code computes the outputs. It gets rows that contain only the responses.
        rows = micro_batch["input_ids"]
        micro_batch = micro_batch.clone(recurse=False)
        micro_batch["input_ids"] = torch.nested.nested_tensor_from_jagged(
            rows.values()[places], torch.searchsorted(places, rows.offsets())
        )
        of_responses = original(self, micro_batch=micro_batch, **more)
        return {name: _in_rows(value, places, rows) for name, value in of_responses.items()}

    language_model = engine.FSDPEngineWithLMHead
    wrap(engine, "prepare_micro_batches", micro_batches)
    wrap(language_model, "forward_backward_batch", forward_backward)
    wrap(language_model, "prepare_model_inputs", inputs)
    wrap(language_model, "prepare_model_outputs", outputs)


def _shares(batch: Any) -> bool:
    """Return whether the prompts of a batch are shared."""
    from verl.utils.tensordict_utils import get_non_tensor_data

    # Batches with images (their positions have one more dimension), and the padded prompts of the
    # legacy trainer, are not supported. verl computes them as usual.
    flag = get_non_tensor_data(batch, _FLAG, False)
    return bool(flag) and batch["position_ids"].dim() == 2 and batch["prompts"].is_nested


def _in_rows(of_responses: Any, places: Any, rows: Any) -> Any:
    """Extend values of response tokens to all tokens of the rows, with 0 for the prompts."""
    values = of_responses.values()
    whole = values.new_zeros(len(rows.values())).index_put((places,), values)
    return torch.nested.nested_tensor_from_jagged(whole, rows.offsets())


def _rows(batch: Any) -> tuple[list[list[int]], list[int]]:
    """Return the rows of a batch, and the length of the prompt in each of them."""
    tokens = batch["input_ids"].values().tolist()
    offsets = batch["input_ids"].offsets().tolist()
    rows = [tokens[begin:end] for begin, end in pairwise(offsets)]
    return rows, batch["prompts"].offsets().diff().tolist()


def check(config: Any) -> None:
    """Reject the switch if the engine or its settings do not support shared prompts.

    Raises:
      ValueError: a setting does not fit. The error names the keys to change.
    """
    wrong = _unmet(config) if OmegaConf.select(config, KEY) else []
    if wrong:
        raise ValueError(f"{KEY}: needs {', '.join(wrong)}. Set this, or set {KEY}=false.")


def _unmet(config: Any) -> list[str]:
    """Return what is missing for shared prompts: settings, and parts of verl."""
    wrong = [
        f"{key}={str(values[0]).lower()}"
        for key, values in _NEEDS.items()
        if OmegaConf.select(config, key) not in values
    ]
    for problem in violations(source_of("verl"), contract.SHARED_PROMPTS):
        wrong.append(f"another version of verl: {problem}")
    return wrong
