"""The seam driven through verl's own trainer method and a real TransferQueue."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch
from fake_verl import advantages, info, put, recipe, trainer_of
from omegaconf import open_dict

from gdpo_verl import gdpo_advantages

pytestmark = pytest.mark.real


def dumped(trainer: Any, key: str) -> dict[str, Any]:
    return {name: column[0] for name, column in trainer.gdpo_seam.dump.columns([key]).items()}


NAMES = ("inputs", "outputs", "gts", "scores", "columns", "path", "step")  # _write_generations

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
    for (_, mask, _), session, row in zip(
        ROWS, SESSION_OF_ROW, advantages(queue, batch), strict=False
    ):
        assert row == pytest.approx([sessions[session] * m for m in mask], abs=1e-6)
    for row in advantages(queue, batch)[7:]:
        assert row == [0.0]
    assert metrics["rewards/format/mean"] == pytest.approx(4 / 6)
    assert metrics["gdpo/correctness/unscored"] == pytest.approx(1 / 6)
    assert metrics["rewards/correctness/min"] == -3.0
    assert metrics["gdpo/correctness/constant_groups"] == 0.0
    # Where whitening puts a group in which nothing varies: mean and deviation over the tokens.
    plain = torch.tensor(expected("none"), dtype=torch.float64)
    share = {"token": TOKENS, "sequence": (TOKENS > 0).long(), "none": TOKENS * 0}[whiten]
    every = plain.repeat_interleave(share)
    shift = 0.0 if whiten == "none" else -float(every.mean() / every.std())
    assert metrics["gdpo/whiten_shift"] == pytest.approx(shift, abs=1e-6)
    queue.kv_clear(keys=batch.keys, partition_id="train")


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
    queue.kv_clear(keys=batch.keys, partition_id="train")


def test_dump_holds_components_and_both_advantages(queue: Any) -> None:
    batch = put(queue, ROWS)
    trainer = trainer_of(recipe(whiten="none"))
    trainer._compute_advantage(batch, {})

    row = dumped(trainer, "b_1_0")
    assert (row["format"], row["correctness"]) == (1.0, None)
    # b's formats are 0, 1, 1: (1 - 2/3) / sqrt(1/3); the unscored correctness adds nothing.
    assert row["gdpo_advantage"] == pytest.approx(0.57735, abs=1e-5)
    # b's sums are 3, 1, -2: (1 - 2/3) / 2.51661.
    assert row["grpo_advantage"] == pytest.approx(0.13245, abs=1e-5)

    written = {}
    trainer._write_generations = lambda *args: written.update(zip(NAMES, args, strict=True))
    trainer._init_dump_executor()
    dump = dict.fromkeys(("inputs", "outputs", "gts", "scores"), ["x"] * 2)
    validation = {"uid": ["v_0_0", "v_1_0"], "format": [1.0, 0.0]}
    trainer._dump_generations(**dump, reward_extra_infos_dict=validation, dump_path="rollouts")
    trainer._shutdown_dump_executor()
    assert written["columns"] == validation
    trainer._init_dump_executor()
    keys = ["b_1_0", "pad_0_0"]
    # By place as by name.
    trainer._dump_generations(*dump.values(), {"uid": keys}, "rollouts")
    trainer._shutdown_dump_executor()
    assert written["columns"]["format"] == [1.0, None]
    assert written["columns"]["gdpo_advantage"] == [row["gdpo_advantage"], None]
    assert len(trainer.gdpo_seam.dump) == 0
    queue.kv_clear(keys=batch.keys, partition_id="train")


@pytest.mark.parametrize("estimator", ["gdpo", "grpo"])
def test_a_judge_that_is_down_ends_treatment_and_control(queue: Any, estimator: str) -> None:
    from gdpo_verl.plugin.batch import RewardErrors

    rows = [(key, mask, {"error": "no quota", "acc": 0.0}) for key, mask, _ in ROWS]
    batch = put(queue, rows)
    with pytest.raises(RewardErrors, match=r"have no reward.*'no quota'"):
        trainer_of(recipe(estimator))._compute_advantage(batch, {})
    queue.kv_clear(keys=batch.keys, partition_id="train")


@pytest.mark.parametrize("estimator", ["gdpo", "grpo"])
def test_a_judge_above_its_share_of_failures_ends_treatment_and_control(
    queue: Any, estimator: str
) -> None:
    from gdpo_verl.plugin.batch import RewardErrors

    config = recipe(estimator)
    judge = {"question": "{response}?", "scale": [1, 2], "url": "http://a.host/v1", "model": "m"}
    with open_dict(config):
        config.reward.custom_reward_function.reward_kwargs = {"judge": judge}
    failed = {"judge": None, "judge_error": "HTTP 503"}
    for failures, ends in ((2, False), (5, True)):
        judged = [{"judge": 0.5}] * (len(ROWS) - failures) + [failed] * failures
        rows = [(key, mask, old | new) for (key, mask, old), new in zip(ROWS, judged, strict=True)]
        rows = [row for row in rows if row[0] != "a_1_0"]  # not the last output of its session
        batch, metrics = put(queue, rows), dict[str, float]()
        step = functools.partial(trainer_of(config)._compute_advantage, batch, metrics)
        if ends:
            with pytest.raises(RewardErrors, match=r"^4 of 6 responses.*at most 10% may.*HTTP 503"):
                step()
        else:
            step()
            assert metrics["gdpo/judge/unscored"] == pytest.approx(1 / 6)
        queue.kv_clear(keys=batch.keys, partition_id="train")


def test_sessions_that_failed_are_warned_of_once_and_summed_up_in_the_end(
    queue: Any, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = trainer_of(recipe())
    trainer.gdpo_seam.failures = type("Failures", (), {"take": lambda self: 2})()
    batch = put(queue, ROWS)
    for _ in range(2):
        trainer._compute_advantage(batch, {})
    queue.kv_clear(keys=batch.keys, partition_id="train")
    (first,) = [text for text in caplog.messages if "are left out" in text]
    rows = int(first.split(" of ")[1].split()[0]) - 2
    assert first.startswith(f"2 of {rows + 2} rollout sessions failed")
    trainer.gdpo_seam.close()
    assert caplog.messages[-1] == f"4 of the {2 * (rows + 2)} rollout sessions of this run failed."


def test_components_of_a_colocated_reward_model_are_read_from_the_queue(queue: Any) -> None:
    from verl.utils import tensordict_utils

    keys = ["a_0_0", "a_1_0", "a_1_1", "a_2_0"]
    batch, metrics = put(queue, [(key, [1], None) for key in keys]), {}
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
    queue.kv_batch_put(
        keys=["a_0_0"], partition_id="train", fields=tensordict(old_log_probs=changed)
    )
    metrics: dict[str, float] = {}
    trainer = trainer_of(config)
    trainer._compute_advantage(batch, metrics)

    tokens = TOKENS.clone()
    tokens[0] = 1
    mask = torch.arange(5) < tokens[:, None]
    pure = gdpo_advantages(SESSIONS, ["a"] * 3 + ["b"] * 3, mask)[:, 0].tolist()
    if estimator == "gdpo":
        row = advantages(queue, batch)[[key for key, _, _ in ROWS].index("a_0_0")]
        assert row == pytest.approx([pure[0], 0.0, 0.0], abs=1e-6)
    assert dumped(trainer, "a_0_0")["gdpo_advantage"] == pytest.approx(pure[0], abs=1e-6)
    queue.kv_clear(keys=batch.keys, partition_id="train")


@pytest.mark.parametrize(
    ("estimator", "metrics"), [("gdpo", True), ("gdpo", False), ("grpo", True)]
)
def test_the_components_are_all_that_is_fetched(
    queue: Any, monkeypatch: pytest.MonkeyPatch, estimator: str, metrics: bool
) -> None:
    import gdpo_verl.plugin.queue

    fetched, fetch = [], gdpo_verl.plugin.queue.fetch

    def record(keys: Any, partition_id: str, fields: list[str]) -> Any:
        fetched.append(fields)
        return fetch(keys, partition_id, fields)

    monkeypatch.setattr(gdpo_verl.plugin.queue, "fetch", record)
    batch = put(queue, ROWS)
    trainer_of(recipe(estimator, metrics=metrics))._compute_advantage(batch, {})
    assert fetched == [["extra_fields"]]
    queue.kv_clear(keys=batch.keys, partition_id="train")


def test_an_optional_component_that_a_colocated_reward_model_leaves_out_is_not_scored(
    queue: Any,
) -> None:
    from verl.utils import tensordict_utils

    from gdpo_verl.config import GdpoConfig
    from gdpo_verl.rewards.components import Component

    batch, metrics = put(queue, [(key, mask, None) for key, mask, _ in ROWS[:4]]), {}
    fields = tensordict_utils.get_tensordict({"format": np.array([1.0, 0.0, 0.0, 1.0])})
    queue.kv_batch_put(keys=batch.keys, partition_id="train", fields=fields)
    config = recipe()
    with open_dict(config):
        config.reward.reward_model.enable = True
        config.reward.reward_model.enable_resource_pool = False
    trainer = trainer_of(config)
    declared = [Component("format"), Component("correctness", optional=True)]
    trainer.gdpo_seam.objective = GdpoConfig().resolve(declared)
    trainer._compute_advantage(batch, metrics)
    assert metrics["gdpo/correctness/unscored"] == 1.0
    assert metrics["rewards/format/mean"] == pytest.approx(2 / 4)
    queue.kv_clear(keys=batch.keys, partition_id="train")


def tensordict(**fields: Any) -> Any:
    from tensordict import TensorDict

    return TensorDict(fields, batch_size=len(next(iter(fields.values()))))


def test_metrics_of_mini_batches_are_those_of_all_their_rows(queue: Any) -> None:
    from verl.trainer.ppo.v1.utils import MetricsAggregator

    def coded(row: dict[str, Any], code: int) -> dict[str, Any]:
        return row | {"parse_error": code}

    # Eleven rows of which one is scored for correctness, and one of which that is not.
    one = [(f"a_{i}_0", [1], coded(info(float(i % 2), None), 0)) for i in range(10)]
    one += [("a_10_0", [1], coded(info(0.0, 0.5), 4))]
    two = [(f"b_{i}_0", [1], coded(info(1.0, 3.0 * (i % 2)), 0)) for i in range(5)]
    aggregator, whole = MetricsAggregator(), {}
    for rows in (one, two):
        batch, metrics = put(queue, rows), {}
        trainer_of(recipe())._compute_advantage(batch, metrics)
        aggregator.add_step_metrics(metrics, sample_count=len(rows))
        queue.kv_clear(keys=batch.keys, partition_id="train")
    batch = put(queue, one + two)
    trainer_of(recipe())._compute_advantage(batch, whole)
    queue.kv_clear(keys=batch.keys, partition_id="train")

    found = aggregator.get_aggregated_metrics()
    # A deviation is averaged, and each mini-batch is whitened by itself (docs/metrics.md).
    own = {"rewards/format/std", "rewards/correctness/std", "gdpo/whiten_shift"}
    own |= {"gdpo/format/influence", "gdpo/correctness/influence"}
    assert found.keys() == whole.keys()
    for name in found.keys() - own:
        assert found[name] == pytest.approx(float(whole[name])), name
    assert found["gdpo/parse_error/code_4"] == pytest.approx(1 / 16)
