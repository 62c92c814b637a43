"""A policy of three logits that earns three binary rewards, trained with each estimator.

Reward k is a success b_k, 1 with probability sigmoid(x_k). An epoch draws one group of
rollouts, takes their advantages A from `gdpo_verl.advantage` and moves the logits by

  x_k <- x_k + learning_rate * mean_i A_i (b_ik - sigmoid(x_k)),

which is the policy gradient of independent Bernoulli actions. All seeds are trained at once,
each as a group of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from gdpo_verl.advantage import NOISE_FLOOR, decoupled_sum, grpo_scalars, whitening

EPOCHS = 150
BATCH = 32
LEARNING_RATE = 0.15


@dataclass(frozen=True)
class Task:
    """Three skills and how they are rewarded.

    Attributes:
      start: the skills' probabilities before training.
      scales: what a success is worth, in reward units.
      correlation: the share of rollouts in which the second and the third reward show the
        first skill's outcome instead of their own; its opposite where negative.
      noise: the size of the third reward's coin flip, in reward units; with it the third
        reward says nothing about any skill, and only the first two are counted.
    """

    start: tuple[float, float, float] = (0.5, 0.5, 0.5)
    scales: tuple[float, float, float] = (1.0, 1.0, 1.0)
    correlation: float = 0.0
    noise: float = 0.0

    @property
    def skills(self) -> int:
        return 2 if self.noise else 3


@dataclass(frozen=True)
class Method:
    """An estimator and the factor on its learning rate."""

    name: str
    decoupled: bool
    whiten: bool = False
    faster: float = 1.0


GRPO = Method("GRPO", decoupled=False)
GDPO = Method("GDPO", decoupled=True, whiten=True)
UNWHITENED = Method("GDPO without whitening", decoupled=True)


@dataclass(frozen=True, eq=False)
class Training:
    """The result of one task and one method.

    Attributes:
      skill: before each epoch, float64, shape (epochs, seeds, skills): the probabilities.
      spread: the advantages' standard deviation in a group of the first epoch, before
        whitening, mean over the seeds.
    """

    skill: Tensor
    spread: float

    @property
    def mean(self) -> Tensor:
        """The mean over the skills: shape (epochs, seeds)."""
        return self.skill.mean(dim=2)

    @property
    def slowest(self) -> Tensor:
        """The lowest of the skills: shape (epochs, seeds)."""
        return self.skill.amin(dim=2)


@lru_cache(maxsize=128)
def train(
    task: Task,
    method: Method,
    *,
    seeds: int = 20,
    learning_rate: float = LEARNING_RATE,
    epochs: int = EPOCHS,
    batch: int = BATCH,
) -> Training:
    """Train the policy `seeds` times; the same arguments give the same result."""
    generator = torch.Generator().manual_seed(0)
    start = torch.tensor(task.start, dtype=torch.float64)
    logits = torch.logit(start).repeat(seeds, 1)
    group_ids = torch.arange(seeds).repeat_interleave(batch)
    history: list[Tensor] = []
    spread = 0.0
    for _ in range(epochs):
        skill = logits.sigmoid()
        history.append(skill[:, : task.skills])
        success = (_uniform(generator, seeds, batch, 3) < skill[:, None]).to(torch.float64)
        rewards = _rewards(task, success, generator).reshape(-1, 3)
        estimate = decoupled_sum if method.decoupled else grpo_scalars
        advantage = estimate(rewards, group_ids).reshape(seeds, batch)
        spread = spread or float(advantage.std(dim=1).mean())
        if method.whiten:
            advantage = torch.stack([_whiten(group) for group in advantage])
        gradient = (advantage[:, :, None] * (success - skill[:, None])).mean(dim=1)
        logits = logits + learning_rate * method.faster * gradient
    return Training(torch.stack(history), spread)


def _uniform(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.rand(shape, generator=generator, dtype=torch.float64)


def _rewards(task: Task, success: Tensor, generator: torch.Generator) -> Tensor:
    """Rewards of all rollouts, shape (seeds, batch, 3); every task draws as many numbers."""
    draws = _uniform(generator, *success.shape)
    first = success[:, :, :1]
    shown = first if task.correlation >= 0 else 1.0 - first
    replaced = draws < torch.tensor([0.0, abs(task.correlation), abs(task.correlation)])
    rewards = torch.where(replaced, shown, success) * torch.tensor(task.scales)
    if task.noise:
        rewards[:, :, 2] = task.noise * (draws[:, :, 2] < 0.5)
    return rewards


def _whiten(advantage: Tensor) -> Tensor:
    """GDPO's batch step over the sequences of one seed's group."""
    ones = torch.ones_like(advantage)
    mean, factor = whitening(advantage, ones, over="sequence", floor=NOISE_FLOOR)
    return (advantage - mean) * factor


@dataclass(frozen=True)
class Figure:
    """A mean over seeds with its standard error."""

    mean: float
    error: float

    def __str__(self) -> str:
        return f"{self.mean:.4f} ± {self.error:.4f}"


def over_seeds(values: Tensor) -> Figure:
    """The mean of one value for each of two or more seeds, with its standard error.

    >>> print(over_seeds(torch.tensor([0.25, 0.75])))
    0.5000 ± 0.2500
    """
    return Figure(float(values.mean()), float(values.std()) / math.sqrt(len(values)))


def verdict(ours: Figure, control: Figure, *, least: float = 0.01) -> int:
    """1 when GDPO is ahead, -1 when it is behind, 0 when neither can be said.

    Ahead is more than two standard errors of the difference, and more than `least`.
    """
    difference = ours.mean - control.mean
    if abs(difference) <= max(least, 2.0 * math.hypot(ours.error, control.error)):
        return 0
    return 1 if difference > 0 else -1
