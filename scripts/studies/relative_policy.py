"""Make the policy of docs/evidence/relative.md: sums whose results are in a box.

    python scripts/studies/relative_policy.py      # some minutes on one core

Half of its demonstrations think in one step and the others in all steps, so that correct responses
differ in length. It is written to runs/relative/policy unless that exists.
"""

from __future__ import annotations

import random
from dataclasses import replace

from gdpo_verl.recipes.gsm8k.policy import TASK
from page import ROOT

from gdpo_verl.lab.policy import make_policy
from gdpo_verl.lab.tasks.examples import Example
from gdpo_verl.rewards import math_length
from gdpo_verl.rewards.thought import END_THINK, THINK

LIMIT = 32  # tokens, more than any response has
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
    """Return whether a response has a box, and whether the box is right."""
    length = {"response_length": 1}
    rewards = math_length.compute_score("", answer, ground_truth, length, limit=LIMIT)
    return BOX in answer, rewards["correctness"] == 1


def main() -> None:
    task = replace(
        TASK,
        name="boxed sums",
        phrases=(*TASK.phrases, BOX),
        demonstrate=demonstrate,
        grade=grade,
        settings=replace(TASK.settings, steps=1600, flawed_format=0.05, flawed_content=0.1),
        format_band=(0, 1),
        exact_band=(0, 1),
    )
    print(make_policy(ROOT / "runs/relative/policy", task)["sampled"])


if __name__ == "__main__":
    main()
