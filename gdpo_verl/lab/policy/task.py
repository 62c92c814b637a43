"""The tasks of `make-policy`: the questions, flawed answers and measures of each."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from types import ModuleType
from typing import Any

from gdpo_verl.lab.policy.demonstrations import (
    BFCL_FLAWS,
    demonstrate,
    demonstrate_sum,
    demonstrate_turn,
    next_turn,
)
from gdpo_verl.lab.tasks.build import sift
from gdpo_verl.lab.tasks.examples import Example
from gdpo_verl.lab.tasks.generated import draw_of, examples
from gdpo_verl.recipes.gsm8k import reasoning_gym
from gdpo_verl.recipes.gsm8k import rows as gsm8k
from gdpo_verl.recipes.tool_call import bfcl, prompt
from gdpo_verl.recipes.tool_turns import rows as tool_turns
from gdpo_verl.recipes.tool_turns import tools as turn_tools
from gdpo_verl.recipes.toolbox import rows as toolbox
from gdpo_verl.rewards import gsm8k as sums
from gdpo_verl.rewards import tool_call
from gdpo_verl.rewards.thought import END_THINK, THINK
from gdpo_verl.rewards.tool_text import CLOSE as CALL_CLOSE
from gdpo_verl.rewards.tool_text import OPEN as CALL_OPEN

_TAGS = (THINK, END_THINK, CALL_OPEN, CALL_CLOSE)
_AROUND_SUM = reasoning_gym.QUESTION.partition("{}")[::2]
_AROUND = (f"{prompt.HISTORY}\n<user>", " </user>")
# Fixed parts of the JSON: a response then has half as many tokens.
_JSON_PIECES = ('{"name": "', '", "parameters": {"', '": "', '": ', '", "', ', "', '"}}', "}}")
# The limit for questions of the leaderboard, in characters.
_MOST_PROMPT = 1200
_MOST_ANSWER = 200


@dataclass(frozen=True)
class Settings:
    """Settings of a policy's training; the defaults reach the middle of the toolbox's bands."""

    steps: int = 320
    batch_size: int = 32
    learning_rate: float = 3e-3
    warmup: float = 0.1  # share of the steps
    flawed_format: float = 0.30
    flawed_content: float = 0.48
    vocabulary: int = 768  # 0: a pretrained model's own
    max_new_tokens: int = 48
    evaluated: int = 256  # held-out prompts
    # One is fast enough for this size, and sums over threads change the last bits of the weights.
    threads: int = 1


# For a pretrained model, in place of the settings of a task.
FINETUNING: Mapping[str, Any] = {
    "steps": 64,
    "batch_size": 4,
    "learning_rate": 2e-4,
    "vocabulary": 0,
    "max_new_tokens": 96,
    "evaluated": 48,
}


@dataclass(frozen=True)
class PolicyTask:
    """The questions, flawed answers and measures of a task, for `policy.make_policy`."""

    # The fixed texts of its chats, one token each; without any, only a pretrained model can learn
    # it.
    phrases: tuple[str, ...]
    draw: Callable[[random.Random], Example]  # a training question
    held_out: Callable[[int], Iterator[Example]]  # questions to measure on, by seed
    # Writes a response, whose format and content are wrong with these two probabilities.
    demonstrate: Callable[[Example, random.Random, float, float], str]
    # Given a response and the ground truth, says whether the format and the content are right.
    grade: Callable[[str, str], tuple[bool, bool]]
    settings: Settings = Settings()
    # The bands for the shares of responses with the right format, and with exactly the right
    # content.
    format_band: tuple[float, float] = (0.55, 0.80)
    exact_band: tuple[float, float] = (0.10, 0.40)


@cache
def _bfcl_examples() -> dict[str | None, list[Example]]:
    """Return the short questions of both splits, split as by `gdpo-verl prepare bfcl`."""
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


def _grade(
    reward: ModuleType, highest: float, response: str, ground_truth: str
) -> tuple[bool, bool]:
    rewards = reward.compute_score("", response, ground_truth)
    return bool(rewards["format"]), rewards["correctness"] == highest


def _grade_turn(turn: str, ground_truth: str) -> tuple[bool, bool]:
    tags = f"{CALL_OPEN}[^<]*{CALL_CLOSE}|{sums.OPEN}[^<]*{sums.CLOSE}"
    return re.fullmatch(tags, turn) is not None, ground_truth in turn


# The fixed text of a call of each tool. A name is one token everywhere, so it can be copied.
_CALLS = [f'{CALL_OPEN}\n{{"name": "{name}", "arguments": {{"' for name in turn_tools.TOOLS]
_ARGUMENTS = ('expression": "', 'amount": ', 'source": "', 'target": "', 'item": "', 'city": "')
_UNITS = [unit[:-1] for pair in turn_tools.UNITS for unit in pair]
_TURN_PIECES = (
    *_CALLS,
    *_ARGUMENTS,
    '", "',
    ', "',
    f'"}}}}\n{CALL_CLOSE}',
    "assistant",
    *turn_tools.ITEMS,
    *turn_tools.CITIES,
    *dict.fromkeys(_UNITS),
)
_BLOCKS = [tool.block for tool in toolbox.TOOLS.values()]
TASKS: Mapping[str, PolicyTask] = {
    "toolbox": PolicyTask(
        phrases=(prompt.HEADER, *_BLOCKS, prompt.FOOTER, *_AROUND, *_TAGS, *_JSON_PIECES),
        draw=partial(draw_of, "train", toolbox.draw_example),
        held_out=partial(examples, "toolbox", "validation", toolbox.draw_example),
        demonstrate=demonstrate,
        grade=partial(_grade, tool_call, 3.0),
    ),
    "tool-turns": PolicyTask(
        phrases=(tool_turns.SYSTEM, *_TURN_PIECES, sums.OPEN, sums.CLOSE),
        draw=lambda rng: next_turn(draw_of("train", tool_turns.draw_example, rng), rng),
        held_out=lambda seed: (
            next_turn(problem, random.Random(problem.question))
            for problem in examples("tool-turns", "validation", tool_turns.draw_example, seed)
        ),
        demonstrate=demonstrate_turn,
        grade=_grade_turn,
        settings=Settings(steps=640, flawed_format=0.1, flawed_content=0.25),
        format_band=(0.80, 0.98),  # of one turn of several
        exact_band=(0.45, 0.85),
    ),
    "reasoning-gym": PolicyTask(
        phrases=(gsm8k.SYSTEM, *_AROUND_SUM, THINK, END_THINK, sums.OPEN, sums.CLOSE),
        draw=partial(draw_of, "train", reasoning_gym.draw_example),
        held_out=partial(examples, "reasoning-gym", "validation", reasoning_gym.draw_example),
        demonstrate=demonstrate_sum,
        grade=partial(_grade, sums, 1.0),
        settings=Settings(steps=800, flawed_content=0.35, vocabulary=512, max_new_tokens=32),
    ),
    "bfcl": PolicyTask(
        phrases=(),  # a tiny policy does not use schemas; it would memorise the training questions
        draw=lambda rng: rng.choice(_bfcl_examples()["train"]),
        held_out=lambda seed: iter(_bfcl_examples()["validation"]),
        demonstrate=partial(demonstrate, flaws=BFCL_FLAWS),
        grade=partial(_grade, tool_call, 3.0),
        settings=Settings(flawed_content=0.20),
        format_band=(0.25, 0.80),
    ),
}
