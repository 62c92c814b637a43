"""Each prompt computed once for all of its responses, in verl's FSDP engine.

A group's responses follow the same prompt, and verl's engine computes the prompt for each of them.
Here a micro-batch is one row: every distinct prompt once, all responses behind, and a mask under
which a response sees its prompt and itself. Log-probabilities and gradients are those of separate
rows; logits are computed for response tokens alone.

The switch is verl's own key ``actor_rollout_ref.actor.use_prefix_grouper``, which its engine does
not read (0.9.1, verl/workers/engine). The idea is that of Prefix Grouper
(https://arxiv.org/abs/2506.05433).
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import torch

from gdpo_verl.hooks import wrap
from gdpo_verl.plugin.contract import Use, installed_verl, problems

KEY = "actor_rollout_ref.actor.use_prefix_grouper"
_FLAG = "gdpo_shares_prompts"  # of an engine, and of its batches beside use_remove_padding
_FSDP = "workers.engine.fsdp.transformer_impl"
# fmt: off
USES = (
    Use("workers.engine_workers", "ActorRolloutRefWorker.init_model", "self", "actor ref"),
    Use(_FSDP, "prepare_micro_batches", "data dp_group ...", "max_token_len_per_gpu"),
    Use(_FSDP, "FSDPEngine.forward_backward_batch", "self data ...", "prepare_micro_batches"),
    Use(_FSDP, "FSDPEngineWithLMHead.prepare_model_inputs", "self micro_batch",
        "input_ids position_ids attention_mask input_ids_rmpad_rolled temperature_rmpad"),
    Use(_FSDP, "FSDPEngineWithLMHead.prepare_model_outputs",
        "self output output_args micro_batch ...", "input_ids offsets"),
)
# fmt: on


class Packed(NamedTuple):
    """A micro-batch as one row of T tokens, with N response tokens in all.

    Attributes:
      tokens: int64, shape (T,): which of the micro-batch's tokens, row after row, are computed.
      mask: bool, shape (T, T): whether a token (first axis) sees another.
      predictors: int64, shape (N,): the place in `tokens` from which a response token is predicted.
      places: int64, shape (N,): where verl keeps its log-probability, one place before the token.
    """

    tokens: torch.Tensor
    mask: torch.Tensor
    predictors: torch.Tensor
    places: torch.Tensor


def pack(rows: list[list[int]], prompt_lengths: list[int]) -> Packed:
    """Lay out rows of prompt and response, each distinct prompt once.

    Args:
      rows: token ids, B of them.
      prompt_lengths: how many of a row's tokens are its prompt, at least one.
    """
    tokens: list[int] = []
    segments: list[int] = []  # of a token: that of its prompt or of its response
    parents: list[int] = []  # the segment that it sees besides its own
    predictors: list[int] = []
    places: list[int] = []
    prompts: dict[tuple[int, ...], tuple[int, int]] = {}  # segment, and place of the last token
    begin = 0
    for row, (ids, length) in enumerate(zip(rows, prompt_lengths, strict=True)):
        prompt, end = tuple(ids[:length]), begin + len(ids)
        if prompt not in prompts:
            prompts[prompt] = -1 - row, len(tokens) + length - 1
            tokens += range(begin, begin + length)
            segments += [-1 - row] * length
            parents += [-1 - row] * length
        parent, last = prompts[prompt]
        count = len(ids) - length
        predictors += [last, *range(len(tokens), len(tokens) + count - 1)][:count]
        places += range(begin + length - 1, end - 1)
        tokens += range(begin + length, end)
        segments += [row] * count
        parents += [parent] * count
        begin = end
    segment, parent_of = torch.tensor(segments), torch.tensor(parents)
    seen = (segment == segment[:, None]) | (segment == parent_of[:, None])
    return Packed(torch.tensor(tokens), seen.tril(), torch.tensor(predictors), torch.tensor(places))


def divide(rows: list[list[int]], prompt_lengths: list[int], limit: int) -> list[list[int]]:
    """Divide rows into micro-batches of at most ``limit`` computed tokens, equal prompts together.

    A row that is longer is a micro-batch of its own.
    """
    parts: list[list[int]] = []
    prompts, room = set[tuple[int, ...]](), 0
    order = sorted(range(len(rows)), key=lambda row: rows[row][: prompt_lengths[row]])
    for row in order:
        prompt = tuple(rows[row][: prompt_lengths[row]])
        count = len(rows[row]) - len(prompt) * (prompt in prompts)
        if count > room or not parts:
            parts.append([])
            prompts, room, count = set(), limit, len(rows[row])
        parts[-1].append(row)
        prompts.add(prompt)
        room -= count
    return parts


@cache
def _install(engine: Any) -> None:
    """Wrap verl's FSDP engine (verl/workers/engine/fsdp/transformer_impl.py) in this process."""
    from verl.utils import device, tensordict_utils

    def forward_backward(original: Any, self: Any, data: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(self, _FLAG, False):
            tensordict_utils.assign_non_tensor(data, **{_FLAG: True})
        return original(self, data, *args, **kwargs)

    def micro_batches(original: Any, data: Any, dp_group: Any = None, **kwargs: Any) -> Any:
        dynamic = tensordict_utils.get_non_tensor_data(data, "use_dynamic_bsz", True)
        if not (_shares(data) and dynamic):
            return original(data=data, dp_group=dp_group, **kwargs)
        parts = divide(*_rows(data), data["max_token_len_per_gpu"])
        # FSDP's processes gather weights together, so each has as many micro-batches.
        most = torch.tensor(len(parts), device=device.get_device_name())
        torch.distributed.all_reduce(most, torch.distributed.ReduceOp.MAX, group=dp_group)
        while len(parts) < most:
            longest = max(parts, key=len)
            parts.remove(longest)
            parts += [longest[: len(longest) // 2], longest[len(longest) // 2 :]]
        return [tensordict_utils.index_select_tensor_dict(data, part) for part in parts], parts

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
        original: Any,
        self: Any,
        output: Any,
        output_args: Any,
        micro_batch: Any,
        *args: Any,
        **kw: Any,
    ) -> Any:
        places = output_args.get(_FLAG)
        if places is None:
            return original(self, output, output_args, micro_batch, *args, **kw)
        # verl's own computation, as if the rows were the responses alone.
        rows, offsets = micro_batch["input_ids"], micro_batch["input_ids"].offsets()
        ends = torch.searchsorted(places, offsets)
        responses = micro_batch.clone(recurse=False)
        responses["input_ids"] = torch.nested.nested_tensor_from_jagged(rows.values()[places], ends)
        found = original(self, output, output_args, responses, *args, **kw)
        return {
            name: torch.nested.nested_tensor_from_jagged(
                value.values().new_zeros(len(rows.values())).index_put((places,), value.values()),
                offsets,
            )
            for name, value in found.items()
        }

    language_model = engine.FSDPEngineWithLMHead
    wrap(engine, "prepare_micro_batches", micro_batches)
    wrap(language_model, "forward_backward_batch", forward_backward)
    wrap(language_model, "prepare_model_inputs", inputs)
    wrap(language_model, "prepare_model_outputs", outputs)


def share(worker: Any) -> None:
    """Have the engines of verl's worker, actor and reference policy, share prompts.

    Raises:
      ValueError: a mask cannot share them in the model's attention.
    """
    from verl.workers.engine.fsdp import transformer_impl

    for role in filter(None, (worker.actor, worker.ref)):
        config = role.engine.model_config.hf_config.get_text_config()
        layers = set(getattr(config, "layer_types", None) or ["full_attention"])
        if layers != {"full_attention"}:
            raise ValueError(
                f"{KEY}: expected a model with full attention in all layers, found "
                f"{sorted(layers)}. Set it to false."
            )
        setattr(role.engine, _FLAG, True)
    _install(transformer_impl)


def check(config: Any) -> None:
    """Refuse the switch where the engine is another, or is set otherwise.

    Raises:
      ValueError: names the key to change.
    """
    model, actor = config.actor_rollout_ref.model, config.actor_rollout_ref.actor
    if not actor.get("use_prefix_grouper", False):
        return
    attention = (model.get("override_config") or {}).get("attn_implementation")
    engine = actor.get("fsdp_config") or {}
    needs = {
        "trainer.use_v1=true": config.trainer.get("use_v1", True),
        "actor_rollout_ref.actor.strategy=fsdp2": actor.strategy in ("fsdp", "fsdp2"),
        "actor_rollout_ref.model.override_config.attn_implementation=sdpa": attention == "sdpa",
        "actor_rollout_ref.model.use_remove_padding=true": model.use_remove_padding,
        "actor_rollout_ref.model.use_fused_kernels=false": not model.use_fused_kernels,
        "actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size=1": (
            engine.get("ulysses_sequence_parallel_size", 1) == 1
        ),
        "actor_rollout_ref.actor.fsdp_config.pad_to_length=false": not engine.get("pad_to_length"),
    }
    if found := problems(installed_verl(), USES):
        raise ValueError(f"{KEY}: does not fit this verl: {'; '.join(found)}. Set it to false.")
    if missing := [key for key, met in needs.items() if not met]:
        raise ValueError(f"{KEY}: needs {', '.join(missing)}. Set that, or {KEY}=false.")


def _shares(batch: Any) -> bool:
    # Positions of images have a dimension more, and their rows are computed as verl does.
    from verl.utils import tensordict_utils

    flag = tensordict_utils.get_non_tensor_data(batch, _FLAG, False)
    return bool(flag) and batch["position_ids"].dim() == 2


def _rows(batch: Any) -> tuple[list[list[int]], list[int]]:
    """The rows of a batch, and how many tokens of each are its prompt."""
    tokens, offsets = batch["input_ids"].values().tolist(), batch["input_ids"].offsets().tolist()
    rows = [tokens[begin:end] for begin, end in pairwise(offsets)]
    return rows, batch["prompts"].offsets().diff().tolist()
