"""Flawed demonstrations, from which the tiny policy learns half of its trade.

The form of an answer and its call go wrong independently of each other, each
in several ways, so that reinforcement learning finds both rewards to improve.
"""

from __future__ import annotations

import random
from typing import Any

from gdpo_verl.data import prompt
from gdpo_verl.data.prompt import CALL_CLOSE, CALL_OPEN, THINK_CLOSE, THINK_OPEN
from gdpo_verl.data.toolbox import Example

Call = tuple[str, dict[str, Any]]


def _wrong_number(call: Call, example: Example, rng: random.Random) -> Call:
    name, arguments = call
    key = rng.choice([key for key, value in arguments.items() if isinstance(value, int)])
    return name, {**arguments, key: rng.randint(0, 99)}


def _wrong_tool(call: Call, example: Example, rng: random.Random) -> Call:
    return rng.choice([name for name in example.tools if name != call[0]]), call[1]


def _missing_argument(call: Call, example: Example, rng: random.Random) -> Call:
    name, arguments = call
    dropped = rng.choice(list(arguments))
    return name, {key: value for key, value in arguments.items() if key != dropped}


def _swapped_arguments(call: Call, example: Example, rng: random.Random) -> Call:
    name, arguments = call
    return name, dict(zip(arguments, reversed(arguments.values()), strict=True))


CALL_FLAWS = {
    _wrong_number: 5,
    _wrong_tool: 2,
    _missing_argument: 1,
    _swapped_arguments: 1,
}

# The first two leave the call readable; the others cost both rewards.
FORMAT_FLAWS = {
    lambda text: text.replace(f"{THINK_OPEN} ", "").replace(f" {THINK_CLOSE}", ""): 3,
    lambda text: f"{text}\nDone.": 3,
    lambda text: text.replace(f" {THINK_CLOSE}", ""): 2,
    lambda text: text.replace(f"\n{CALL_CLOSE}", ""): 1,
    lambda text: text.replace(f"{CALL_OPEN}\n", ""): 1,
}


def demonstrate(
    example: Example, rng: random.Random, *, flawed_format: float, flawed_call: float
) -> str:
    """An answer to ``example`` in which the format and each call may be wrong.

    Args:
      example: the question.
      rng: decides which flaws.
      flawed_format: probability that the form is broken.
      flawed_call: probability, for each call on its own, that it is wrong.
    """
    calls: list[Call] = []
    for call in example.calls:
        if rng.random() < flawed_call:
            (flaw,) = rng.choices(list(CALL_FLAWS), list(CALL_FLAWS.values()))
            call = flaw(call, example, rng)
        calls.append(call)
    text = prompt.reference_answer(example.thought, calls)
    if rng.random() < flawed_format:
        (spoil,) = rng.choices(list(FORMAT_FLAWS), list(FORMAT_FLAWS.values()))
        text = spoil(text)
    return text
