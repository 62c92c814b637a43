"""Train a tiny model with TRL's `GRPOTrainer` on given rewards; `test_trl.py` runs this program.

    python trl_step.py STEPS.json OUT

STEPS.json contains steps by name: ``{name: {"rewards": rows, "group_size": G, …}}``. The rewards
have one row of K numbers for each response, and the responses of a group follow each other. The
other keys of a step are:

config        the arguments of `GRPOConfig`
evaluate      evaluate instead of training
gdpo, ranges  use the trainer of gdpo-verl with these settings
shaped        use a subclass of this trainer that changes the sign of every reward
named         pass the reward functions, which then all have the same name, in a dict
by_criterion  the names of the functions that return mappings
eval_sets     several data sets to evaluate; all rewards rise by 1 from one batch to the next

Each step writes to a directory of its name in OUT. There TRL writes its state and its table of
completions, with the rewards that it received and the advantages that it logged. This program
writes the advantages in the loss to ``trained.<rank>.json``, warnings to ``warnings.txt``, and the
error of a rejected step to ``error.txt``.

It is a separate program, because verl must not find TRL (test_trl.py explains this).
"""

from __future__ import annotations

import functools
import itertools
import json
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer

from gdpo_verl.trl import GDPOTrainer

END = "<end>"
WORDS = [END] + [f"word{i}" for i in range(31)]


def make_tokenizer() -> PreTrainedTokenizerFast:
    places = {word: i for i, word in enumerate(WORDS)}
    words = Tokenizer(WordLevel(places, unk_token=END))
    words.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, eos_token=END, pad_token=END)


def make_model() -> Qwen2ForCausalLM:
    torch.manual_seed(0)  # without a seed the responses have other lengths in each run
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(WORDS),
            hidden_size=8,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=32,
            eos_token_id=0,
            pad_token_id=0,
        )
    )


def preset(name: str, rewards: list[float | None]) -> Callable[..., list[float | None]]:
    """Return a reward function with fixed rewards; each process returns those of its own part."""

    def reward(prompts: list[str], **_: Any) -> list[float | None]:
        rank, size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        assert len(prompts) * size == len(rewards)
        return rewards[rank * len(prompts) : (rank + 1) * len(prompts)]

    reward.__name__ = name  # the column in TRL's table
    return reward


def rising(reward: Callable[..., list[float]]) -> Callable[..., list[float]]:
    """Return a reward function whose rewards rise by 1 with each batch."""
    batches = itertools.count()

    @functools.wraps(reward)
    def risen(prompts: list[str], **columns: Any) -> list[float]:
        batch = next(batches)
        return [value + batch for value in reward(prompts, **columns)]

    return risen


class ShapedTrainer(GDPOTrainer):
    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Any:
        return -super()._calculate_rewards(*args, **kwargs)


def take_step(
    directory: Path,
    rewards: list[list[float | None]],
    group_size: int,
    config: dict[str, Any],
    evaluate: bool = False,
    gdpo: dict[str, Any] | None = None,
    ranges: Any = None,
    eval_sets: list[str] | None = None,
    shaped: bool = False,
    named: bool = False,
    by_criterion: list[str] | None = None,
) -> None:
    """Take a training step, or evaluate, with all rewards in one batch."""
    ours = {} if gdpo is None else {"gdpo": gdpo, "ranges": ranges}
    if by_criterion:
        ours["by_criterion"] = by_criterion
    Trainer: type[GRPOTrainer] = GRPOTrainer
    if gdpo is not None:
        Trainer = ShapedTrainer if shaped else GDPOTrainer
    columns = list(zip(*rewards, strict=True))
    names = [f"component_{k}" for k in range(len(columns))]
    functions: Any = [
        preset("same" if named else name, list(column))
        for name, column in zip(names, columns, strict=True)
    ]
    if eval_sets:
        functions = list(map(rising, functions))
    if named:
        functions = dict(zip(names, functions, strict=True))
    prompts = [{"prompt": word} for word in WORDS[1 : 1 + len(rewards) // group_size]]
    arguments = {
        "output_dir": str(directory),
        "num_generations": group_size,
        "per_device_train_batch_size": len(rewards),
        "per_device_eval_batch_size": len(rewards),
        "shuffle_dataset": False,
        "max_completion_length": 2,
        "max_steps": 1,
        "logging_steps": 1,
        "log_completions": True,
        "report_to": "none",
        "save_strategy": "no",
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
    }
    held_out = Dataset.from_list(prompts)
    trainer = Trainer(
        **ours,
        model=make_model(),
        processing_class=make_tokenizer(),
        args=GRPOConfig(**(arguments | config)),
        reward_funcs=functions,
        train_dataset=Dataset.from_list(prompts),
        eval_dataset=dict.fromkeys(eval_sets, held_out) if eval_sets else held_out,
    )
    trained: list[float] = []
    compute_loss = trainer.compute_loss

    def record(model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        trained.extend(inputs["advantages"].tolist())
        return compute_loss(model, inputs, *args, **kwargs)

    trainer.compute_loss = record
    if evaluate:
        trainer.evaluate()
    else:
        trainer.train()
        trainer.save_state()
        rank = trainer.accelerator.process_index
        (directory / f"trained.{rank}.json").write_text(json.dumps(trained))


def main(steps: Path, out: Path) -> None:
    for name, step in json.loads(steps.read_text()).items():
        directory = out / name
        directory.mkdir(parents=True, exist_ok=True)
        log = logging.FileHandler(directory / "warnings.txt", mode="w")
        logging.getLogger("gdpo_verl").addHandler(log)
        try:
            take_step(directory, **step)
        except ValueError as error:
            (directory / "error.txt").write_text(str(error))
        logging.getLogger("gdpo_verl").removeHandler(log)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
