"""The seam driven through verl's own trainer method and a real TransferQueue."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hydra
import numpy as np
import pytest
import torch
from omegaconf import DictConfig, open_dict

from gdpo_verl import gdpo_advantages

pytestmark = pytest.mark.real
RECIPES = Path(__file__).parents[1] / "recipes"


@pytest.fixture(scope="module")
def queue() -> Iterator[Any]:
    import ray
    import transfer_queue as tq

    ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False)
    tq.init(recipe().transfer_queue)
    yield tq
    tq.close()
    ray.shutdown()


def recipe(estimator: str = "gdpo", **algorithm: Any) -> DictConfig:
    with hydra.initialize_config_dir(str(RECIPES), version_base=None):
        config = hydra.compose("toolbox/gdpo")
    with open_dict(config):
        config.algorithm.adv_estimator = estimator
        config.algorithm.gdpo = algorithm
        config.trainer.rollout_data_dir = "rollouts"
    return config


def trainer_of(config: DictConfig, *, seam: bool = True) -> Any:
    """verl's trainer with nothing set up but what its advantage step reads."""
    from verl.trainer.ppo.v1 import PPOTrainerSync

    from gdpo_verl import checks
    from gdpo_verl.trainer import Seam

    trainer = object.__new__(PPOTrainerSync)
    trainer.config = config
    trainer.gdpo_seam = Seam(config, checks.objective_of(config)) if seam else None
    return trainer


def put(queue: Any, rows: list[tuple[str, list[int], dict[str, Any] | None]]) -> Any:
    """Rows of (key, response mask, components) as an agent loop leaves them in the queue."""
    from transfer_queue import KVBatchMeta
    from verl.utils.tensordict_utils import list_of_dict_to_tensordict

    fields, tags = [], []
    for key, mask, info in rows:
        length = len(mask)
        score = torch.zeros(length)
        if info is not None:
            score[-1] = sum(info[name] or 0.0 for name in ("format", "correctness") if name in info)
        fields.append(
            {
                "uid": key.rsplit("_", 2)[0],
                "prompts": torch.ones(3, dtype=torch.int64),
                "responses": torch.ones(length, dtype=torch.int64),
                "input_ids": torch.ones(3 + length, dtype=torch.int64),
                "position_ids": torch.arange(3 + length),
                "response_mask": torch.tensor(mask),
                "loss_mask": torch.tensor(mask),
                "rm_scores": score,
                "old_log_probs": torch.full((length,), -0.5),
                "rollout_log_probs": torch.full((length,), -0.5),
                "extra_fields": {} if info is None else {"reward_extra_info": info},
            }
        )
        tags.append(
            {"status": "success", "prompt_len": 3, "response_len": length, "seq_len": 3 + length}
        )
    keys = [key for key, _, _ in rows]
    queue.kv_batch_put(
        keys=keys, partition_id="train", fields=list_of_dict_to_tensordict(fields), tags=tags
    )
    return KVBatchMeta(partition_id="train", keys=keys, tags=copy.deepcopy(tags))


def advantages(queue: Any, batch: Any) -> list[list[float]]:
    data = queue.kv_batch_get(keys=batch.keys, partition_id="train", select_fields=["advantages"])
    return [row.tolist() for row in data["advantages"].unbind()]


def info(form: float | None, correctness: float | None) -> dict[str, Any]:
    return {"score": (form or 0) + (correctness or 0), "format": form, "correctness": correctness}


NAMES = ("inputs", "outputs", "gts", "scores", "columns", "path", "step")  # _write_generations


# Two prompts of three sessions. a's session 1 has two outputs, of which the last one counts; b's
# session 1 is not scored for correctness, and its session 2 has an all-zero mask.
ROWS = [
    ("a_0_0", [1, 1, 1], info(1.0, 3.0)),
    ("a_1_0", [1, 1], info(1.0, -3.0)),
    ("a_1_1", [1, 0, 1, 1], info(0.0, -1.0)),
    ("a_2_0", [1], info(1.0, -3.0)),
    ("b_0_0", [1, 1], info(0.0, 3.0)),
    ("b_1_0", [1, 1, 1, 1], info(1.0, None)),
    ("b_2_0", [0, 0], info(1.0, -3.0)),
]
SESSIONS = torch.tensor(
    [[1, 3], [0, -1], [1, -3], [0, 3], [1, torch.nan], [1, -3]], dtype=torch.float64
)
TOKENS = torch.tensor([3, 5, 1, 2, 4, 0])


def expected(whiten: str) -> list[float]:
    mask = torch.arange(5) < TOKENS[:, None]
    groups = ["a", "a", "a", "b", "b", "b"]
    spread = gdpo_advantages(SESSIONS, groups, mask, whiten=whiten)
    return spread.gather(1, torch.zeros(6, 1, dtype=torch.int64))[:, 0].tolist()


@pytest.mark.parametrize("whiten", ["token", "sequence", "none"])
def test_sessions_padding_and_masks_count_as_the_pure_function_says(
    queue: Any, whiten: str
) -> None:
    from verl.trainer.ppo.padding_utils import upsample_batch_to_divisible_size

    batch = put(queue, ROWS)
    batch = upsample_batch_to_divisible_size(batch, 5, eos_token_id=0)
    assert sum(bool(tag.get("is_padding")) for tag in batch.tags) == 3
    metrics: dict[str, float] = {}

    trainer_of(recipe(whiten=whiten))._compute_advantage(batch, metrics)

    sessions = expected(whiten)
    session_of_row = [0, 1, 1, 2, 3, 4, 5]
    for (_, mask, _), session, row in zip(
        ROWS, session_of_row, advantages(queue, batch), strict=False
    ):
        assert row == pytest.approx([sessions[session] * m for m in mask], abs=1e-6)
    for row in advantages(queue, batch)[7:]:
        assert row == [0.0]
    assert metrics["gdpo/format/mean"] == pytest.approx(4 / 6)
    assert metrics["gdpo/correctness/unscored"] == pytest.approx(1 / 6)
    assert metrics["gdpo/correctness/min"] == -3.0
    assert metrics["gdpo/correctness/constant_groups"] == 0.0
    queue.kv_clear(keys=batch.keys, partition_id="train")


def test_grpo_advantages_are_bit_identical_with_and_without_the_seam(queue: Any) -> None:
    batch, metrics = put(queue, ROWS), {}
    trainer_of(recipe("grpo"), seam=False)._compute_advantage(batch, metrics)
    without = advantages(queue, batch)
    assert not [key for key in metrics if key.startswith("gdpo/")]

    trainer_of(recipe("grpo"))._compute_advantage(batch, metrics)
    assert advantages(queue, batch) == without
    assert metrics["gdpo/correctness/max"] == 3.0
    assert "gdpo/whiten_shift" not in metrics
    queue.kv_clear(keys=batch.keys, partition_id="train")


def test_dump_holds_components_and_both_advantages(queue: Any) -> None:
    batch = put(queue, ROWS)
    trainer = trainer_of(recipe(whiten="none"))
    trainer._compute_advantage(batch, {})

    row = trainer.gdpo_seam.dump["b_1_0"]
    assert (row["format"], row["correctness"]) == (1.0, None)
    # b's formats are 0, 1, 1: (1 - 2/3) / sqrt(1/3); the unscored correctness adds nothing.
    assert row["gdpo_advantage"] == pytest.approx(0.57735, abs=1e-5)
    # b's sums are 3, 1, -2: (1 - 2/3) / 2.51661.
    assert row["grpo_advantage"] == pytest.approx(0.13245, abs=1e-5)

    written = {}
    trainer._write_generations = lambda *args: written.update(zip(NAMES, args, strict=True))
    trainer._init_dump_executor()
    trainer.global_steps = 1
    dump = dict.fromkeys(("inputs", "outputs", "gts", "scores"), ["x"] * 2)
    validation = {"uid": ["v_0_0", "v_1_0"], "format": [1.0, 0.0]}
    trainer._dump_generations(**dump, reward_extra_infos_dict=validation, dump_path="rollouts")
    trainer._shutdown_dump_executor()
    assert written["columns"] == validation
    trainer._init_dump_executor()
    keys = ["b_1_0", "pad_0_0"]
    trainer._dump_generations(**dump, reward_extra_infos_dict={"uid": keys}, dump_path="rollouts")
    trainer._shutdown_dump_executor()
    assert written["columns"]["format"] == [1.0, None]
    assert written["columns"]["gdpo_advantage"] == [row["gdpo_advantage"], None]
    assert not trainer.gdpo_seam.dump
    queue.kv_clear(keys=batch.keys, partition_id="train")


def test_weights_and_conditions_of_the_configuration_are_used(queue: Any) -> None:
    config = recipe(whiten="none", conditions={"format": {"on": "correctness", "at_least": 0.0}})
    with open_dict(config):
        config.algorithm.gdpo_reward_weights = {"format": 2.0, "correctness": 0.0}
    rows = [
        ("c_0_0", [1], info(1.0, 3.0)),
        ("c_1_0", [1], info(1.0, -3.0)),
        ("c_2_0", [1], info(0.0, 3.0)),
    ]
    batch = put(queue, rows)
    trainer_of(config)._compute_advantage(batch, {})
    # The format counts only for the first row: 1, 0, 0, normalised (2/3, -1/3, -1/3) / 0.57735.
    assert advantages(queue, batch) == [
        pytest.approx([2 * 1.154699], abs=1e-4),
        pytest.approx([-2 * 0.577350], abs=1e-4),
        pytest.approx([-2 * 0.577350], abs=1e-4),
    ]
    queue.kv_clear(keys=batch.keys, partition_id="train")


def test_row_without_components_is_named(queue: Any) -> None:
    # As from an agent loop that sets reward_score itself.
    batch = put(queue, [*ROWS[:2], ("a_2_0", [1], None)])
    with pytest.raises(ValueError, match=r"no 'format' for row a_2_0.*reward_extra_info"):
        trainer_of(recipe())._compute_advantage(batch, {})
    queue.kv_clear(keys=batch.keys, partition_id="train")


def test_control_with_broken_components_trains_on_without_metrics(
    queue: Any, caplog: pytest.LogCaptureFixture
) -> None:
    batch, metrics = put(queue, [*ROWS[:2], ("a_2_0", [1], None)]), {}
    trainer = trainer_of(recipe("grpo"))
    trainer._compute_advantage(batch, metrics)

    assert len(advantages(queue, batch)) == 3
    assert not [key for key in metrics if key.startswith("gdpo/")]
    assert "no more metrics for the reward components" in caplog.text
    assert trainer.gdpo_seam is None
    queue.kv_clear(keys=batch.keys, partition_id="train")


def test_components_of_a_colocated_reward_model_are_read_from_the_queue(queue: Any) -> None:
    from verl.utils import tensordict_utils

    batch, metrics = put(queue, [(key, mask, None) for key, mask, _ in ROWS[:4]]), {}
    # As verl's _compute_reward_colocate writes them.
    fields = {"format": np.array([1.0, 0.0, 0.0, 1.0]), "correctness": np.array([3.0, -1, -1, -3])}
    queue.kv_batch_put(
        keys=batch.keys, partition_id="train", fields=tensordict_utils.get_tensordict(fields)
    )
    config = recipe(whiten="none")
    with open_dict(config):
        config.reward.reward_model.enable = True
        config.reward.reward_model.enable_resource_pool = False
    trainer_of(config)._compute_advantage(batch, metrics)

    pure = gdpo_advantages(SESSIONS[:3], ["a"] * 3, torch.ones(3, 1), whiten="none")
    pure = pure[:, 0].tolist()
    assert [row[0] for row in advantages(queue, batch)] == pytest.approx(
        [pure[0], pure[1], pure[1], pure[2]], abs=1e-6
    )
    queue.kv_clear(keys=batch.keys, partition_id="train")


def test_score_that_is_not_the_weighted_sum_is_reported_once(
    queue: Any, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [("a_0_0", [1], info(1.0, 3.0)), ("a_1_0", [1], info(0.0, -3.0))]
    batch = put(queue, rows)
    config = recipe()
    with open_dict(config):
        config.algorithm.gdpo_reward_weights = {"format": 0.5}
    trainer = trainer_of(config)
    with caplog.at_level(logging.WARNING):
        trainer._compute_advantage(batch, {})
        trainer._compute_advantage(batch, {})
    messages = [
        record.getMessage() for record in caplog.records if "weighted sum" in record.getMessage()
    ]
    assert len(messages) == 1
    assert "for row a_0_0 the score is 4, but the weighted sum" in messages[0]
    queue.kv_clear(keys=batch.keys, partition_id="train")


def buffer_of(queue: Any, config: DictConfig, groups: dict[str, list[dict[str, Any]]]) -> Any:
    """verl's replay buffer on a queue in which these groups have finished."""
    from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

    buffer = ReplayBuffer(
        trainer_mode="sync",
        trainer_config=config.trainer.v1.sync,
        max_off_policy_threshold=None,
        max_off_policy_strategy="drop",
        sampler_kwargs={},
        refill_fn=lambda count: None,
        filter_groups_metric=config.algorithm.filter_groups.metric,
        train_batch_size=1,
        gen_batch_size=1,
    )
    for uid, infos in groups.items():
        put(queue, [(f"{uid}_{i}_0", [1], info) for i, info in enumerate(infos)])
        tag = {"is_prompt": True, "status": "finished", "global_steps": 1}
        queue.kv_put(key=uid, partition_id="train", tag=tag)
    return buffer


GROUPS = {
    "same": [info(1.0, -1.0)] * 3,
    "cancels": [info(1.0, 0.0), info(0.0, 1.0)],
    "varies": [info(1.0, 3.0), info(1.0, 1.0)],
    "lonely": [info(1.0, 3.0)],
    # Under the condition that the test sets the format counts for neither row.
    "conditioned": [info(1.0, -3.0), info(0.0, -3.0)],
}


def test_group_is_filtered_only_if_every_component_is_constant(queue: Any) -> None:
    from gdpo_verl.filtering import filter_by_components

    config = recipe(conditions={"format": {"on": "correctness", "at_least": -2.0}})
    seam = trainer_of(config).gdpo_seam
    dropped = {}
    for metric in ("reward", "components"):
        config.algorithm.filter_groups.metric = metric
        buffer = buffer_of(queue, config, GROUPS)
        filter_by_components(buffer, seam.objective)
        buffer._sync_metadata_from_transfer_queue()
        dropped[metric], counts = buffer._dapo_filtered_keys("train")
        assert buffer._dapo_filtered_keys("val") == (set(), {})
        # The classification of a finished group is kept, and forgotten with the group.
        assert buffer._dapo_filtered_keys("train")[0] == dropped[metric]
        buffer._clear_groups("train", set(GROUPS))
        assert buffer._dapo_filtered_keys("train")[0] == set()

    assert dropped["reward"] == {"same", "cancels"}
    assert dropped["components"] == {"same", "conditioned"}
    assert counts == {0.0: 1, -3.0: 1}  # the groups' scores


def test_filter_by_components_needs_components(queue: Any) -> None:
    from gdpo_verl.filtering import filter_by_components

    config = recipe("grpo")
    config.algorithm.filter_groups.metric = "components"
    with pytest.raises(ValueError, match=r"filter_groups\.metric=components: the reward declares"):
        filter_by_components(buffer_of(queue, config, {}), None)
    config.algorithm.filter_groups.metric = "reward"
    filter_by_components(buffer_of(queue, config, {}), None)


def test_failed_sessions_are_counted_once(queue: Any) -> None:
    from gdpo_verl.failures import SessionFailures

    buffer = buffer_of(queue, recipe(), {"whole": [info(1.0, 3.0)] * 3})
    failures = SessionFailures(buffer, 3, stop=False)
    buffer._sync_metadata_from_transfer_queue()
    assert failures.take() == 0

    # Of three sessions one left two outputs, then none of another prompt any.
    put(queue, [("half_0_0", [1], info(1.0, 3.0)), ("half_0_1", [1], info(1.0, 3.0))])
    for uid, partition in (("half", "train"), ("none", "train"), ("held-out", "val")):
        tag = {"is_prompt": True, "status": "failure", "global_steps": 1}
        queue.kv_put(key=uid, partition_id=partition, tag=tag)
    for _ in range(2):
        buffer._sync_metadata_from_transfer_queue()
    assert failures.take() == 2 + 3
    assert failures.take() == 0
    queue.kv_clear(keys=["held-out"], partition_id="val")
    queue.kv_clear(
        keys=["whole", "half", "none", "whole_0_0", "whole_1_0", "whole_2_0"],
        partition_id="train",
    )
    queue.kv_clear(keys=["half_0_0", "half_0_1"], partition_id="train")


def test_codes_of_unreadable_answers_are_counted(queue: Any) -> None:
    rows = [("a_0_0", [1], info(1.0, 3.0) | {"parse_error": 0})]
    rows += [("a_1_0", [1], info(0.0, -3.0) | {"parse_error": 4})]
    batch, metrics = put(queue, rows), {}
    trainer_of(recipe())._compute_advantage(batch, metrics)
    assert metrics["gdpo/parse_error/share"] == metrics["gdpo/parse_error/code_4"] == 0.5
    queue.kv_clear(keys=batch.keys, partition_id="train")


def test_metrics_can_be_switched_off(queue: Any) -> None:
    batch, metrics = put(queue, ROWS), {}
    trainer_of(recipe(metrics=False))._compute_advantage(batch, metrics)
    assert not [key for key in metrics if key.startswith("gdpo/")]
    assert np.abs(advantages(queue, batch)[0]).max() > 0
    queue.kv_clear(keys=batch.keys, partition_id="train")


def test_metrics_keep_their_meaning_over_mini_batches() -> None:
    from verl.trainer.ppo.v1.utils import MetricsAggregator

    aggregator = MetricsAggregator()
    for value in (1.0, 3.0):
        names = [
            f"gdpo/summary/{name}" for name in ("mean", "std", "min", "max", "constant_groups")
        ]
        aggregator.add_step_metrics(dict.fromkeys(names, value), sample_count=10)
    result = aggregator.get_aggregated_metrics()
    assert [result[f"gdpo/summary/{name}"] for name in ("mean", "std", "constant_groups")] == [
        2
    ] * 3
    assert (result["gdpo/summary/min"], result["gdpo/summary/max"]) == (1.0, 3.0)
