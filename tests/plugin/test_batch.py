"""Batches of the trainer: padding, sessions with several outputs, and missing scores."""

import math
from decimal import Decimal

import numpy as np
import pytest
import torch

from gdpo_verl.config import GdpoConfig
from gdpo_verl.config.components import Component
from gdpo_verl.plugin.checks.reward import single_row_batch
from gdpo_verl.plugin.step.batch import RewardBatch, RewardErrors, RewardRows
from gdpo_verl.reward_dicts import read_components

NAN = math.nan


def objective(**settings):
    declared = [Component("format"), Component("correctness", optional=True)]
    return GdpoConfig(**settings).resolve(declared)


def infos(*rows):
    return [
        {"score": 99.0, "format": a, "correctness": b, "parse_error": 7, "note": "text"}
        for a, b in rows
    ]


def of_one_prompt(*rows, **settings):
    """Return a batch of one prompt, in which each row is another session of one token."""
    names = [f"u_{row}_0" for row in range(len(rows))]
    handed = RewardRows(objective(**settings), rows, names)
    return RewardBatch.of(handed, ["u"] * len(rows), torch.ones(len(rows)))


# ---------------------------------------------------------------- padding and sessions

GARBAGE = {"format": "none", "correctness": math.inf}


def test_a_batch_of_padding_alone_gives_zeros():
    rows = RewardRows(objective(), [GARBAGE] * 2, ["p", "q"], [True, True])
    batch = RewardBatch.of(rows, ["u", "u"], torch.tensor([3, 3]))
    assert batch.sessions.to_rows(batch.decomposition.gdpo).tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("value", "expected"),
    [(3.0, 3), (np.int64(3), 3), ("late", None), (10**400, None), (NAN, None)],
)
def test_a_parse_error_is_a_number_or_unknown(value, expected):
    info = {"format": 1.0, "correctness": 1.0, "parse_error": value}
    assert of_one_prompt(info).parse_errors == [expected]


# ---------------------------------------------------------------- reading components


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (2, 2.0),
        (True, 1.0),
        (1e300, 1e300),
        (np.float32(0.5), 0.5),
        (None, NAN),
        (NAN, NAN),
        (np.array(-1e300), -1e300),
        (torch.tensor(-1.5), -1.5),
        (Decimal("0.25"), 0.25),
    ],
)
def test_numbers_are_read_while_none_and_nan_mean_not_scored(value, expected):
    found = read_components([{"format": value, "correctness": 4.0}], objective(), ["u_0_0"])
    assert found.dtype == torch.float64
    assert found[0].tolist() == pytest.approx([expected, 4.0], abs=0, rel=0, nan_ok=True)


GOOD = {"format": 1.0, "correctness": 1.0}
NO_NUMBER = "expected a finite number, None or NaN for 'format', found .* for row u_1_0"
UNREADABLE = [
    ({"format": "1.0"}, NO_NUMBER),
    ({"format": b"1"}, NO_NUMBER),
    ({"format": {"a": 1}}, NO_NUMBER),
    ({"format": -math.inf}, NO_NUMBER),
    ({"format": 10**400}, NO_NUMBER),
    ({"format": np.array([1.0, 2.0])}, NO_NUMBER + r".* declared: @declares\(\.\.\., by_turn="),
    ({"format": 9e307}, NO_NUMBER + r".*at most 1e\+300"),  # too large for a sum
    ({"score": 1.0}, r".* no 'format' for row u_1_0, only \['score'\]\. Return it"),
    ({}, r".* no 'format' for row u_1_0, only \[\]\. An agent loop"),
]


@pytest.mark.parametrize(("info", "message"), UNREADABLE)
def test_a_reward_that_is_no_finite_number_is_rejected_with_key_row_and_remedy(info, message):
    with pytest.raises(ValueError, match=rf"(?s)^algorithm\.gdpo_reward_keys: {message}"):
        read_components([GOOD, info], objective(), ["u_0_0", "u_1_0"])


def test_a_bad_row_after_padding_is_named_by_its_own_key():
    infos_of_rows = [GARBAGE, *infos((1.0, 1.0), ("bad", 1.0))]
    names, padding = ["pad", "u_0_0", "u_1_0"], [True, False, False]
    rows = RewardRows(objective(), infos_of_rows, names, padding)
    with pytest.raises(ValueError, match=r"'format', found 'bad' for row u_1_0"):
        RewardBatch.of(rows, ["u"] * 3)


@pytest.mark.parametrize(
    "value",
    [0.7, np.float32(0.7), np.float16(0.7), torch.tensor(0.7).half(), torch.tensor(0.7).bfloat16()],
)
def test_a_reward_written_like_the_threshold_reaches_it(value):
    condition = {"correctness": {"on": "format", "at_least": 0.7}}
    batch = of_one_prompt(*infos((value, 1.0), (0.699, 1.0)), conditions=condition)
    assert batch.decomposition.rewards[:, 1].tolist() == [1.0, 0.0]


def test_a_reward_manager_gets_a_copy_of_the_row():
    row = {"reward_model": {"ground_truth": [1, 2]}, "dummy_tensor": torch.zeros(1)}
    columns = single_row_batch([5, 6], [7, 8, 9], row).non_tensor_batch
    columns["reward_model"][0]["ground_truth"].append(3)
    assert row["reward_model"]["ground_truth"] == [1, 2]
    assert "dummy_tensor" not in columns


# ------------------------------------------------- rows for which a judge gave no reward


def judged(answer):
    """Score a row with verl's `rate_limited` manager, with a judge that answers in this way."""
    import asyncio

    from omegaconf import OmegaConf
    from verl.experimental.reward_loop.reward_manager.limited import RateLimitedRewardManager

    async def compute_score(**_):
        if answer == "late":
            await asyncio.sleep(60)
        if isinstance(answer, Exception):
            raise answer
        return answer

    config = OmegaConf.create({"reward": {"timeout": 0.01}})
    row = {"data_source": "judge", "reward_model": {"ground_truth": ""}, "extra_info": {}}
    data = single_row_batch([0], [1], row)
    RateLimitedRewardManager._class_initialized = False
    tokenizer = type("Tokenizer", (), {"decode": lambda *_, **__: "text"})()
    manager = RateLimitedRewardManager(config, tokenizer, compute_score)
    result = manager.loop.run_until_complete(manager.run_single(data))
    return dict(result["reward_extra_info"])


SCORED = {"score": 1.0, "format": 1.0, "correctness": 0.0}


def test_a_row_without_a_judgement_is_not_scored_and_counted():
    lost = judged(ValueError("no quota")), judged("late")
    batch = of_one_prompt(SCORED, SCORED | {"format": 0.0}, *lost)
    assert batch.raw.isnan().all(dim=1).tolist() == [False, False, True, True]
    assert batch.errors == ["no quota", "timeout"]
    assert batch.error_share == 0.5
    batch.check_errors()
    advantage = batch.decomposition.gdpo
    assert advantage[2:].tolist() == [0.0, 0.0]
    assert advantage[0] > 0 > advantage[1]


def test_a_component_named_acc_is_not_scored_either():
    wanted = GdpoConfig(reward_keys=("acc",)).resolve(())
    rows = [judged({"score": 1.0, "acc": 1.0}), judged(ValueError("down"))]
    found = RewardBatch.of(RewardRows(wanted, rows, ["u_0_0", "u_1_0"]), ["u", "u"]).raw
    assert (float(found[0, 0]), found[1, 0].isnan().item()) == (1.0, True)


def test_a_judge_that_fails_for_most_responses_ends_the_run():
    batch = of_one_prompt(SCORED, judged(OSError("connection refused")), judged("late"))
    with pytest.raises(RewardErrors, match=r"2 of 3 responses .* reports 'timeout'\. Check"):
        batch.check_errors()
    assert batch.error_share == pytest.approx(2 / 3)


def test_a_failed_condition_and_an_earlier_output_do_not_count_as_failures_of_the_judge():
    declared = [Component("format", optional=True), Component("judge", most_unscored=0.0)]
    condition = {"judge": {"on": "format", "at_least": 1.0}}
    names = ["u_0_0", "u_0_1", "u_1_0", "u_2_0"]
    wanted = GdpoConfig(conditions=condition).resolve(declared)
    rows = [{"judge": None, "judge_error": "of an output that is not the last"}]
    rows += [{"judge": 1.0}] * 3
    batch = RewardBatch.of(RewardRows(wanted, rows, names), ["u"] * 4)
    assert bool(batch.decomposition.rewards[:, 1].isnan().all())
    batch.check_errors()
    assert batch.error_share == 0.0
