"""The tiny policy for the sums of Reasoning Gym, for `gdpo-verl make-policy`."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from functools import partial

from gdpo_verl.recipes.gsm8k.reasoning_gym import DATA_SOURCE, QUESTION, draw_example
from gdpo_verl.recipes.gsm8k.rows import SYSTEM

from gdpo_verl.lab.policy.task import PolicyTask, Settings, choose, grade_by
from gdpo_verl.lab.tasks.examples import Example
from gdpo_verl.lab.tasks.generated import draw_of, examples
from gdpo_verl.rewards.gsm8k import CLOSE, OPEN, compute_score
from gdpo_verl.rewards.thought import END_THINK, THINK

# Changes that make the format of a response wrong, with their frequencies. After the first two, the
# answer can still be parsed. After the others, all rewards are lost.
FORMAT_FLAWS: Mapping[Callable[[str], str], int] = {
    lambda text: text.replace(f"{THINK} ", "").replace(f" {END_THINK}", ""): 3,
    lambda text: text.replace(f"{END_THINK}\n", f"{END_THINK} "): 3,
    lambda text: text.replace(OPEN, "").replace(CLOSE, ""): 2,
    lambda text: text.replace(CLOSE, ""): 2,
}


def demonstrate(
    example: Example, rng: random.Random, flawed_format: float, flawed_answer: float
) -> str:
    """Write a response to a sum such as ``9 + 8 - 7``.

    The thought is the last step, ``17 - 7``. A wrong result is another number, or no whole number.

    Args:
      example: the sum.
      rng: draws the flaws.
      flawed_format, flawed_answer: the probabilities of a wrong format and of a wrong result.
    """
    first, *rest = example.extra_info["expression"].split()
    result = int(first)
    thought = first
    for sign, number in zip(rest[::2], rest[1::2], strict=True):
        thought = f"{result} {sign} {number}"
        result += int(number) if sign == "+" else -int(number)
    answer = str(result)
    if rng.random() < flawed_answer:
        near = max(0, result + rng.choice([-3, -2, -1, 1, 2, 3]))
        answer = rng.choice([str(near), str(near), f"{result}.5"])
    text = f"{THINK} {thought} {END_THINK}\n{OPEN}{answer}{CLOSE}"
    if rng.random() < flawed_format:
        text = choose(FORMAT_FLAWS, rng)(text)
    return text


_BEFORE_SUM, _, _AFTER_SUM = QUESTION.partition("{}")

TASK = PolicyTask(
    name=DATA_SOURCE,
    phrases=(SYSTEM, _BEFORE_SUM, _AFTER_SUM, THINK, END_THINK, OPEN, CLOSE),
    draw=partial(draw_of, "train", draw_example),
    held_out=partial(examples, DATA_SOURCE, "validation", draw_example),
    demonstrate=demonstrate,
    grade=partial(grade_by, compute_score, 1.0),
    settings=Settings(steps=800, flawed_content=0.35, vocabulary=512, max_new_tokens=32),
)
