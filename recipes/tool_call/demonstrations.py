"""Flawed demonstrations of tool calls, from which a policy learns tool calls only in part.

The format and the content of a response are wrong independently of each other, each in several
ways. Reinforcement learning can therefore improve both rewards.
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
"""Functions that make a call wrong, with their frequencies."""


def wrong_tool(call: Call, example: Example, rng: random.Random) -> Call:
    """Replace the tool by another tool of the prompt, if the prompt has several tools."""
    offered = re.findall(r"^\d+\. Name: (.+)$", example.messages[0]["content"], re.MULTILINE)
    others = [name for name in offered if name != call[0]]
    return rng.choice(others or [call[0]]), call[1]


def missing_argument(call: Call, example: Example, rng: random.Random) -> Call:
    """Leave out one argument, if the call has arguments."""
    name, arguments = call
    dropped = rng.choice(list(arguments) or [""])
    return name, {key: value for key, value in arguments.items() if key != dropped}


# Changes that make the format of a response wrong, with their frequencies. After the first two, the
# call can still be parsed. After the others, both rewards are lost.
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
    """Write a response to a question, with a wrong format and wrong calls at times.

    Args:
      flaws: the ways in which a call may be wrong.
      example: the question.
      rng: draws the flaws.
      flawed_format, flawed_call: the probabilities of a wrong format, and of each wrong call.
    """
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
