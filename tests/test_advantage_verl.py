"""The estimator against verl's own functions, where they agree and where not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from advantages import NAN, S, close, exactly_zero, lengths
from torch import Tensor
from verl.trainer.ppo import core_algos

from gdpo_verl import gdpo_advantages, grpo_advantages


class VerlBatch(NamedTuple):
    rewards: Tensor
    groups: Any  # an object array, as verl has it
    mask: Tensor
    whole: dict[str, Tensor]


def verl_batch(rewards: Tensor, groups: Sequence[str], mask: Tensor) -> VerlBatch:
    """The columns that verl reads: prompts, and an attention mask of prompt and response."""
    prompts = torch.ones(len(rewards), 2, dtype=torch.int64)
    # verl puts each reward on the last attended token, so tool output is attended too.
    last = (mask * torch.arange(1, mask.shape[1] + 1)).amax(1, keepdim=True)
    attended = (torch.arange(mask.shape[1]) < last).long()
    whole = {"prompts": prompts, "attention_mask": torch.cat([prompts, attended], dim=1)}
    return VerlBatch(rewards, np.array(groups, dtype=object), mask, whole)


def random_batch(seed: int, amplitudes: Sequence[float]) -> VerlBatch:
    """Interleaved groups of 2 to 6, normal rewards, masks with holes."""
    generator = torch.Generator().manual_seed(seed)
    groups = [f"uid-{size}" for size in range(2, 7) for _ in range(size)]
    order = torch.randperm(len(groups), generator=generator).tolist()
    rewards = torch.randn(len(groups), len(amplitudes), generator=generator)
    mask = (torch.rand(len(groups), 12, generator=generator) < 0.6).long()
    mask[:, 0] = 1
    return verl_batch(rewards * torch.tensor(amplitudes), [groups[i] for i in order], mask)


def verls_gdpo(batch: VerlBatch, weights: Sequence[float] | None = None, **kwargs: Any) -> Tensor:
    columns = {f"r{k}": column.numpy() for k, column in enumerate(batch.rewards.unbind(dim=1))}
    found: Tensor = core_algos.compute_gdpo_outcome_advantage(
        token_level_rewards=torch.zeros(batch.mask.shape),
        response_mask=batch.mask,
        index=batch.groups,
        config={"gdpo_reward_keys": list(columns), "gdpo_reward_weights": weights},
        non_tensor_batch=columns,
        batch=batch.whole,
        **kwargs,
    )[0]
    return found


def verls_grpo(batch: VerlBatch, **kwargs: Any) -> Tensor:
    scores = torch.zeros(batch.mask.shape)
    scores[:, 0] = batch.rewards.sum(dim=1)
    found: Tensor = core_algos.compute_grpo_outcome_advantage(
        scores, batch.mask, batch.groups, **kwargs
    )[0]
    return found


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("weights", [None, [1.0, 0.25, -2.0]], ids=["weights 1", "weights"])
@pytest.mark.parametrize("scale", [True, False], ids=["std", "no std"])
def test_over_tokens_it_equals_verls_gdpo(
    seed: int, weights: list[float] | None, scale: bool
) -> None:
    batch = random_batch(seed, [1.0, 30.0, 0.1])
    expected = verls_gdpo(batch, weights, norm_adv_by_std_in_grpo=scale)
    found = gdpo_advantages(batch.rewards, batch.groups, batch.mask, weights=weights, scale=scale)
    # verl computes in float32; over 200 seeds the largest difference was 1.2e-5.
    torch.testing.assert_close(found, expected, atol=3e-5, rtol=0.0)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("scale", [True, False], ids=["std", "no std"])
def test_grpo_equals_verls_grpo(seed: int, scale: bool) -> None:
    batch = random_batch(seed, [1.0, 0.5, 2.0])
    expected = verls_grpo(batch, norm_adv_by_std_in_grpo=scale)
    found = grpo_advantages(batch.rewards, batch.groups, batch.mask, scale=scale)
    # Over 200 seeds the largest difference was 1.7e-6.
    torch.testing.assert_close(found, expected, atol=5e-6, rtol=0.0)


def test_unlike_verl_a_group_of_one_is_zero_not_its_raw_reward() -> None:
    rewards, groups, mask = torch.tensor([[50.0], [1.0], [0.0]]), ["a", "b", "b"], lengths(1, 1, 1)
    batch = verl_batch(rewards, groups, mask)
    close(verls_grpo(batch)[:, 0], [50.0, S, -S], 1e-4)
    close(grpo_advantages(rewards, groups, mask)[:, 0], [0.0, S, -S])
    # There 50 rules the whitening: mean 50/3, var = (33.3333² + 15.9596² + 17.3738²)/2.
    close(verls_gdpo(batch)[:, 0], [1.15435, -0.55269, -0.60166])
    close(gdpo_advantages(rewards, groups, mask)[:, 0], [0.0, 1.0, -1.0])


@pytest.mark.parametrize("value", [3.3, 100.1])
def test_unlike_verl_a_constant_group_is_zero_not_rounding_over_epsilon(value: float) -> None:
    rewards, groups, mask = torch.full((7, 1), value), ["a"] * 7, torch.ones(7, 1).long()
    noise = verls_grpo(verl_batch(rewards, groups, mask)).abs().max()
    assert float(noise) > 1e-2
    assert exactly_zero(grpo_advantages(rewards, groups, mask))
    assert exactly_zero(gdpo_advantages(rewards, groups, mask))


def test_unlike_verl_one_unscored_reward_does_not_poison_the_batch() -> None:
    rewards = torch.tensor([[1.0], [0.0], [NAN], [2.0], [4.0]])
    groups, mask = ["a", "a", "a", "b", "b"], lengths(1, 1, 1, 1, 1)
    assert bool(verls_gdpo(verl_batch(rewards, groups, mask)).isnan().all())
    # s, -s, unscored, -s, s over four tokens: var = 4s²/3.
    expected = [0.86603, -0.86603, 0.0, -0.86603, 0.86603]
    close(gdpo_advantages(rewards, groups, mask)[:, 0], expected)


def test_unlike_verl_cancelling_rewards_leave_nothing() -> None:
    correct = torch.tensor([1.0, 0.0, 1.0, 0.0])
    rewards = torch.stack([6 * correct - 3, 1 - correct], dim=1)
    groups, mask = ["a"] * 4, lengths(1, 1, 1, 1)
    # What the epsilons leave, about 1e-6, over sqrt(1e-8).
    assert float(verls_gdpo(verl_batch(rewards, groups, mask)).abs().max()) > 1e-3
    assert exactly_zero(gdpo_advantages(rewards, groups, mask))
