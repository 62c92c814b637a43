"""Flawed demonstrations of tool calls, from which a policy learns them partly.

The format and the content of a response are wrong independently of each other, each in several
ways, so that reinforcement learning can improve both rewards.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping

from gdpo_verl.recipes.tool_call.prompt import reference_answer

from gdpo_verl.lab.policy.task import choose
from gdpo_verl.lab.tasks.examples import Call, Example
from gdpo_verl.rewards.thought import END_THINK, THINK
from gdpo_verl.rewards.tool_text import CLOSE, OPEN

Flaws = Mapping[Callable[[Call, Example, random.Random], Call], int]
"""The ways in which a call may be wrong, with their frequencies."""


def wrong_tool(call: Call, example: Example, rng: random.Random) -> Call:
    """Name another tool of the prompt; the same one where the prompt has only one."""
    offered = re.findall(r"^\d+\. Name: (.+)$", example.messages[0]["content"], re.MULTILINE)
    others = [name for name in offered if name != call[0]]
    return rng.choice(others or [call[0]]), call[1]


def missing_argument(call: Call, example: Example, rng: random.Random) -> Call:
    """Leave out an argument; a call may have none."""
    name, arguments = call
    dropped = rng.choice(list(arguments) or [""])
    return name, {key: value for key, value in arguments.items() if key != dropped}


# After the first two the call can be parsed; the others cost both rewards.
FORMAT_FLAWS: Mapping[Callable[[str], str], int] = {
    lambda text: text.replace(f"{THINK} ", "").replace(f" {END_THINK}", ""): 3,
    lambda text: f"{text}\nDone.": 3,
    lambda text: text.replace(f" {END_THINK}", ""): 2,
    lambda text: text.replace(f"\n{CLOSE}", ""): 1,
    lambda text: text.replace(f"{OPEN}\n", ""): 1,
}


def demonstrate(
    flaws: Flaws, example: Example, rng: random.Random, flawed_format: float, flawed_call: float
) -> str:
    """Answer a question; the format and each call are wrong with these probabilities."""
    calls: list[Call] = []
    for call in example.calls:
        if rng.random() < flawed_call:
            flaw = choose(flaws, rng)
            call = flaw(call, example, rng)
        calls.append(call)
    thought = example.ground_truth.partition(THINK)[2].partition(END_THINK)[0].strip()
    text = reference_answer(thought, calls)
    if rng.random() < flawed_format:
        text = choose(FORMAT_FLAWS, rng)(text)
    return text
