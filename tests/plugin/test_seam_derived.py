"""Derived components through verl's own trainer method and a real TransferQueue."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fake_verl import advantages, info, put, recipe, trainer_of
from fake_verl import emptied as emptied
from omegaconf import open_dict

from gdpo_verl import gdpo_advantages, grpo_advantages
from gdpo_verl.plugin import estimator, validation

pytestmark = pytest.mark.real

# a's session 1 has two outputs of five tokens in all; b_2 is not scored for correctness.
ROWS: list[Any] = [
    ("b_1_0", [1, 1, 1, 1], info(1.0, 2.0)),
    ("a_0_0", [1, 1, 1], info(1.0, 3.0)),
    ("a_1_1", [1, 0, 1, 1], info(0.0, -1.0)),
    ("a_2_0", [1, 1, 1], info(1.0, -3.0)),
    ("b_2_0", [1, 1], info(1.0, None)),
    ("a_1_0", [1, 1], info(1.0, -3.0)),
    ("b_0_0", [1, 1, 1], info(0.0, 3.0)),
]
SESSION_OF_ROW = [4, 0, 1, 2, 5, 1, 3]
TOKENS = torch.tensor([3, 5, 3, 3, 4, 2])
# a: 3, 5, 3 tokens; b: 3, 4, 2, of which the shortest is not scored.
SESSIONS = torch.tensor(
    [[1, 3, 1], [0, -1, 0], [1, -3, 1], [0, 3, 0], [1, 2, 0], [1, torch.nan, torch.nan]],
    dtype=torch.float64,
)
GROUPS = list("aaabbb")
BREVITY = {"brevity": "pkg://group_functions:brevity"}


def config_of(name: str, **settings: Any) -> Any:
    config = recipe(name, derived=BREVITY)
    with open_dict(config):
        for key, value in settings.items():
            config.algorithm[key] = value
    return config


def test_gdpo_has_the_derived_component(queue: Any) -> None:
    from verl.trainer.ppo.padding_utils import upsample_batch_to_divisible_size

    batch = upsample_batch_to_divisible_size(put(queue, ROWS), 5, eos_token_id=0)
    metrics: dict[str, float] = {}
    trainer = trainer_of(config_of("gdpo"))
    trainer._compute_advantage(batch, metrics)

    mask = torch.arange(5) < TOKENS[:, None]
    pure = gdpo_advantages(SESSIONS, GROUPS, mask)[:, 0][SESSION_OF_ROW].tolist()
    found = advantages(queue, batch)
    for (_, mask_, _), value, row in zip(ROWS, pure, found, strict=False):
        assert row == pytest.approx([value * m for m in mask_], abs=1e-6)
    assert found[7:] == [[0.0]] * 3
    assert metrics["rewards/brevity/mean"] == pytest.approx(2 / 5)
    assert trainer.gdpo_seam.dump.columns([key for key, *_ in ROWS])["brevity"] == [
        0.0,
        1.0,
        0.0,
        1.0,
        None,
        0.0,
        0.0,
    ]


@pytest.mark.parametrize("metrics_on", [True, False])
@pytest.mark.parametrize("penalty", [False, True])
def test_verls_own_estimator_normalises_the_same_sum(
    queue: Any, metrics_on: bool, penalty: bool, caplog: Any
) -> None:
    config = config_of("grpo", use_kl_in_reward=penalty, gdpo_reward_weights={"brevity": 4.0})
    with open_dict(config):
        config.algorithm.gdpo.metrics = metrics_on
        config.trainer.rollout_data_dir = None
    batch = put(queue, ROWS)
    trainer = trainer_of(config)
    if penalty:  # of nothing: the policy is its own reference
        from tensordict import TensorDict
        from verl.trainer.ppo.core_algos import FixedKLController

        trainer.kl_ctrl_in_reward = FixedKLController(0.1)
        rows = [torch.full((len(mask),), -0.5) for _, mask, _ in ROWS]
        nested = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
        fields = TensorDict({"ref_log_prob": nested}, batch_size=len(rows))
        queue.kv_batch_put(keys=batch.keys, partition_id="train", fields=fields)
    trainer._compute_advantage(batch, {})

    mask = torch.arange(5) < TOKENS[:, None]
    pure = grpo_advantages(SESSIONS, GROUPS, mask, weights=[1, 1, 4])[:, 0][SESSION_OF_ROW]
    for (_, mask_, _), value, row in zip(
        ROWS, pure.tolist(), advantages(queue, batch), strict=True
    ):
        assert row == pytest.approx([value * m for m in mask_], abs=1e-5)
    # verl's metric of rewards is of the sum that is optimised.
    fields = ["rm_scores", "token_level_rewards"]
    data = queue.kv_batch_get(keys=batch.keys, partition_id="train", select_fields=fields)
    sums = [float(row.sum()) for row in data["token_level_rewards"].unbind()]
    own = [float(row.sum()) for row in data["rm_scores"].unbind()]
    added = [4 * (SESSIONS[session, 2].nan_to_num(0.0).item()) for session in SESSION_OF_ROW]
    # The first output of a session has what its last one is given.
    assert sums == pytest.approx([a + b for a, b in zip(own, added, strict=True)])
    assert "no more metrics" not in caplog.text
    assert "weighted sum of the components" not in caplog.text


def test_the_derived_part_is_added_once_however_often_verls_function_is_wrapped(
    queue: Any, monkeypatch: Any
) -> None:
    from verl.trainer.ppo.v1 import trainer_base

    batch = put(queue, ROWS)
    trainer_of(config_of("grpo"))._compute_advantage(batch, {})
    once = advantages(queue, batch)
    name = "compute_advantage_for_multi_trajectories"
    monkeypatch.setattr(trainer_base, name, getattr(trainer_base, name))
    twice = getattr(trainer_base, name)
    monkeypatch.setattr(
        trainer_base, name, lambda *a, **k: estimator.capture_inputs(twice, *a, **k)
    )
    trainer_of(config_of("grpo"))._compute_advantage(batch, {})
    assert advantages(queue, batch) == once


def test_a_rejected_response_keeps_the_length_that_was_sampled(queue: Any) -> None:
    from tensordict import TensorDict

    correction = {"rollout_is": None, "rollout_rs": "token_k1", "rollout_rs_threshold": "0.5_2.0"}
    config = config_of("gdpo", rollout_correction=correction)
    batch = put(queue, ROWS)
    changed = torch.nested.as_nested_tensor([torch.full((4,), -9.0)], layout=torch.jagged)
    fields = TensorDict({"old_log_probs": changed}, batch_size=1)
    queue.kv_batch_put(keys=["b_1_0"], partition_id="train", fields=fields)
    trainer = trainer_of(config)
    trainer._compute_advantage(batch, {})
    assert trainer.gdpo_seam.dump.columns(["b_1_0"])["brevity"] == [0.0]


@pytest.mark.parametrize("name", ["gdpo", "grpo"])
def test_a_function_that_raises_ends_the_training_under_any_estimator(
    queue: Any, name: str
) -> None:
    config = config_of(name)
    with open_dict(config):
        config.algorithm.gdpo.derived = {"x": "pkg://group_functions:verbosity"}
    batch = put(queue, ROWS)
    with pytest.raises(ValueError, match=r"derived\.x: .*verbosity failed for the group '[ab]'"):
        trainer_of(config)._compute_advantage(batch, {})


def test_a_start_tries_the_functions_on_what_the_reward_returned() -> None:
    config = config_of("grpo")
    returned = {"row 0": {"score": 0.0, "format": 0.0, "correctness": -3.0}}
    assert validation.objective_of(config, returned) is not None
    with open_dict(config):
        config.algorithm.gdpo.derived = {"x": "pkg://group_functions:verbosity"}
    with pytest.raises(ValueError, match=r"^algorithm\.gdpo\.derived\.x: .*KeyError: 'words'"):
        validation.objective_of(config, returned)
    with open_dict(config):
        config.algorithm.gdpo.derived = {"x": "pkg://group_functions:absent"}
    with pytest.raises(ValueError, match=r"^algorithm\.gdpo\.derived\.x: cannot load 'absent'"):
        validation.check_settings(config)


def test_other_trainers_are_refused() -> None:
    config = config_of("gdpo")
    with open_dict(config):
        config.trainer.use_v1 = False
    with pytest.raises(ValueError, match=r"^algorithm\.gdpo\.derived: needs what"):
        validation.check_trainer(config, validation.objective_of(config))
