"""Answers of a local model by transformers, without verl's engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def generate(
    model: Any,  # its stubs know generation only for a narrower self
    tokenizer: Any,
    prompts: Sequence[Sequence[int]],
    **options: Any,
) -> list[list[int]]:
    """Answer prompts, all at once; answers that end earlier than others are padded.

    Args:
      tokenizer: has a padding token.
      prompts: in tokens.
      options: of transformers' ``generate``.
    """
    # On the left: all answers begin in one column.
    batch = tokenizer.pad({"input_ids": prompts}, padding_side="left", return_tensors="pt")
    model.eval()
    with torch.inference_mode():
        output = model.generate(
            **batch.to(model.device), pad_token_id=tokenizer.pad_token_id, **options
        )
    answers: list[list[int]] = output[:, batch["input_ids"].shape[1] :].tolist()
    return answers
