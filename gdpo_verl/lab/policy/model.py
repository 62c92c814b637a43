"""The tiny policy's tokenizer and network, and its prompts."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerBase, Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

from gdpo_verl.lab.policy.task import PolicyTask
from gdpo_verl.lab.tasks.examples import Example

PAD = "<|endoftext|>"
START = "<|im_start|>"
END = "<|im_end|>"
MAX_POSITIONS = 4096
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    f"{START}{{{{ message['role'] }}}}\n{{{{ message['content'] }}}}{END}\n"
    "{% endfor %}"
    f"{{% if add_generation_prompt %}}{START}assistant\n{{% endif %}}"
)


def train_tokenizer(task: PolicyTask, seed: int, *, vocabulary: int) -> PreTrainedTokenizerBase:
    """Train Qwen2's byte-level BPE, single digits included, with a small vocabulary.

    Any text in Unicode's normal form C stays the same after encoding and decoding. A text that is
    unlike the task only needs more tokens. The tokenizer must have Qwen2's class, because for this
    architecture AutoTokenizer always builds that class and splits words by its rules.
    """
    rng = random.Random(f"policy/tokenizer/{seed}")
    examples = (task.draw(rng) for _ in range(2000))
    texts = [f" {example.question} {example.ground_truth}" for example in examples]
    tokenizer: PreTrainedTokenizerBase = Qwen2Tokenizer().train_new_from_iterator(
        texts, vocabulary - len(task.phrases), new_special_tokens=[START, END], show_progress=False
    )
    # Each phrase stays one token, whatever stands next to it.
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in task.phrases])
    tokenizer.eos_token = END
    tokenizer.pad_token = PAD
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.padding_side = "left"
    tokenizer.model_max_length = MAX_POSITIONS
    return tokenizer


def make_model(tokenizer: PreTrainedTokenizerBase) -> Qwen2ForCausalLM:
    """Return an untrained Qwen2 for ``tokenizer``."""
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(tokenizer),
            hidden_size=128,
            intermediate_size=384,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=MAX_POSITIONS,
            rope_parameters={"rope_type": "default", "rope_theta": 1000.0},
            # The usual 0.02 is meant for wide models. At this width, the model would need many
            # times longer until it copies digits from the prompt.
            initializer_range=0.08,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            dtype=torch.float32,
        )
    )


def encode_prompts(
    tokenizer: PreTrainedTokenizerBase, examples: Sequence[Example]
) -> list[list[int]]:
    """Return the tokens of each prompt, up to the beginning of the response."""
    chats = [example.messages for example in examples]
    return list(tokenizer.apply_chat_template(chats, add_generation_prompt=True, return_dict=False))
