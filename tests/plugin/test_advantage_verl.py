"""The estimator against verl's own functions: where both agree, and where they differ."""

import numpy as np
import pytest
import torch
from by_hand import S, close, exactly_zero
from verl.trainer.ppo import core_algos

from gdpo_verl import gdpo_advantages, grpo_advantages


def random_batch(seed, amplitudes):
    """Draw normal rewards, interleaved groups of 2 to 6 as in verl, and masks with holes."""
    generator = torch.Generator().manual_seed(seed)
    groups = [f"uid-{size}" for size in range(2, 7) for _ in range(size)]
    order = torch.randperm(len(groups), generator=generator).tolist()
    rewards = torch.randn(len(groups), len(amplitudes), generator=generator)
    mask = (torch.rand(len(groups), 12, generator=generator) < 0.6).long()
    mask[:, 0] = 1
    return rewards * torch.tensor(amplitudes), np.array(groups, dtype=object)[order], mask


def verls_gdpo(rewards, groups, mask, weights, scale):
    columns = {f"r{k}": column.numpy() for k, column in enumerate(rewards.unbind(dim=1))}
    prompts = torch.ones(len(rewards), 2, dtype=torch.int64)
    # verl puts each reward on the last attended token, and tool output is attended as well.
    last = (mask * torch.arange(1, mask.shape[1] + 1)).amax(1, keepdim=True)
    attended = (torch.arange(mask.shape[1]) < last).long()
    return core_algos.compute_gdpo_outcome_advantage(
        token_level_rewards=torch.zeros(mask.shape),
        response_mask=mask,
        index=groups,
        config={"gdpo_reward_keys": list(columns), "gdpo_reward_weights": weights},
        non_tensor_batch=columns,
        batch={"prompts": prompts, "attention_mask": torch.cat([prompts, attended], dim=1)},
        norm_adv_by_std_in_grpo=scale,
    )[0]


def verls_grpo(rewards, groups, mask, scale=True):
    scores = torch.zeros(mask.shape)
    scores[:, 0] = rewards.sum(dim=1)
    return core_algos.compute_grpo_outcome_advantage(
        scores, mask, groups, norm_adv_by_std_in_grpo=scale
    )[0]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("weights", [None, [1.0, 0.25, -2.0]])
@pytest.mark.parametrize("scale", [True, False])
def test_over_tokens_it_equals_verls_gdpo(seed, weights, scale):
    batch = random_batch(seed, [1.0, 30.0, 0.1])
    expected = verls_gdpo(*batch, weights, scale)
    found = gdpo_advantages(*batch, weights=weights, scale=scale)
    # verl computes in float32; over 200 seeds the largest difference was 1.2e-5.
    torch.testing.assert_close(found, expected, atol=3e-5, rtol=0.0)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("scale", [True, False])
def test_grpo_equals_verls_grpo(seed, scale):
    batch = random_batch(seed, [1.0, 0.5, 2.0])
    # Over 200 seeds the largest difference was 1.7e-6.
    found = grpo_advantages(*batch, scale=scale)
    torch.testing.assert_close(found, verls_grpo(*batch, scale), atol=5e-6, rtol=0.0)


def test_unlike_verls_grpo_groups_of_one_and_constant_groups_are_exactly_zero():
    # The row of verl in docs/semantics.md lists the differences of verl's GDPO
    # (test_conformance.py).
    rewards = torch.tensor([[50.0], [1.0], [0.0], *[[100.1]] * 7])
    groups, mask = np.array(["a", "b", "b", *["c"] * 7], dtype=object), torch.ones(10, 1).long()
    theirs = verls_grpo(rewards, groups, mask)[:, 0]
    close(theirs[:3], [50.0, S, -S], 1e-4)
    assert float(theirs[3:].abs().max()) > 1e-2
    ours = grpo_advantages(rewards, groups, mask)[:, 0]
    close(ours[:3], [0.0, S, -S])
    assert exactly_zero(ours[3:])
