"""The trainer hooks, called by verl's own trainer method on a real TransferQueue."""

from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch
from fake_verl import advantages, info, put, recipe, trainer_of
from fake_verl import emptied as emptied
from omegaconf import open_dict

from gdpo_verl import gdpo_advantages, grpo_advantages
from gdpo_verl.config.components import Component
from gdpo_verl.plugin.step import estimator
from gdpo_verl.plugin.step import queue as plugin_queue

pytestmark = pytest.mark.real


# Two prompts with three sessions each, in the random order that verl's balancing creates. Session 1
# of a has two outputs, of which the last one counts. Session 1 of b is not scored for correctness,
# and session 2 of b has an all-zero mask.
ROWS = [
    ("b_1_0", [1, 1, 1, 1], info(1.0, None)),
    ("a_0_0", [1, 1, 1], info(1.0, 3.0)),
    ("a_1_1", [1, 0, 1, 1], info(0.0, -1.0)),
    ("a_2_0", [1], info(1.0, -3.0)),
    ("b_2_0", [0, 0], info(1.0, -3.0)),
    ("a_1_0", [1, 1], info(1.0, -3.0)),
    ("b_0_0", [1, 1], info(0.0, 3.0)),
]
KEYS = [key for key, *_ in ROWS]
SESSION_OF_ROW = [4, 0, 1, 2, 5, 1, 3]
GROUPS = list("aaabbb")
TOKENS = torch.tensor([3, 5, 1, 2, 4, 0])
NAN = torch.nan
# With the derived component, which is 1 for the shortest session of a and of b. A session without
# correctness does not have it.
SESSIONS = torch.tensor(
    [[1, 3, 0], [0, -1, 0], [1, -3, 1], [0, 3, 0], [1, NAN, NAN], [1, -3, 1]], dtype=torch.float64
)
BREVITY = {"brevity": "pkg://group_functions:brevity"}
VERBOSITY = {"x": "pkg://group_functions:verbosity"}  # this function raises an error


def mask_of(tokens):
    return torch.arange(5) < tokens[:, None]


def assert_of_sessions(rows, pure):
    """Assert that each row has the advantage of its session on its response tokens."""
    values = pure[SESSION_OF_ROW, 0].tolist()
    for (_, mask, _), value, row in zip(ROWS, values, rows, strict=True):
        assert row == pytest.approx([value * inside for inside in mask], abs=1e-5)


def rejecting(config, key, log_probs):
    """Let verl reject tokens of a row that are too unlikely under the trained policy."""
    with open_dict(config):
        config.algorithm.rollout_correction = {
            "rollout_is": None,
            "rollout_rs": "token_k1",
            "rollout_rs_threshold": "0.5_2.0",
        }
    table = torch.tensor([log_probs])
    plugin_queue.put_response_tokens([key], "train", "old_log_probs", table, [len(log_probs)])
    return config


def test_sessions_padding_and_masks_give_the_advantages_of_the_pure_function(queue):
    from verl.trainer.ppo.padding_utils import upsample_batch_to_divisible_size

    batch = upsample_batch_to_divisible_size(put(queue, ROWS), 5, eos_token_id=0)
    assert sum(bool(tag.get("is_padding")) for tag in batch.tags) == 3
    metrics = {}
    trainer = trainer_of(recipe(derived=BREVITY))

    trainer._compute_advantage(batch, metrics)

    found = advantages(queue, batch)
    assert_of_sessions(found[:7], gdpo_advantages(SESSIONS, GROUPS, mask_of(TOKENS)))
    assert found[7:] == [[0.0]] * 3
    assert metrics["rewards/brevity/mean"] == pytest.approx(2 / 5)
    brevity = trainer.gdpo_hooks.dump.columns(KEYS)["brevity"]
    assert brevity == [None, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0]


def test_grpo_advantages_are_bit_identical_with_and_without_the_hooks(queue):
    batch, metrics = put(queue, ROWS), {}
    trainer_of(recipe("grpo"), hooks=False)._compute_advantage(batch, metrics)
    without = advantages(queue, batch)
    assert not [key for key in metrics if key.startswith("gdpo/")]

    trainer_of(recipe("grpo"))._compute_advantage(batch, metrics)
    assert advantages(queue, batch) == without
    assert metrics["rewards/correctness/max"] == 3.0


@pytest.mark.parametrize("metrics_on", [True, False])
@pytest.mark.parametrize("penalty", [False, True])
def test_verls_own_estimator_normalises_the_sum_with_the_derived_component(
    queue, metrics_on, penalty, caplog
):
    config = recipe("grpo", derived=BREVITY, metrics=metrics_on)
    config.algorithm.use_kl_in_reward = penalty
    with open_dict(config):
        config.algorithm.gdpo_reward_weights = {"brevity": 4.0}
    config.trainer.rollout_data_dir = None
    batch = put(queue, ROWS)
    trainer = trainer_of(config)
    if penalty:  # the penalty is 0, because the policy is its own reference
        from verl.trainer.ppo.core_algos import FixedKLController

        trainer.kl_ctrl_in_reward = FixedKLController(0.1)
        lengths = [len(mask) for _, mask, _ in ROWS]
        table = torch.full((len(ROWS), 5), -0.5)
        plugin_queue.put_response_tokens(batch.keys, "train", "ref_log_prob", table, lengths)
    trainer._compute_advantage(batch, {})

    pure = grpo_advantages(SESSIONS, GROUPS, mask_of(TOKENS), weights=[1, 1, 4])
    assert_of_sessions(advantages(queue, batch), pure)
    # verl's metric of rewards shows the score that is optimised.
    sums = list(map(sum, advantages(queue, batch, "token_level_rewards")))
    own = torch.tensor(list(map(sum, advantages(queue, batch, "rm_scores"))))
    # The first output of a session has the same derived component as the last one.
    added = 4 * SESSIONS[SESSION_OF_ROW, 2].nan_to_num(0.0)
    assert sums == pytest.approx((own + added).tolist())
    assert "no more metrics" not in caplog.text
    assert "weighted sum of the components" not in caplog.text


def test_the_derived_part_is_added_once_even_if_verls_function_is_wrapped_several_times(
    queue, monkeypatch
):
    from verl.trainer.ppo.v1 import trainer_base

    batch = put(queue, ROWS)
    trainer_of(recipe("grpo", derived=BREVITY))._compute_advantage(batch, {})
    once = advantages(queue, batch)
    name = "compute_advantage_for_multi_trajectories"
    wrapped = getattr(trainer_base, name)
    monkeypatch.setattr(
        trainer_base, name, lambda *a, **k: estimator.capture_inputs(wrapped, *a, **k)
    )
    trainer_of(recipe("grpo", derived=BREVITY))._compute_advantage(batch, {})
    assert advantages(queue, batch) == once


def test_components_of_a_colocated_reward_model_are_read_from_the_queue(queue):
    from verl.utils import tensordict_utils

    keys = ["a_0_0", "a_1_0", "a_1_1", "a_2_0"]
    batch, metrics = put(queue, [(key, [1], None) for key in keys]), {}
    # verl's _compute_reward_colocate writes rewards in this layout. No row has the optional
    # correctness.
    fields = tensordict_utils.get_tensordict({"format": np.array([1.0, 0.0, 0.0, 2.0])})
    queue.kv_batch_put(keys=batch.keys, partition_id="train", fields=fields)
    config = recipe(whiten="none")
    with open_dict(config):
        config.reward.reward_model.enable = True
        config.reward.reward_model.enable_resource_pool = False
    declared = [Component("format"), Component("correctness", optional=True)]
    trainer = trainer_of(config, reward=SimpleNamespace(components=declared))
    trainer._compute_advantage(batch, metrics)

    found = [row[0] for row in advantages(queue, batch)]
    assert found == pytest.approx([0, -1, -1, 1], abs=1e-5)
    assert metrics["gdpo/correctness/unscored"] == 1.0


@pytest.mark.parametrize("name", ["gdpo", "grpo"])
def test_rejected_tokens_are_excluded_from_whitening_and_count_in_the_sampled_length(queue, name):
    batch = put(queue, ROWS)
    config = rejecting(recipe(name, derived=BREVITY), "a_0_0", [-0.5, -9.0, -9.0])
    trainer = trainer_of(config)
    trainer._compute_advantage(batch, {})

    tokens = TOKENS.clone()
    tokens[0] = 1
    pure = float(gdpo_advantages(SESSIONS, GROUPS, mask_of(tokens))[0, 0])
    if name == "gdpo":
        row = advantages(queue, batch)[KEYS.index("a_0_0")]
        assert row == pytest.approx([pure, 0.0, 0.0], abs=1e-6)
    columns = trainer.gdpo_hooks.dump.columns(["a_0_0"])
    assert columns["gdpo_advantage"] == [pytest.approx(pure, abs=1e-6)]
    assert columns["brevity"] == [0.0]  # with a length of one token it would be the shortest


@pytest.mark.parametrize("name", ["gdpo", "grpo"])
def test_a_derived_function_that_raises_ends_the_run_under_any_estimator(queue, name):
    batch = put(queue, ROWS)
    with pytest.raises(ValueError, match=r"derived\.x: .*verbosity failed for the group '[ab]'"):
        trainer_of(recipe(name, derived=VERBOSITY))._compute_advantage(batch, {})


@pytest.mark.parametrize("name", ["gdpo", "grpo"])
def test_only_the_components_are_fetched(queue, name):
    batch, fetch = put(queue, ROWS), mock.Mock(wraps=plugin_queue.fetch)
    with mock.patch.object(plugin_queue, "fetch", fetch):
        trainer_of(recipe(name))._compute_advantage(batch, {})
    fetch.assert_called_once_with(batch.keys, "train", ["extra_fields"])
