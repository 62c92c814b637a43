"""Text to tokens and back, as the policy's own tokenizer does it, or byte by byte without one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gdpo_verl.check_reward.answers import Answer
from gdpo_verl.plugin.reward import prompt_text
from gdpo_verl.tasks.rows import tokenizer_of


def model_path(model: Any) -> str | None:
    """Find the policy's tokenizer; None when it is not on this machine.

    Args:
      model: verl's `actor_rollout_ref.model`. A name that is no absolute path may be one of the
        Hugging Face hub's and is left to its loader.
    """
    path = model.get("tokenizer_path") or model.get("path")
    if not path or (str(path).startswith(("~", "/")) and not Path(path).expanduser().exists()):
        return None
    return str(Path(path).expanduser()) if str(path).startswith("~") else str(path)


def load_tokenizer(model: Any) -> Any:
    """The policy's tokenizer; one whose tokens are bytes when the policy is not here.

    Raises:
      ValueError: the path is given and no tokenizer can be loaded from it.
    """
    path = model_path(model)
    if path is None:
        return byte_tokenizer()
    try:
        return tokenizer_of(
            path,
            "actor_rollout_ref.model.path",
            _as_verl_loads_it,
            trust_remote_code=model.get("trust_remote_code", False),
        )
    except ValueError as error:
        remedy = "With actor_rollout_ref.model.path=null bytes are counted for tokens."
        raise ValueError(f"{error} {remedy}") from error


def _as_verl_loads_it(path: str, **options: Any) -> Any:
    from verl.utils.fs import copy_to_local
    from verl.utils.tokenizer import hf_tokenizer

    return hf_tokenizer(copy_to_local(path), **options)


def byte_tokenizer() -> Any:
    """A tokenizer that gives back any text: 256 tokens, one for each byte of its UTF-8."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: number for number, character in enumerate(alphabet)}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|end|>", clean_up_tokenization_spaces=False
    )


def prompt_ids(config: Any, tokenizer: Any, row: Mapping[str, Any]) -> list[int]:
    """The row's prompt in tokens, at least one."""
    text = prompt_text(config, tokenizer, row)
    return list(tokenizer.encode(text, add_special_tokens=False)) or [tokenizer.eos_token_id or 0]


def response_ids(tokenizer: Any, answer: Answer) -> list[int]:
    """The answer in tokens, with the end token that the policy would write behind it."""
    if answer.token_ids is not None:
        return list(answer.token_ids)
    ids = list(tokenizer.encode(answer.text, add_special_tokens=False))
    return [*ids, tokenizer.eos_token_id or 0]
