"""Train with TRL's GRPOTrainer, for `benchmark_training.py`: in an environment without verl.

    python scripts/dev/benchmark_trl.py SUMS.parquet MODEL [KEY=JSON ...] RUN  # of GRPOConfig

Writes a line for each step to RUN/metrics.jsonl. The update is all that follows the rewards.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

# The rewards alone are needed: they import neither verl nor Ray.
sys.path.append(str(Path(__file__).resolve().parents[2]))
from gdpo_verl.rewards.gsm8k import compute_score

_, sums, model, *settings, run = sys.argv
pairs = (setting.split("=", 1) for setting in settings)
step: dict[str, float] = {}


class Timed(GRPOTrainer):
    def _generate(self, prompts: Any) -> Any:
        began = time.monotonic()
        result = super()._generate(prompts)
        step["generation"] = time.monotonic() - began
        return result

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        began = time.monotonic()
        result = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        # With gradients it is the update's own pass.
        if not torch.is_grad_enabled():
            step["old log-probs"] += time.monotonic() - began
        return result

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        step["old log-probs"] = 0.0
        batch = super()._generate_and_score_completions(inputs)
        step["rollouts"] = len(batch["completion_ids"])
        step["generated tokens"] = int(batch["completion_mask"].sum())
        step["trained tokens"] = step["generated tokens"] + int(batch["prompt_mask"].sum())
        step["update"] = -time.monotonic()  # the end is added where the step ends
        return batch


class Write(TrainerCallback):
    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        step["update"] += time.monotonic()
        with (Path(run) / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(step) + "\n")


def reward(name: str) -> Any:
    def score(completions: Any, reward_model: Any, **columns: Any) -> list[float]:
        answers = zip(completions, reward_model, strict=True)
        pairs = [(turns[0]["content"], known["ground_truth"]) for turns, known in answers]
        return [compute_score("", text, truth, strict=False)[name] for text, truth in pairs]

    score.__name__ = name  # by which TRL logs it
    return score


Timed(
    model=AutoModelForCausalLM.from_pretrained(model, dtype="bfloat16"),
    processing_class=AutoTokenizer.from_pretrained(model),
    reward_funcs=[reward(name) for name in ("correctness", "integer", "format")],
    train_dataset=Dataset.from_list(pq.read_table(sums).to_pylist()),
    args=GRPOConfig(output_dir=run, **{key: json.loads(value) for key, value in pairs}),
    callbacks=[Write()],
).train()
