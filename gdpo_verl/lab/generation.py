"""Generate responses of a local model with transformers, without verl's engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def generate(
    model: Any,  # the type stubs of transformers declare `generate` only for some classes
    tokenizer: Any,
    prompts: Sequence[Sequence[int]],
    **options: Any,
) -> list[list[int]]:
    """Generate responses to all prompts at once.

    Args:
      model: the model.
      tokenizer: a tokenizer with a padding token.
      prompts: the tokens of each prompt.
      options: arguments of transformers' ``generate``.

    Returns:
      the tokens of each response; shorter responses are padded on the right.
    """
    # Prompts are padded on the left, so that all responses begin in the same column.
    batch = tokenizer.pad({"input_ids": prompts}, padding_side="left", return_tensors="pt")
    model.eval()
    with torch.inference_mode():
        output = model.generate(
            **batch.to(model.device), pad_token_id=tokenizer.pad_token_id, **options
        )
    answers: list[list[int]] = output[:, batch["input_ids"].shape[1] :].tolist()
    return answers
