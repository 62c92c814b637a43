"""The tiny policy of this task, for `gdpo-verl make-policy`.

A demonstration is one turn of a rollout, after the turns before it.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

from gdpo_verl.recipes.tool_turns.rows import DATA_SOURCE, SYSTEM, draw_example, told, written
from gdpo_verl.recipes.tool_turns.tools import CITIES, ITEMS, TOOLS, UNITS

from gdpo_verl.lab.policy.task import PolicyTask, Settings
from gdpo_verl.lab.tasks.examples import Call, Example
from gdpo_verl.lab.tasks.generated import draw_of, examples
from gdpo_verl.rewards.gsm8k import CLOSE, OPEN
from gdpo_verl.rewards.tool_text import CLOSE as CALL_CLOSE
from gdpo_verl.rewards.tool_text import OPEN as CALL_OPEN


def next_turn(problem: Example, rng: random.Random) -> Example:
    """Cut a correct rollout at a random turn; the next turn is one call, or the answer alone."""
    done = rng.randint(0, len(problem.calls))
    made = list(problem.calls[:done])
    calls = problem.calls[done : done + 1]
    if calls and rng.random() < 0.1:  # the next turn corrects a call that the tool rejected
        made.append(_rejected(calls[0]))
    turns = []
    for call in made:
        turns.append({"role": "assistant", "content": written(call)})
        turns.append({"role": "tool", "content": told(call)})
    truth = written(calls[0]) if calls else f"{OPEN}{problem.ground_truth}{CLOSE}"
    return Example(problem.question, [*problem.messages, *turns], truth, calls)


def _draw(rng: random.Random) -> Example:
    return next_turn(draw_of("train", draw_example, rng), rng)


def _held_out(seed: int) -> Iterator[Example]:
    for problem in examples(DATA_SOURCE, "validation", draw_example, seed):
        yield next_turn(problem, random.Random(problem.question))


def _rejected(call: Call) -> Call:
    return call[0], dict.fromkeys(call[1], "x")


def _miscopied(call: Call, rng: random.Random) -> Call:
    """Change an argument to another valid name or number, which the tool accepts."""
    name, arguments = call
    key, value = rng.choice(list(arguments.items()))
    for names in (ITEMS, CITIES, sum(UNITS, ())):
        if value in names:
            return name, {**arguments, key: rng.choice(names)}
    text = re.sub(r"\d+", lambda _: str(rng.randint(2, 99)), str(value), count=1)
    return name, {**arguments, key: type(value)(text)}


def demonstrate(
    example: Example, rng: random.Random, flawed_format: float, flawed_content: float
) -> str:
    """Write the next turn; its format and content are wrong with the two given probabilities.

    A wrong turn replaces the right call by another call, by a call that the tool rejects, or by the
    last call. It replaces the answer by another number, or by the last call.
    """
    text = example.ground_truth
    calls = [turn["content"] for turn in example.messages if turn["role"] == "assistant"]
    if rng.random() < flawed_content:
        wrong = [f"{OPEN}{rng.randint(2, 99)}{CLOSE}"]
        for call in example.calls:  # there is one call, or none if the answer comes next
            wrong = [written(_miscopied(call, rng))] * 3 + [written(_rejected(call))]
        text = rng.choice(wrong + calls[-1:])
    if rng.random() < flawed_format:
        untagged = re.sub(f"{OPEN}|{CLOSE}|\n{CALL_CLOSE}", "", text)
        longer = f"{text} Done."
        if CALL_OPEN in text:
            longer = f"{text}\n{text}"  # verl executes only the first call of a turn
        text = rng.choice((untagged, longer))
    return text


def _grade(turn: str, ground_truth: str) -> tuple[bool, bool]:
    tags = f"{CALL_OPEN}[^<]*{CALL_CLOSE}|{OPEN}[^<]*{CLOSE}"
    return re.fullmatch(tags, turn) is not None, ground_truth in turn


# The fixed text of a call of each tool. Every name is one token, so that the policy can copy it.
_CALLS = [f'{CALL_OPEN}\n{{"name": "{name}", "arguments": {{"' for name in TOOLS]
_ARGUMENTS = ('expression": "', 'amount": ', 'source": "', 'target": "', 'item": "', 'city": "')
_UNITS = [unit[:-1] for pair in UNITS for unit in pair]

TASK = PolicyTask(
    name=DATA_SOURCE,
    phrases=(
        SYSTEM,
        *_CALLS,
        *_ARGUMENTS,
        '", "',
        ', "',
        f'"}}}}\n{CALL_CLOSE}',
        "assistant",
        *ITEMS,
        *CITIES,
        *dict.fromkeys(_UNITS),
        OPEN,
        CLOSE,
    ),
    draw=_draw,
    held_out=_held_out,
    demonstrate=demonstrate,
    grade=_grade,
    settings=Settings(steps=640, flawed_format=0.1, flawed_content=0.25),
    format_band=(0.80, 0.98),  # for a single turn; a rollout has several
    exact_band=(0.45, 0.85),
)
