"""Policies of a few logits that earn several rewards, trained with each estimator.

A policy samples bits b for each prompt, where bit n is 1 with probability sigmoid(x_n). An epoch
samples one group of rollouts for each prompt, takes their advantages A from `gdpo_verl.advantage`
and moves the prompt's logits by

  x_n <- x_n + learning_rate * mean_i A_i (b_in - sigmoid(x_n)),

which is the policy gradient of independent Bernoulli actions. All seeds are trained at once,
each as a separate batch.

A task has three parts. `start` contains the probabilities of the bits before training: N numbers,
or N numbers for each prompt. `rewards` computes rewards, shape (S, P, G, K), from bits, shape
(S, P, G, N), and as many uniform random numbers. `quality` computes the reported measures in
[0, 1], shape (S, Q), from probabilities, shape (S, P, N).

Dimensions: S seeds, P prompts, G rollouts in a group, N bits, K rewards, Q measures.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from gdpo_verl.advantage import (
    NOISE_FLOOR,
    EstimatorSettings,
    Gate,
    apply_conditions,
    decompose,
)

EPOCHS = 150
# Smaller differences do not count, because with enough seeds every difference is significant.
LEAST = 0.01
BATCH = 32
LEARNING_RATE = 0.15


@dataclass(frozen=True)
class Skills:
    """Skills and their rewards: one bit for each skill, and one prompt.

    Attributes:
      start: the probabilities of the skills before training.
      scales: the reward for a success, in reward units.
      correlation: the share of rollouts in which every reward except the first shows the result
        of the first skill instead of its own. If it is negative, these rewards show the opposite of
        that result.
      noise: the size of the coin flip in the third reward, in reward units. With it the third
        reward measures no skill, and only the first two are reported.
    """

    start: tuple[float, ...] = (0.5, 0.5, 0.5)
    scales: tuple[float, ...] = (1.0, 1.0, 1.0)
    correlation: float = 0.0
    noise: float = 0.0
    group: int = BATCH

    def rewards(self, bits: Tensor, draws: Tensor) -> Tensor:
        first = bits[..., :1]
        shown = first if self.correlation >= 0 else 1.0 - first
        # Each reward has its own random numbers. Otherwise the later rewards would be equal.
        share = torch.full((len(self.start),), abs(self.correlation))
        share[0] = 0.0
        mixed = torch.where(draws < share, shown, bits)
        rewards = mixed * torch.tensor(self.scales)
        if self.noise:
            heads = draws[..., 2] < 0.5
            rewards[..., 2] = heads * self.noise
        return rewards

    def quality(self, p: Tensor) -> Tensor:
        return p[:, 0, : 2 if self.noise else len(self.start)]


@dataclass(frozen=True)
class CorrectOrShort:
    """Correctness against brevity: one reward needs a long response, the other a short one.

    The first bit is the right idea, and the second bit is the written work. A response is correct
    with both bits, and brief without the second.

    Attributes:
      start: both probabilities before training, for each prompt.
    """

    start: tuple[tuple[float, float], ...]
    group: int = 8

    def rewards(self, bits: Tensor, draws: Tensor) -> Tensor:
        idea, work = bits.unbind(dim=-1)
        return torch.stack([idea * work, 1.0 - work], dim=-1)

    def quality(self, p: Tensor) -> Tensor:
        return torch.stack([p.prod(dim=2), 1.0 - p[..., 1]], dim=2).mean(dim=1)


Task = Skills | CorrectOrShort


@dataclass(frozen=True)
class Method:
    """An estimator with its settings and a factor on its learning rate.

    Attributes:
      weights: the weights of the rewards; empty means that all are 1.
      conditioned: every reward except the first counts only where the first is 1 (Eq. 8).
      gated: groups in which the first reward is constant get no advantage.
    """

    name: str
    decoupled: bool
    whiten: bool = False
    lr_factor: float = 1.0
    weights: tuple[float, ...] = ()
    conditioned: bool = False
    gated: bool = False

    def combine(self, rewards: Tensor) -> Tensor:
        """Compute advantages before whitening from rewards (S, P, G, K): shape (S, P, G).

        The result is NaN where the gate is closed.
        """
        rows = rewards.reshape(-1, rewards.shape[3])
        names = [str(k) for k in range(rewards.shape[3])]
        on_first = {name: {"on": names[0], "at_least": 1.0} for name in names[1:]}
        settings = EstimatorSettings(
            weights=self.weights or None, gate=Gate(0) if self.gated else None
        )
        decomposition = decompose(
            rows,
            torch.arange(len(rows)) // rewards.shape[2],  # every G rows are a group, for all seeds
            settings=settings,
            conditioned=apply_conditions(rows, names, on_first if self.conditioned else {}),
        )
        if self.decoupled:
            # `combined` is divided by the largest weight; GRPO's advantage is not.
            values = decomposition.combined * decomposition.largest_weight
        else:
            values = decomposition.grpo
        return values.reshape(rewards.shape[:3])

    def advantages(self, combined: Tensor) -> Tensor:
        """Whiten the result of `combine` over the batch of each seed: shape (S, P, G)."""
        return (whiten(combined) if self.whiten else combined).nan_to_num(0.0)


GRPO = Method("GRPO", decoupled=False)
GDPO = Method("GDPO", decoupled=True, whiten=True)
UNWHITENED = Method("GDPO without whitening", decoupled=True)


@dataclass(frozen=True, eq=False)
class Training:
    """The result of one task and one method.

    Attributes:
      quality: the quality of the task before each epoch: float64, shape (epochs, S, Q).
      spread: the advantages' standard deviation in a batch of the first epoch, before
        whitening, mean over the seeds.
    """

    quality: Tensor
    spread: float

    @property
    def mean(self) -> Tensor:
        """The mean over the qualities: shape (epochs, S)."""
        return self.quality.mean(dim=2)

    @property
    def slowest(self) -> Tensor:
        """The lowest of the qualities: shape (epochs, S)."""
        return self.quality.amin(dim=2)

    def each(self, index: int) -> Tensor:
        """Return one of the qualities: shape (epochs, S)."""
        return self.quality[:, :, index]


@lru_cache(maxsize=256)
def train(
    task: Task,
    method: Method,
    *,
    seeds: int = 20,
    learning_rate: float = LEARNING_RATE,
) -> Training:
    """Train the policy `seeds` times; the same arguments give the same result."""
    generator = torch.Generator().manual_seed(0)
    logits = start(task, seeds).logit()
    history: list[Tensor] = []
    spread = 0.0
    for _ in range(EPOCHS):
        p = logits.sigmoid()
        history.append(task.quality(p))
        bits, rewards = draw(task, p, generator)
        combined = method.combine(rewards)
        spread = spread or float(combined.nan_to_num(0.0).flatten(1).std(dim=1).mean())
        # The derivative of log p(bit) with respect to its logit is bit - p.
        gradient = method.advantages(combined)[..., None] * (bits - p[:, :, None])
        logits = logits + learning_rate * method.lr_factor * gradient.mean(dim=2)
    return Training(torch.stack(history), spread)


def start(task: Task, seeds: int) -> Tensor:
    """Return the probabilities before training: float64, shape (S, P, N)."""
    by_prompt = torch.tensor(task.start, dtype=torch.float64)
    return by_prompt.reshape(-1, by_prompt.shape[-1]).repeat(seeds, 1, 1)


def draw(task: Task, p: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Sample one group per prompt: bits, shape (S, P, G, N), and rewards, shape (S, P, G, K)."""
    shape = (*p.shape[:2], task.group, p.shape[2])
    # Both tensors are drawn even if a task does not use the second, so that all tasks have the same
    # bits.
    bits, draws = (torch.rand(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    success = (bits < p[:, :, None]).to(torch.float64)
    return success, task.rewards(success, draws)


def whiten(combined: Tensor) -> Tensor:
    """Whiten each seed's batch over its rollouts, as GDPO does: shape (S, P, G); NaN stays NaN.

    A batch that does not vary, or in which fewer than two rollouts have an advantage, becomes 0.
    """
    # NaN is a rollout without an advantage; it does not count in the mean and in the deviation.
    count = (~combined.isnan()).sum(dim=(1, 2), keepdim=True)
    centred = combined - combined.nanmean(dim=(1, 2), keepdim=True)
    variance = centred.square().nansum(dim=(1, 2), keepdim=True) / (count - 1).clamp(min=1)
    factor = torch.where(variance.sqrt() < NOISE_FLOOR, 0.0, torch.rsqrt(variance + 1e-8))
    return centred * factor


@dataclass(frozen=True)
class Figure:
    """A mean over seeds with its standard error."""

    mean: float
    error: float

    def __str__(self) -> str:
        return f"{self.mean:.4f} ± {self.error:.4f}"


def over_seeds(values: Tensor) -> Figure:
    """Return the mean of one value for each of two or more seeds, with its standard error.

    >>> print(over_seeds(torch.tensor([0.25, 0.75])))
    0.5000 ± 0.2500
    """
    return Figure(float(values.mean()), float(values.std()) / math.sqrt(len(values)))


def verdict(ours: Figure, control: Figure) -> int:
    """Return 1 if GDPO is ahead, -1 if it is behind, and 0 if neither is certain.

    Ahead means by more than two standard errors of the difference, and by more than `LEAST`.
    """
    difference = ours.mean - control.mean
    if abs(difference) <= max(LEAST, 2.0 * math.hypot(ours.error, control.error)):
        return 0
    return 1 if difference > 0 else -1
