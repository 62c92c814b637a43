"""Compute each prompt once for all of its responses, in verl's FSDP engine.

The responses of a group follow the same prompt, and verl's engine computes the prompt for each of
them. Here a micro-batch is one row: every distinct prompt once, the responses after it, and a mask
with which a response sees only its prompt and itself. Log-probabilities and gradients are those of
separate rows; logits are computed only for response tokens.

The switch is verl's own key ``actor_rollout_ref.actor.use_prefix_grouper``, which its engine does
not read (0.9.1, verl/workers/engine). The idea comes from Prefix Grouper
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
# None means that the key is missing.
_NEEDS: dict[str, tuple[Any, ...]] = {
    "trainer.use_v1": (True, None),
    "actor_rollout_ref.actor.strategy": ("fsdp2", "fsdp"),
    "actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size": (1, None),
    "actor_rollout_ref.actor.fsdp_config.pad_to_length": (False, None),
    "actor_rollout_ref.model.override_config.attn_implementation": ("sdpa",),
    "actor_rollout_ref.model.use_remove_padding": (True,),
    "actor_rollout_ref.model.use_fused_kernels": (False,),
}
_FLAG = "gdpo_shares_prompts"  # of an engine and of its batches, like use_remove_padding


class Packed(NamedTuple):
    """A micro-batch as one row of T tokens, N of them in responses.

    Attributes:
      tokens: int64, shape (T,): the indices of the micro-batch's tokens that are computed.
      mask: bool, shape (T, T): whether a token (first axis) sees another.
      predictors: int64, shape (N,): the index in `tokens` that predicts a response token.
      places: int64, shape (N,): the index at which verl keeps its log-probability, one before the
        token.
    """

    tokens: torch.Tensor
    mask: torch.Tensor
    predictors: torch.Tensor
    places: torch.Tensor


def pack(rows: list[list[int]], prompt_lengths: list[int]) -> Packed:
    """Pack rows of prompt and response token ids, each distinct prompt once."""
    tokens = list[int]()
    predictors = list[int]()
    places = list[int]()
    segments = list[tuple[int, int, int]]()  # length, its own number, its prompt's
    prompts = dict[tuple[int, ...], tuple[int, int]]()  # segment, and place of the last token
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
            # The last token of the prompt predicts the first of the response, and so on.
            predictors.append(last)
            predictors += range(len(tokens), len(tokens) + end - middle - 1)
        places += range(middle - 1, end - 1)
        tokens += range(middle, end)
        begin = end
    lengths, own, parent = torch.tensor(segments).unbind(1)
    own = own.repeat_interleave(lengths)
    parent = parent.repeat_interleave(lengths)
    mask = ((own[:, None] == own) | (parent[:, None] == own)).tril()
    return Packed(torch.tensor(tokens), mask, torch.tensor(predictors), torch.tensor(places))


def divide(rows: list[list[int]], prompt_lengths: list[int], limit: int) -> list[list[int]]:
    """Divide rows into micro-batches of at most ``limit`` computed tokens, equal prompts together.

    A longer row is a micro-batch by itself.
    """
    prompts = [tuple(row[:length]) for row, length in zip(rows, prompt_lengths, strict=True)]
    parts = list[list[int]]()
    there = set[tuple[int, ...]]()
    room = 0
    for row in sorted(range(len(rows)), key=prompts.__getitem__):
        count = len(rows[row])
        if prompts[row] in there:
            count -= len(prompts[row])
        if count > room or not parts:
            parts.append([])
            there = set()
            room = limit
            count = len(rows[row])
        parts[-1].append(row)
        there.add(prompts[row])
        room -= count
    return parts


def share(worker: Any) -> None:
    """Let the engines of verl's worker, for actor and reference policy, share prompts.

    Where the settings do not fit, `check` has rejected a run that uses gdpo-verl. Another run
    continues without shared prompts, with a warning.
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
        # FSDP's processes gather weights together, so all need the same number of micro-batches.
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
        packed = Packed(*(each.to(micro_batch.device) for each in pack(*_rows(micro_batch))))
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
        # verl's own computation, with rows that contain only the responses.
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
    """Return whether the prompts of a batch are computed once; else verl computes them."""
    from verl.utils.tensordict_utils import get_non_tensor_data

    # Positions of images have one more dimension, and the legacy trainer pads prompts.
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
    """Reject the switch where the engine or its settings do not fit.

    Raises:
      ValueError: names the keys to change.
    """
    wrong = _unmet(config) if OmegaConf.select(config, KEY) else []
    if wrong:
        raise ValueError(f"{KEY}: needs {', '.join(wrong)}. Set this, or set {KEY}=false.")


def _unmet(config: Any) -> list[str]:
    wrong = [
        f"{key}={str(values[0]).lower()}"
        for key, values in _NEEDS.items()
        if OmegaConf.select(config, key) not in values
    ]
    for problem in violations(source_of("verl"), contract.SHARED_PROMPTS):
        wrong.append(f"another version of verl: {problem}")
    return wrong
