"""The tiny policy of the toolbox, for `gdpo-verl make-policy`."""

from __future__ import annotations

import random
from functools import partial

from gdpo_verl.recipes.tool_call import prompt
from gdpo_verl.recipes.tool_call.demonstrations import (
    Flaws,
    demonstrate,
    missing_argument,
    wrong_tool,
)
from gdpo_verl.recipes.toolbox.rows import DATA_SOURCE, TOOLS, draw_example

from gdpo_verl.lab.policy.task import PolicyTask, grade_by
from gdpo_verl.lab.tasks.examples import Call, Example
from gdpo_verl.lab.tasks.generated import draw_of, examples
from gdpo_verl.rewards import tool_call
from gdpo_verl.rewards.thought import END_THINK, THINK
from gdpo_verl.rewards.tool_text import CLOSE, OPEN

# Fixed parts of the JSON become one token each, so that a response has half as many tokens.
_JSON_PIECES = ('{"name": "', '", "parameters": {"', '": "', '": ', '", "', ', "', '"}}', "}}")
_BLOCKS = [tool.block for tool in TOOLS.values()]


def _wrong_number(call: Call, example: Example, rng: random.Random) -> Call:
    name, arguments = call
    numbers = [key for key, value in arguments.items() if isinstance(value, int)]
    key = rng.choice(numbers)
    return name, {**arguments, key: rng.randint(0, 99)}


def _swapped_arguments(call: Call, example: Example, rng: random.Random) -> Call:
    name, arguments = call
    return name, dict(zip(arguments, reversed(arguments.values()), strict=True))


FLAWS: Flaws = {_wrong_number: 5, wrong_tool: 2, missing_argument: 1, _swapped_arguments: 1}

TASK = PolicyTask(
    name=DATA_SOURCE,
    phrases=(
        prompt.HEADER,
        *_BLOCKS,
        prompt.FOOTER,
        f"{prompt.HISTORY}\n<user>",
        " </user>",
        THINK,
        END_THINK,
        OPEN,
        CLOSE,
        *_JSON_PIECES,
    ),
    draw=partial(draw_of, "train", draw_example),
    held_out=partial(examples, DATA_SOURCE, "validation", draw_example),
    demonstrate=partial(demonstrate, FLAWS),
    grade=partial(grade_by, tool_call.compute_score, 3.0),
)
