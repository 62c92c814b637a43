"""Train SmolLM2 with TRL's GRPOTrainer, for `benchmark.py training`.

    python scripts/dev/trl_training.py DATA.parquet MODEL bfloat16 STEPS

The script runs in an environment with TRL and without verl. Its last line is a JSON object with the
seconds of each step and the mean length of the responses in each step.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow.parquet as parquet
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

# The rewards need neither verl nor Ray.
sys.path.append(str(Path(__file__).parents[2]))
from gdpo_verl.rewards.gsm8k import compute_score

REWARDS = ("correctness", "integer", "format")
MICRO_BATCH = 16
MICRO_BATCHES = 4  # 64 responses in each step


class Clock(TrainerCallback):  # type: ignore[misc]
    """Take the time at the end of each step."""

    def __init__(self) -> None:
        self.times = [time.monotonic()]

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.times.append(time.monotonic())


def reward(name: str) -> Any:
    """Return one of the rewards of GSM8K as TRL calls it."""

    def score(completions: Any, reward_model: Any, **columns: Any) -> list[float]:
        values = []
        for messages, known in zip(completions, reward_model, strict=True):
            rewards = compute_score("", messages[0]["content"], known["ground_truth"], strict=False)
            values.append(rewards[name])
        return values

    score.__name__ = name
    return score


def main() -> None:
    data, model, dtype, steps = sys.argv[1:]
    clock = Clock()
    with TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(model, dtype=dtype),
            processing_class=AutoTokenizer.from_pretrained(model),
            reward_funcs=[reward(name) for name in REWARDS],
            train_dataset=Dataset.from_list(parquet.read_table(data).to_pylist()),
            args=GRPOConfig(
                output_dir=folder,
                use_cpu=True,
                bf16=dtype == "bfloat16",
                gradient_checkpointing=False,
                beta=0.0,
                learning_rate=1e-5,
                shuffle_dataset=False,
                per_device_train_batch_size=MICRO_BATCH,
                gradient_accumulation_steps=MICRO_BATCHES,
                steps_per_generation=MICRO_BATCHES,
                num_generations=8,
                max_completion_length=48,
                multi_objective_aggregation="normalize_then_sum",
                max_steps=int(steps),
                logging_steps=1,
                save_strategy="no",
                report_to="none",
            ),
            callbacks=[clock],
        )
        trainer.train()
    seconds = [end - begin for begin, end in zip(clock.times, clock.times[1:], strict=False)]
    lengths = []
    for entry in trainer.state.log_history:
        if "completions/mean_length" in entry:
            lengths.append(entry["completions/mean_length"])
    print(json.dumps({"seconds": seconds, "lengths": lengths}))


if __name__ == "__main__":
    main()
