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
    """Settings for training a policy; the defaults reach the middle of the toolbox's bands."""

    steps: int = 320
    batch_size: int = 32
    learning_rate: float = 3e-3
    warmup: float = 0.1  # the share of the steps in which the learning rate rises
    flawed_format: float = 0.30  # the share of demonstrations whose format is wrong
    flawed_content: float = 0.48  # the share of demonstrations whose content is wrong
    vocabulary: int = 768  # 0 keeps the vocabulary of a pretrained model
    max_new_tokens: int = 48
    evaluated: int = 256  # the number of held-out prompts
    # One thread is fast enough for this size. With several, the order of sums may change the last
    # bits of the weights.
    threads: int = 1


# These settings replace those of a task if the policy starts from a pretrained model.
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
    # The fixed texts of the chats, which become one token each. A task without them can be learned
    # only by a pretrained model.
    phrases: tuple[str, ...]
    draw: Callable[[random.Random], Example]  # a training question
    held_out: Callable[[int], Iterator[Example]]  # questions to measure on, by seed
    # Writes a response. The two numbers are the probabilities of a wrong format and wrong content.
    demonstrate: Callable[[Example, random.Random, float, float], str]
    # Returns, for a response and a ground truth, whether the format and the content are right.
    grade: Callable[[str, str], tuple[bool, bool]]
    settings: Settings = Settings()
    # The bands for the shares of responses with the right format, and with exactly the right
    # content.
    format_band: tuple[float, float] = (0.55, 0.80)
    exact_band: tuple[float, float] = (0.10, 0.40)


def choose(frequencies: Mapping[Item, int], rng: random.Random) -> Item:
    """Choose one of the keys at random, with probabilities proportional to the numbers."""
    return rng.choices(list(frequencies), list(frequencies.values()))[0]


def grade_by(
    compute_score: Callable[..., Mapping[str, float]],
    highest: float,
    response: str,
    ground_truth: str,
) -> tuple[bool, bool]:
    """Grade a response with a reward function that returns ``format`` and ``correctness``.

    The content is right if the correctness is ``highest``.
    """
    rewards = compute_score("", response, ground_truth)
    return bool(rewards["format"]), rewards["correctness"] == highest
