"""The declaration of a task for which a policy can be trained."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from gdpo_verl.lab.tasks.examples import Example

Item = TypeVar("Item")


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

    name: str
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


def choose(frequencies: Mapping[Item, int], rng: random.Random) -> Item:
    """Choose one of the keys, each as often as its number says."""
    return rng.choices(list(frequencies), list(frequencies.values()))[0]


def grade_by(
    compute_score: Callable[..., Mapping[str, float]],
    highest: float,
    response: str,
    ground_truth: str,
) -> tuple[bool, bool]:
    """Grade by a reward function with ``format`` and ``correctness``, at most ``highest``."""
    rewards = compute_score("", response, ground_truth)
    return bool(rewards["format"]), rewards["correctness"] == highest
