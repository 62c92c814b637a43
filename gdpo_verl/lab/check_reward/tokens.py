"""Load the policy's tokenizer, or a tokenizer of bytes if the policy is not on this machine."""

from __future__ import annotations

import os
from typing import Any

from gdpo_verl.lab.tasks.rows import tokenizer_of


def model_path(model: Any) -> str | None:
    """Return the path of the policy's tokenizer or model; None if it is not on this machine."""
    # A name that is no absolute path may be a hub id, which the loader looks up.
    path = os.path.expanduser(model.get("tokenizer_path") or model.get("path") or "")
    missing = path.startswith("/") and not os.path.exists(path)
    return None if missing else path or None


def load_tokenizer(model: Any) -> Any:
    """Load the policy's tokenizer as verl does, or a tokenizer of bytes if there is no policy.

    Raises:
      ValueError: no tokenizer can be loaded from the configured path.
    """
    from verl.utils.fs import copy_to_local
    from verl.utils.tokenizer import hf_tokenizer

    path = model_path(model)
    if path is None:
        return byte_tokenizer()
    # verl's loader adds a padding token. A model on HDFS is first copied to this machine.
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
    # Without merges and without splitting at words, each token is a single byte.
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|end|>", clean_up_tokenization_spaces=False
    )
