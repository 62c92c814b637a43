"""Load the policy's own tokenizer, or one whose tokens are bytes if the policy is not here."""

from __future__ import annotations

import os
from typing import Any

from gdpo_verl.lab.tasks.rows import tokenizer_of


def model_path(model: Any) -> str | None:
    """Return the path of the policy's tokenizer or model; None if it is not here."""
    # A name that is no absolute path may be one of the hub's, and is left to its loader.
    path = os.path.expanduser(model.get("tokenizer_path") or model.get("path") or "")
    missing = path.startswith("/") and not os.path.exists(path)
    return None if missing else path or None


def load_tokenizer(model: Any) -> Any:
    """Load the policy's tokenizer as verl does; without one, return one whose tokens are bytes.

    Raises:
      ValueError: the path is given and no tokenizer can be loaded from it.
    """
    from verl.utils.fs import copy_to_local
    from verl.utils.tokenizer import hf_tokenizer

    path = model_path(model)
    if path is None:
        return byte_tokenizer()
    # verl's loader adds a padding token, and copies a model of HDFS here first.
    return tokenizer_of(
        path,
        "actor_rollout_ref.model.path (or null, which counts bytes for tokens)",
        lambda path, **options: hf_tokenizer(copy_to_local(path), **options),
        trust_remote_code=model.get("trust_remote_code", False),
    )


def byte_tokenizer() -> Any:
    """Make a tokenizer that reproduces any text: 256 tokens, one for each byte of its UTF-8."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: number for number, character in enumerate(alphabet)}
    # Without merges and without splitting at words nothing but single bytes is left.
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|end|>", clean_up_tokenization_spaces=False
    )
