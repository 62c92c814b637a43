"""The seam driven through verl's own trainer method and a real TransferQueue."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from fake_verl import advantages, info, put, recipe, trainer_of
from fake_verl import emptied as emptied
from omegaconf import open_dict
from tensordict import TensorDict

from gdpo_verl import gdpo_advantages
from gdpo_verl.config import GdpoConfig
from gdpo_verl.config.components import Component
from gdpo_verl.plugin import queue as plugin_queue

pytestmark = pytest.mark.real


# Two prompts of three sessions, in no order, as verl's balancing leaves them. a's session 1 has two
# outputs, of which the last one counts; b's session 1 is not scored for correctness, and its
# session 2 has an all-zero mask.
ROWS = [
    ("b_1_0", [1, 1, 1, 1], info(1.0, None)),
    ("a_0_0", [1, 1, 1], info(1.0, 3.0)),
    ("a_1_1", [1, 0, 1, 1], info(0.0, -1.0)),
    ("a_2_0", [1], info(1.0, -3.0)),
    ("b_2_0", [0, 0], info(1.0, -3.0)),
    ("a_1_0", [1, 1], info(1.0, -3.0)),
    ("b_0_0", [1, 1], info(0.0, 3.0)),
]
SESSION_OF_ROW = [4, 0, 1, 2, 5, 1, 3]
SESSIONS = torch.tensor(
    [[1, 3], [0, -1], [1, -3], [0, 3], [1, torch.nan], [1, -3]], dtype=torch.float64
)
TOKENS = torch.tensor([3, 5, 1, 2, 4, 0])


def mask_of(tokens: torch.Tensor) -> torch.Tensor:
    return torch.arange(5) < tokens[:, None]


def test_sessions_padding_and_masks_count_as_the_pure_function_says(queue: Any) -> None:
    from verl.trainer.ppo.padding_utils import upsample_batch_to_divisible_size

    batch = put(queue, ROWS)
    batch = upsample_batch_to_divisible_size(batch, 5, eos_token_id=0)
    assert sum(bool(tag.get("is_padding")) for tag in batch.tags) == 3
    metrics: dict[str, float] = {}

    trainer_of(recipe())._compute_advantage(batch, metrics)

    pure = gdpo_advantages(SESSIONS, list("aaabbb"), mask_of(TOKENS))[:, 0]
    found = advantages(queue, batch)
    for (_, mask, _), value, row in zip(ROWS, pure[SESSION_OF_ROW].tolist(), found, strict=False):
        assert row == pytest.approx([value * m for m in mask], abs=1e-6)
    assert found[7:] == [[0.0]] * 3
    assert metrics["rewards/format/mean"] == pytest.approx(4 / 6)
    assert metrics["gdpo/correctness/unscored"] == pytest.approx(1 / 6)
    assert metrics["rewards/correctness/min"] == -3.0
    assert metrics["gdpo/correctness/constant_groups"] == 0.0


def test_grpo_advantages_are_bit_identical_with_and_without_the_seam(queue: Any) -> None:
    batch, metrics = put(queue, ROWS), {}
    trainer_of(recipe("grpo"), seam=False)._compute_advantage(batch, metrics)
    without = advantages(queue, batch)
    assert not [key for key in metrics if key.startswith("gdpo/")]

    trainer_of(recipe("grpo"))._compute_advantage(batch, metrics)
    assert advantages(queue, batch) == without
    assert metrics["rewards/correctness/max"] == 3.0
    assert {"gdpo/format/constant_groups", "gdpo/distinct_advantages/grpo"} <= set(metrics)
    assert "gdpo/whiten_shift" not in metrics


def test_components_of_a_colocated_reward_model_are_read_from_the_queue(queue: Any) -> None:
    from verl.utils import tensordict_utils

    keys = ["a_0_0", "a_1_0", "a_1_1", "a_2_0"]
    batch, metrics = put(queue, [(key, [1], None) for key in keys]), {}
    # As verl's _compute_reward_colocate writes them; no row has the optional correctness.
    fields = tensordict_utils.get_tensordict({"format": np.array([1.0, 0.0, 0.0, 2.0])})
    queue.kv_batch_put(keys=batch.keys, partition_id="train", fields=fields)
    config = recipe(whiten="none")
    with open_dict(config):
        config.reward.reward_model.enable = True
        config.reward.reward_model.enable_resource_pool = False
    trainer = trainer_of(config)
    declared = [Component("format"), Component("correctness", optional=True)]
    trainer.gdpo_seam.objective = GdpoConfig(whiten="none").resolve(declared)
    trainer._compute_advantage(batch, metrics)

    found = [row[0] for row in advantages(queue, batch)]
    assert found == pytest.approx([0, -1, -1, 1], abs=1e-5)
    assert metrics["gdpo/correctness/unscored"] == 1.0


@pytest.mark.parametrize("estimator", ["gdpo", "grpo"])
def test_rollout_correction_takes_its_tokens_out_of_the_whitening(
    queue: Any, estimator: str
) -> None:
    config = recipe(estimator)
    with open_dict(config):
        config.algorithm.rollout_correction = {
            "rollout_is": None,
            "rollout_rs": "token_k1",
            "rollout_rs_threshold": "0.5_2.0",
        }
    batch = put(queue, ROWS)
    # All but one token of a_0_0 are too unlikely under the policy that is trained.
    changed = torch.nested.as_nested_tensor([torch.tensor([-0.5, -9.0, -9.0])], layout=torch.jagged)
    fields = TensorDict({"old_log_probs": changed}, batch_size=1)
    queue.kv_batch_put(keys=["a_0_0"], partition_id="train", fields=fields)
    metrics: dict[str, float] = {}
    trainer = trainer_of(config)
    trainer._compute_advantage(batch, metrics)

    tokens = TOKENS.clone()
    tokens[0] = 1
    pure = gdpo_advantages(SESSIONS, list("aaabbb"), mask_of(tokens))[:, 0].tolist()
    if estimator == "gdpo":
        row = advantages(queue, batch)[[key for key, _, _ in ROWS].index("a_0_0")]
        assert row == pytest.approx([pure[0], 0.0, 0.0], abs=1e-6)
    (dumped,) = trainer.gdpo_seam.dump.columns(["a_0_0"])["gdpo_advantage"]
    assert dumped == pytest.approx(pure[0], abs=1e-6)


@pytest.mark.parametrize("estimator", ["gdpo", "grpo"])
def test_the_components_are_all_that_is_fetched(queue: Any, estimator: str) -> None:
    batch, fetch = put(queue, ROWS), mock.Mock(wraps=plugin_queue.fetch)
    with mock.patch.object(plugin_queue, "fetch", fetch):
        trainer_of(recipe(estimator))._compute_advantage(batch, {})
    fetch.assert_called_once_with(batch.keys, "train", ["extra_fields"])
