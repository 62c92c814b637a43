"""Train a tiny model with ms-swift and the trainer of gdpo-verl; test_swift.py runs this program.

    python swift_step.py OUT

The program trains two steps, in one process or in two, and writes the run to `steps/` of OUT. With
one process, it also writes the messages about rejected arguments and settings to `errors.json`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
from swift.pipelines.train.rlhf import SwiftRLHF
from swift.rewards import ORM, orms
from transformers import Qwen2Config, Qwen2ForCausalLM

from gdpo_verl.lab.check_reward.tokens import byte_tokenizer
from gdpo_verl.swift import GDPOTrainer, use_gdpo

NAMES = ["Letters", "Zeros", "Ends"]
SETTINGS = {
    "gdpo_reward_weights": {"Zeros": 0.5},
    "gdpo": {
        "variant": "dvao",
        "whiten": "token",
        "conditions": {"Zeros": {"on": "Letters", "at_least": 0.2}},
    },
}
RANGES = {"Letters": (0, 1)}


class Letters(ORM):
    def __call__(self, completions, **columns):
        return [sum(map(str.isalpha, text)) / (len(text) or 1) for text in completions]


class Zeros(ORM):
    def __call__(self, completions, **columns):
        return [0.1 * (text.count("0") + len(text) % 3) for text in completions]


class Ends(ORM):
    """A reward that does not score empty responses."""

    def __call__(self, completions, **columns):
        return [float(ord(text[-1]) % 2) if text else None for text in completions]


orms |= {each.__name__.lower(): each for each in (Letters, Zeros, Ends)}


class Training(SwiftRLHF):
    """`swift rlhf` with an attribute for its trainer, which swift itself does not keep."""

    trainer = None

    def train(self, trainer):
        self.trainer = trainer
        return super().train(trainer)


def make_policy(out):
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"pad_token": "<|pad|>"})
    tokenizer.save_pretrained(out)
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = Qwen2ForCausalLM(config)
    with torch.no_grad():
        # The end token becomes likely at times, so that the responses have different lengths.
        model.lm_head.weight[tokenizer.eos_token_id] *= 50
    model.save_pretrained(out)
    rows = [{"messages": [{"role": "user", "content": f"word{i}"}]} for i in range(16)]
    (out / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def train(out, *more):
    """Train two steps of two groups of four responses."""
    policy = out / "policy"
    words = f"""--rlhf_type grpo --model {policy} --model_type qwen2 --template chatml
        --tuner_type full --torch_dtype float32 --use_cpu true --reward_funcs letters zeros ends
        --dataset {policy}/rows.jsonl --num_generations 4 --max_completion_length 12
        --per_device_train_batch_size {8 // int(os.environ.get("WORLD_SIZE", 1))}
        --gradient_accumulation_steps 1 --max_steps 2 --logging_steps 1 --log_completions true
        --use_vllm false --dataloader_num_workers 0 --dataset_num_proc 1 --save_steps 2
        --report_to none --split_dataset_ratio 0 --add_version false --output_dir {out}/steps"""
    training = Training([*words.split(), *more])
    training.main()
    return training


def rejected(out):
    """Return the message about each rejected argument or setting."""
    errors = {}
    cases = {
        "rloo": (None, ["--advantage_estimator", "rloo"]),
        "kl": (None, ["--kl_in_reward", "true"]),
        "dynamic": (None, ["--dynamic_sample", "true"]),
        "weights": ({"gdpo_reward_weights": {"Zeros": 2.0}}, ["--reward_weights", "1", "1", "1"]),
        "name": ({"gdpo_reward_weights": {"zeros": 2.0}}, []),
        "credit": ({"gdpo": {"credit": "turn"}}, []),
        "twice": (None, ["--reward_funcs", "zeros", "zeros"]),
    }
    for name, (settings, arguments) in cases.items():
        use_gdpo(settings)
        try:
            train(out, *arguments)
        except ValueError as error:
            errors[name] = str(error)
    return errors


def main(out):
    use_gdpo(SETTINGS, RANGES)
    if "RANK" in os.environ:
        train(out)
        return
    make_policy(out / "policy")
    trainer = train(out).trainer
    assert type(trainer) is GDPOTrainer
    trainer.dynamic_num_samples = True
    errors = {}
    try:
        trainer._compute_advantages([], torch.zeros(8, 3), [])
    except ValueError as error:
        errors["several samples"] = str(error)
    sys.modules["swift.megatron"] = sys.modules[__name__]
    try:
        use_gdpo()
    except RuntimeError as error:
        errors["megatron"] = str(error)
    del sys.modules["swift.megatron"]
    errors |= rejected(out)
    (out / "errors.json").write_text(json.dumps(errors))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
