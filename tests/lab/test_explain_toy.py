"""The toy policies of the explorer."""

import math

import pytest
import torch

from gdpo_verl import gdpo_advantages, grpo_advantages
from gdpo_verl.lab.explain import phantom, study, toy, units


@pytest.mark.parametrize(
    ("method", "middle", "end"),
    [(toy.GRPO, 0.863, 0.976), (toy.UNWHITENED, 0.936, 0.988), (toy.GDPO, 0.862, 0.975)],
    ids=["GRPO", "unwhitened", "GDPO"],
)
def test_independent_rewards_reproduce_the_known_figures(method, middle, end):
    # These are the means of a separate program over 20 other seeds, at epochs 50 and 149.
    curve = toy.train(toy.Skills(), method).mean.mean(dim=1)
    assert float(curve[50]) == pytest.approx(middle, abs=0.004)
    assert float(curve[149]) == pytest.approx(end, abs=0.002)


@pytest.mark.parametrize("method", phantom.METHODS, ids=lambda method: method.name)
def test_the_policy_s_advantages_are_the_library_s(method):
    task = phantom.task(2, 8)
    _, rewards = toy.draw(task, toy.start(task, 3), torch.Generator().manual_seed(1))
    found = method.advantages(method.combine(rewards))
    groups = [row // 8 for row in range(32)]
    mask = torch.ones(32, 1)
    for seed in range(3):
        rows = rewards[seed].reshape(-1, 2).clone()
        if method.conditioned:
            rows[:, 1] *= rows[:, 0]
        if not method.decoupled:
            expected = grpo_advantages(rows, groups, mask)
        else:
            gate = 0 if method.gated else None
            expected = gdpo_advantages(rows, groups, mask, whiten="sequence", gate=gate)
        torch.testing.assert_close(found[seed].flatten(), expected[:, 0])


def test_a_batch_without_variation_is_whitened_to_zero():
    closed = torch.full((4, 8), torch.nan, dtype=torch.float64)
    combined = torch.stack([torch.full_like(closed, 0.3), closed])
    assert not toy.GDPO.advantages(combined).any()


def test_unwhitened_advantages_of_three_rewards_spread_wider_by_the_root_of_three():
    case = study.study("even", "", toy.Skills(), seeds=20, learning_rate=0.15)
    assert case.faster.lr_factor == pytest.approx(math.sqrt(3), abs=0.01)
    faster, unwhitened = (case.trainings[m].mean[50] for m in (case.faster, toy.UNWHITENED))
    assert float(faster.mean()) == pytest.approx(float(unwhitened.mean()), abs=0.005)


@pytest.mark.parametrize(
    ("first", "second", "error", "verdict"),
    [
        (0.9, 0.8, 0.01, 1),
        (0.8, 0.9, 0.01, -1),
        (0.9, 0.8, 0.1, 0),  # the difference is within the errors
        (0.805, 0.8, 0.0, 0),  # the difference is too small to matter
    ],
)
def test_the_verdict_requires_a_large_and_certain_difference(first, second, error, verdict):
    assert toy.verdict(toy.Figure(first, error), toy.Figure(second, error)) == verdict


def test_the_scale_changes_grpo_unless_a_weight_cancels_it_and_does_not_change_gdpo():
    def means(unit, method):
        return [each.mean for each in units.averages(unit, method)]

    plain, at_30 = means(1.0, toy.GRPO), means(30.0, toy.GRPO)
    assert plain[1] - at_30[1] > 0.2
    assert at_30[0] > plain[0]
    assert means(10.0, units.weighted(0.1)) == pytest.approx(plain, abs=1e-3)
    assert means(30.0, toy.GDPO)[1] == pytest.approx(means(1.0, toy.GDPO)[1], abs=1e-3)


def test_without_the_condition_the_length_reward_reduces_correctness():
    ends = {
        method.name: float(each.each(0)[-1].mean())
        for method, each in phantom.trainings(2, 8, 1.0).items()
    }
    assert max(ends["GRPO"], ends["GDPO"]) < 0.06
    assert min(ends["GRPO + condition"], ends["GDPO + condition"]) > 0.6
