"""The asynchronous modes of verl's default trainer, on logical devices of this machine."""

from itertools import combinations
from statistics import fmean

import numpy as np
import pytest
import torch
from test_training import components, groups, weight_change
from trainings import assert_trained_with

from gdpo_verl import gdpo_advantages

pytestmark = pytest.mark.real

# Large enough that one update changes probabilities by far more than rounding does.
SETTINGS = ["+algorithm.gdpo.whiten=sequence", "actor_rollout_ref.actor.optim.lr=1e-3"]
PROBABILITIES_APART = "training/rollout_probs_diff_max"  # rollout against trainer, per token
VERSIONS_BEHIND = "training/off_policy/trajectory_staleness_worst/max"


@pytest.mark.slow
def test_colocate_async_gives_the_advantages_of_the_pure_function(train):
    run = train(
        "toolbox/gdpo",
        *SETTINGS,
        "trainer.v1.trainer_mode=colocate_async",
        "trainer.total_training_steps=3",
    )
    metrics = run.metrics()
    assert sorted(metrics) == [1, 2, 3]
    for step, data in metrics.items():
        rows = run.rollouts(step)
        torch.testing.assert_close(dumped(rows), advantages(rows), rtol=0, atol=1e-6)
        check_metrics(data, rows)
        if data[VERSIONS_BEHIND] == 0:
            assert data[PROBABILITIES_APART] < 1e-3
    # The second batch was generated ahead, by the weights before the first update.
    assert metrics[2][VERSIONS_BEHIND] == 1
    assert metrics[2][PROBABILITIES_APART] > 0.01


@pytest.mark.slow
def test_separate_async_sends_every_update_and_whitens_over_mini_batches(train, policy):
    rollout = "actor_rollout_ref.rollout"
    run = train(
        "toolbox/gdpo",
        *SETTINGS,
        "trainer.v1.trainer_mode=separate_async",
        "trainer.v1.separate_async.parameter_sync_step=2",  # 8 prompts are two mini-batches
        "actor_rollout_ref.actor.ppo_mini_batch_size=4",
        "trainer.v1.sampler.max_off_policy_threshold=1",  # drop what older weights have written
        "ray_kwargs.ray_init.num_gpus=2",
        f"{rollout}.nnodes=1",
        f"{rollout}.n_gpus_per_node=1",
        f"{rollout}.checkpoint_engine.backend=gloo",
        "trainer.total_training_steps=3",
        "trainer.save_freq=2",
        "trainer.max_actor_ckpt_to_keep=2",
    )
    # Ray's, the queue's, vLLM's and those of two process groups.
    assert run.reachable == set()
    metrics = run.metrics()
    assert sorted(metrics) == [1, 2, 3]
    for step, data in metrics.items():
        rows = run.rollouts(step)
        check_metrics(data, rows)
        assert whitened_by_halves(rows)
        assert data[VERSIONS_BEHIND] == 0
        assert data[PROBABILITIES_APART] < 1e-3
    # Whitened over all rows they would be others, where the answers of a step differ at all.
    apart = [(dumped(rows) - advantages(rows)).abs().max() for rows in map(run.rollouts, metrics)]
    assert max(apart) > 1e-3
    # Generation ran ahead of the updates, and these changed the policy that was sent.
    assert sum(data.get("training/off_policy/evicted_samples", 0) for data in metrics.values()) > 0
    assert weight_change(policy, run.directory / "checkpoints/global_step_2") > 5e-4


def dumped(rows):
    return components(rows, ["gdpo_advantage"])[:, 0]


def advantages(rows):
    rewards = components(rows, ["format", "correctness"])
    mask = torch.ones(len(rows), 1)
    return gdpo_advantages(rewards, groups(rows), mask, whiten="sequence")[:, 0]


def whitened_by_halves(rows):
    """Check that the groups fall into two mini-batches that give the dumped advantages."""
    first, *others = sorted(set(groups(rows)))
    for chosen in combinations(others, len(others) // 2):
        half = np.array([group in {first, *chosen} for group in groups(rows)])
        mini_batches = [np.array(rows)[half], np.array(rows)[~half]]
        if all(
            torch.allclose(dumped(mini), advantages(mini), rtol=0, atol=1e-6)
            for mini in mini_batches
        ):
            return True
    return False


def check_metrics(data, rows):
    """Check that the tracker has the same numbers of a step as its dump."""
    correctness = fmean(row["correctness"] for row in rows)
    assert data["rewards/correctness/mean"] == pytest.approx(correctness, abs=1e-6)
    assert_trained_with(data, dumped(rows))
