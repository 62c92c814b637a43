"""Sample responses from a local model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from gdpo_verl.lab.check_reward.answers import CheckedAnswer
from gdpo_verl.lab.generation import generate
from gdpo_verl.plugin.checks.reward import prompt_text

PROMPTS_AT_ONCE = 8


def sample(
    config: Any, tokenizer: Any, rows: Mapping[int, Mapping[str, Any]], count: int
) -> list[CheckedAnswer]:
    """Sample `count` responses to each row, at the rollout's temperature.

    transformers generates the responses with the model of `actor_rollout_ref.model.path`, on a GPU
    if there is one. Each response has at most `data.max_response_length` tokens. The engine of the
    run is not started.

    Raises:
      OSError, ValueError: the model cannot be loaded.
    """
    rollout = config.actor_rollout_ref.rollout
    device = "cuda" if torch.cuda.is_available() else "cpu"
    path = config.actor_rollout_ref.model.path
    model: Any = AutoModelForCausalLM.from_pretrained(path, dtype="auto")
    model.to(device)
    ends = model.generation_config.eos_token_id or tokenizer.eos_token_id
    ends = {ends} if isinstance(ends, int) else set(ends or ())
    torch.manual_seed(0)  # the same seed each time, so that two reports can be compared
    answers: list[CheckedAnswer] = []
    numbers = list(rows)
    for start in range(0, len(numbers), PROMPTS_AT_ONCE):
        chunk = numbers[start : start + PROMPTS_AT_ONCE]
        prompts = [prompt_text(config, tokenizer, rows[number]) for number in chunk]
        responses = generate(
            model,
            tokenizer,
            # The chat template has already written the special tokens.
            tokenizer(prompts, add_special_tokens=False)["input_ids"],
            max_new_tokens=int(config.data.max_response_length),
            num_return_sequences=count,
            do_sample=rollout.temperature > 0,
            temperature=float(rollout.temperature) or None,
            top_p=float(rollout.top_p),
            top_k=max(int(rollout.top_k), 0),  # verl's -1 and transformers' 0 keep all
        )
        for number_in_chunk, ids in enumerate(responses):
            # The response ends with the first end token, which verl keeps as well.
            end = next((place for place, token in enumerate(ids) if token in ends), len(ids))
            ids = ids[: end + 1]
            text = tokenizer.decode(ids, skip_special_tokens=True)
            number = chunk[number_in_chunk // count]
            answers.append(CheckedAnswer(number, "sampled", text, number, tuple(ids)))
    return answers
