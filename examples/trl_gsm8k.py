"""GSM8K in TRL with GDPO or GRPO: the run that GDPO's authors publish, in one file.

    python examples/trl_gsm8k.py gdpo                       # or grpo, the baseline
    accelerate launch examples/trl_gsm8k.py gdpo            # on several GPUs
    gdpo-verl report runs/trl/gdpo runs/trl/grpo            # where gdpo-verl[report] is installed

Qwen2.5-1.5B-Instruct, one epoch of 32 prompts with 16 responses per step; correctness, integer and
format, each 0 or 1. Any option of TRL's `GRPOConfig` overrides a setting. It needs TRL 1.16 in an
environment without verl, because the two cannot be installed together.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer, TrlParser

from gdpo_verl.rewards import gsm8k
from gdpo_verl.trl import GDPOTrainer

TRAINERS = {"gdpo": GDPOTrainer, "grpo": GRPOTrainer}
SYSTEM = (
    "Think about the problem between <think> and </think>, then give the number alone between "
    "<answer> and </answer>."
)
PROMPTS, GROUP, MICRO_BATCH = 32, 16, 16


@dataclass
class Arguments:
    """The options of the command line for the model and its data."""

    model: str = "Qwen/Qwen2.5-1.5B-Instruct"
    data: str | None = field(
        default=None,
        metadata={
            "help": "the training data: JSON lines with question and answer, or a parquet file of "
            "gdpo-verl prepare; default: openai/gsm8k from the hub"
        },
    )
    strict: bool = field(
        default=True, metadata={"help": "use the strict rules (default), else the published rules"}
    )


def reward(component: str, strict: bool) -> Callable[..., list[float]]:
    """Return one component of the GSM8K reward as a reward function of TRL."""

    def score(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
        texts = [completion[0]["content"] for completion in completions]
        pairs = zip(texts, answer, strict=True)
        return [gsm8k.compute_score("", *pair, strict=strict)[component] for pair in pairs]

    score.__name__ = component  # what TRL and the metrics call it
    return score


def conversation(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row's question after the system message, or the prompt in verl's columns."""
    if "reward_model" in row:
        return {"prompt": row["prompt"], "answer": row["reward_model"]["ground_truth"]}
    turns = (("system", SYSTEM), ("user", row["question"]))
    return {"prompt": [{"role": role, "content": content} for role, content in turns]}


def main() -> None:
    estimator = sys.argv.pop(1) if len(sys.argv) > 1 else ""
    if estimator not in TRAINERS:
        sys.exit(f"expected {' or '.join(TRAINERS)} as the first argument, found {estimator!r}")
    parser = TrlParser((Arguments, GRPOConfig))
    parser.set_defaults(
        output_dir=f"runs/trl/{estimator}",
        # The batch of a step, divided by the number of processes.
        per_device_train_batch_size=MICRO_BATCH,
        gradient_accumulation_steps=max(
            1, PROMPTS * GROUP // MICRO_BATCH // int(os.environ.get("WORLD_SIZE", "1"))
        ),
        num_generations=GROUP,
        max_completion_length=1024,
        temperature=1.0,
        learning_rate=5e-6,
        lr_scheduler_type="cosine",
        warmup_steps=0.1,  # of all steps
        num_train_epochs=1,
        beta=0.04,
        seed=42,
        logging_steps=1,
    )
    arguments, config = parser.parse_args_and_config()
    if arguments.data:
        kind = "parquet" if arguments.data.endswith(".parquet") else "json"
        data = load_dataset(kind, data_files=arguments.data, split="train")
    else:
        data = load_dataset("openai/gsm8k", "main", split="train")
    TRAINERS[estimator](
        model=arguments.model,
        args=config,
        train_dataset=data.map(conversation),
        reward_funcs=[
            reward(name, arguments.strict) for name in ("correctness", "integer", "format")
        ],
    ).train()


if __name__ == "__main__":
    main()
