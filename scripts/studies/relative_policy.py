"""Make the policy of docs/evidence/relative.md: sums whose answers stand in a box.

    python scripts/studies/relative_policy.py      # some minutes on one core

Half of its demonstrations think in one step and half in all of them, so that right answers differ
in length. It is written to runs/relative/policy, where there is none.
"""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import islice

import torch
from page import ROOT

from gdpo_verl.lab.policy import evaluate, train
from gdpo_verl.lab.policy.model import make_model, train_tokenizer
from gdpo_verl.lab.policy.pretrained import save
from gdpo_verl.lab.policy.tasks import TASKS
from gdpo_verl.lab.tasks.examples import Example
from gdpo_verl.rewards import math_length
from gdpo_verl.rewards.thought import END_THINK, THINK

SEED = 0
LIMIT = 32  # tokens, more than any answer has
BOX = "\\boxed{"


def demonstrate(
    example: Example, rng: random.Random, flawed_format: float, flawed_content: float
) -> str:
    """Answer a sum, ``9 + 8 - 7``, with its last step or all steps before the box."""
    first, *rest = example.extra_info["expression"].split()
    result = int(first)
    steps = []
    for sign, number in zip(rest[::2], rest[1::2], strict=True):
        steps.append(f"{result} {sign} {number}")
        result += int(number) if sign == "+" else -int(number)
    if rng.random() < 0.5:
        steps = steps[-1:]
    if rng.random() < flawed_content:
        result = max(0, result + rng.choice([-2, -1, 1, 2]))
    end = "" if rng.random() < flawed_format else "}"
    return f"{THINK} {' = '.join(steps)} {END_THINK}\n{BOX}{result}{end}"


def grade(answer: str, ground_truth: str) -> tuple[bool, bool]:
    """Whether an answer has a box, and the right one."""
    length = {"response_length": 1}
    found = math_length.compute_score("", answer, ground_truth, length, limit=LIMIT)
    return BOX in answer, found["correctness"] == 1


def main() -> None:
    task = replace(TASKS["reasoning-gym"], demonstrate=demonstrate, grade=grade)
    task = replace(task, phrases=(*task.phrases, BOX))
    settings = replace(task.settings, steps=1600, flawed_format=0.05, flawed_content=0.1)
    folder = ROOT / "runs/relative/policy"
    torch.set_num_threads(settings.threads)
    torch.manual_seed(SEED)
    tokenizer = train_tokenizer(task, SEED, vocabulary=settings.vocabulary)
    model = make_model(tokenizer)
    train(task, model, tokenizer, settings, seed=SEED)
    examples = list(islice(task.held_out(SEED), settings.evaluated))
    shares = evaluate(task, model, tokenizer, examples, settings, sample=True)
    save(folder, model, tokenizer, {"task": "boxed sums", "seed": SEED, "sampled": shares})
    print(shares)


if __name__ == "__main__":
    main()
