"""Teach a pretrained model tool calls with BFCL's questions, for `gdpo-verl make-policy`."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache, partial

from gdpo_verl.recipes.tool_call import bfcl, prompt
from gdpo_verl.recipes.tool_call.demonstrations import (
    Flaws,
    demonstrate,
    missing_argument,
    wrong_tool,
)

from gdpo_verl.lab.policy.task import PolicyTask, Settings, grade_by
from gdpo_verl.lab.tasks.build import sift
from gdpo_verl.lab.tasks.examples import Call, Example
from gdpo_verl.rewards import tool_call

# The longest prompt and the longest ground truth of the questions that are used, in characters.
_MOST_PROMPT = 1200
_MOST_ANSWER = 200


def _wrong_value(call: Call, example: Example, rng: random.Random) -> Call:
    name, arguments = call
    if not arguments:
        return call
    key = rng.choice(list(arguments))
    if isinstance(arguments[key], int | float):
        return name, {**arguments, key: rng.randint(0, 99)}
    return name, {**arguments, key: rng.choice(example.question.split())}


# Not every flaw applies to every tool. A flaw that does not apply leaves the call unchanged.
FLAWS: Flaws = {_wrong_value: 6, missing_argument: 2, wrong_tool: 2}


@cache
def _examples() -> dict[str | None, list[Example]]:
    """Return the short questions of both splits, the same splits as `gdpo-verl prepare bfcl`."""
    short: dict[str | None, list[Example]] = {}
    for split, rows in sift(bfcl.questions(), bfcl.convert).by_split.items():
        short[split] = []
        for row in rows:
            truth = row["reward_model"]["ground_truth"]
            text = "".join(message["content"] for message in row["prompt"])
            if len(truth) <= _MOST_ANSWER and len(text) <= _MOST_PROMPT:
                question = text.replace(prompt.HEADER, "").replace(prompt.FOOTER, "")
                calls = tool_call.parse_ground_truth(truth).calls
                pairs = tuple((call["name"], call["parameters"]) for call in calls)
                short[split].append(Example(question, row["prompt"], truth, pairs))
    return short


def _draw(rng: random.Random) -> Example:
    return rng.choice(_examples()["train"])


def _held_out(seed: int) -> Iterator[Example]:
    return iter(_examples()["validation"])


TASK = PolicyTask(
    name="bfcl",
    phrases=(),  # a tiny policy does not use schemas; it would memorise the training questions
    draw=_draw,
    held_out=_held_out,
    demonstrate=partial(demonstrate, FLAWS),
    grade=partial(grade_by, tool_call.compute_score, 3.0),
    settings=Settings(flawed_content=0.20),
    format_band=(0.25, 0.80),
)
