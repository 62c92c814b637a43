"""Flawed demonstrations, from which a tiny policy learns a part of its task.

The format and the content of a response are wrong independently of each other, each in several
ways, so that reinforcement learning can improve both rewards.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from gdpo_verl.lab.tasks.examples import Call, Example
from gdpo_verl.recipes.tool_call import prompt
from gdpo_verl.recipes.tool_turns.rows import told, written
from gdpo_verl.recipes.tool_turns.tools import CITIES, ITEMS, UNITS
from gdpo_verl.rewards.gsm8k import CLOSE, OPEN
from gdpo_verl.rewards.thought import END_THINK, THINK
from gdpo_verl.rewards.tool_text import CLOSE as CALL_CLOSE
from gdpo_verl.rewards.tool_text import OPEN as CALL_OPEN

Flaw = TypeVar("Flaw")
Flaws = Mapping[Callable[[Call, Example, random.Random], Call], int]


def _wrong_number(call: Call, example: Example, rng: random.Random) -> Call:
    name, arguments = call
    key = rng.choice([key for key, value in arguments.items() if isinstance(value, int)])
    return name, {**arguments, key: rng.randint(0, 99)}


def _wrong_tool(call: Call, example: Example, rng: random.Random) -> Call:
    offered = re.findall(r"^\d+\. Name: (.+)$", example.messages[0]["content"], re.MULTILINE)
    others = [name for name in offered if name != call[0]]  # a question may have only one
    return rng.choice(others or [call[0]]), call[1]


def _missing_argument(call: Call, example: Example, rng: random.Random) -> Call:
    name, arguments = call
    dropped = rng.choice(list(arguments) or [""])  # a call may have none
    return name, {key: value for key, value in arguments.items() if key != dropped}


def _swapped_arguments(call: Call, example: Example, rng: random.Random) -> Call:
    name, arguments = call
    return name, dict(zip(arguments, reversed(arguments.values()), strict=True))


def _wrong_value(call: Call, example: Example, rng: random.Random) -> Call:
    name, arguments = call
    if not arguments:
        return call
    key = rng.choice(list(arguments))
    if isinstance(arguments[key], int | float):
        return name, {**arguments, key: rng.randint(0, 99)}
    return name, {**arguments, key: rng.choice(example.question.split())}


CALL_FLAWS: Flaws = {_wrong_number: 5, _wrong_tool: 2, _missing_argument: 1, _swapped_arguments: 1}
# For questions with any tools and arguments; a flaw that does not apply does not change the call.
BFCL_FLAWS: Flaws = {_wrong_value: 6, _missing_argument: 2, _wrong_tool: 2}


def _without_tags(text: str) -> str:
    """Write the thought without its tags."""
    return text.replace(f"{THINK} ", "").replace(f" {END_THINK}", "")


# After the first two the call can be parsed; the others cost both rewards.
FORMAT_FLAWS = {
    _without_tags: 3,
    lambda text: f"{text}\nDone.": 3,
    lambda text: text.replace(f" {END_THINK}", ""): 2,
    lambda text: text.replace(f"\n{CALL_CLOSE}", ""): 1,
    lambda text: text.replace(f"{CALL_OPEN}\n", ""): 1,
}


def demonstrate(
    example: Example,
    rng: random.Random,
    flawed_format: float,
    flawed_call: float,
    flaws: Flaws = CALL_FLAWS,
) -> str:
    """Answer a question; the format and each call are wrong with these probabilities.

    `flaws` are the ways in which a call may be wrong, with their frequencies.
    """
    calls: list[Call] = []
    for call in example.calls:
        if rng.random() < flawed_call:
            call = _one_of(flaws, rng)(call, example, rng)
        calls.append(call)
    thought = example.ground_truth.partition(THINK)[2].partition(END_THINK)[0].strip()
    text = prompt.reference_answer(thought, calls)
    return _one_of(FORMAT_FLAWS, rng)(text) if rng.random() < flawed_format else text


def _one_of(frequencies: Mapping[Flaw, int], rng: random.Random) -> Flaw:
    return rng.choices(list(frequencies), list(frequencies.values()))[0]


# After the first two the answer can be parsed; the others cost all rewards.
SUM_FORMAT_FLAWS = {
    _without_tags: 3,
    lambda text: text.replace(f"{END_THINK}\n", f"{END_THINK} "): 3,
    lambda text: text.replace(OPEN, "").replace(CLOSE, ""): 2,
    lambda text: text.replace(CLOSE, ""): 2,
}


def demonstrate_sum(
    example: Example, rng: random.Random, flawed_format: float, flawed_answer: float
) -> str:
    """Answer a sum, such as ``9 + 8 - 7``; the format and the result may be wrong.

    The thought is the last step, ``17 - 7``. A wrong result is another number, or not a whole
    number.
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
    return _one_of(SUM_FORMAT_FLAWS, rng)(text) if rng.random() < flawed_format else text


def next_turn(problem: Example, rng: random.Random) -> Example:
    """Stop a correct rollout at any turn: the next turn is one call, or the answer alone."""
    done = rng.randint(0, len(problem.calls))
    made = list(problem.calls[:done])
    calls = problem.calls[done : done + 1]
    if calls and rng.random() < 0.1:  # this turn corrects a call that the tool rejected
        made.append(_refused(calls[0]))
    turns = []
    for call in made:
        turns.append({"role": "assistant", "content": written(call)})
        turns.append({"role": "tool", "content": told(call)})
    truth = written(calls[0]) if calls else f"{OPEN}{problem.ground_truth}{CLOSE}"
    return Example(problem.question, [*problem.messages, *turns], truth, calls)


def _refused(call: Call) -> Call:
    return call[0], dict.fromkeys(call[1], "x")


def _miscopied(call: Call, rng: random.Random) -> Call:
    name, arguments = call
    key, value = rng.choice(list(arguments.items()))
    # A name for a name and a number for a number, so that the tool accepts it.
    names = next((names for names in (ITEMS, CITIES, sum(UNITS, ())) if value in names), ())
    number = re.sub(r"\d+", lambda _: str(rng.randint(2, 99)), str(value), count=1)
    return name, {**arguments, key: rng.choice(names) if names else type(value)(number)}


def _last_call(messages: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the last call, which comes before its tool's result; none where a rollout begins."""
    turns = messages[2:]
    if len(turns) < 2:
        return []
    return [turns[-2]["content"]]


def demonstrate_turn(
    example: Example, rng: random.Random, flawed_format: float, flawed_content: float
) -> str:
    """Write the next turn; its format and content are wrong with these probabilities.

    The right call is replaced by another call, a call that the tool rejects, or the last call
    again; the answer is replaced by another number, or the last call again.
    """
    text = example.ground_truth
    last = _last_call(example.messages)
    if rng.random() < flawed_content:
        wrong = [f"{OPEN}{rng.randint(2, 99)}{CLOSE}"]
        for call in example.calls:  # one call, or none where the answer comes next
            wrong = [written(_miscopied(call, rng))] * 3 + [written(_refused(call))]
        text = rng.choice(wrong + last)
    if rng.random() < flawed_format:
        untagged = re.sub(f"{OPEN}|{CLOSE}|\n{CALL_CLOSE}", "", text)
        # verl makes only the first call of a turn.
        text = rng.choice((untagged, f"{text}\n{text}" if CALL_OPEN in text else f"{text} Done."))
    return text
