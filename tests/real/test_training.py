"""verl's own driver on Ray with vLLM and FSDP2, on the cores of this machine."""

import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from processes import run_cli
from trainings import STOCK, assert_trained_with

from gdpo_verl.advantage import VARIANTS, EstimatorSettings, decompose
from gdpo_verl.lab.replay import replay

pytestmark = pytest.mark.real

# What a user has who has never heard of our modules: a file with a function of several rewards.
USERS_REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    tags = float("<tool_call>" in solution_str and "</tool_call>" in solution_str)
    short = float(len(solution_str) < 90)
    return {"score": 2 * tags + short, "tags": tags, "short": short}
"""


def components(rows, keys):
    """The columns of a dump, shape (B, K); NaN where a row has none."""
    table = []
    for row in rows:
        table.append([row[key] for key in keys])
    return torch.tensor(np.array(table, dtype=np.float64))


def groups(rows):
    return [row["uid"].rsplit("_", 2)[0] for row in rows]


def test_stock_command_on_two_workers_with_filtered_groups_and_a_batch_that_does_not_divide(
    train, policy, tmp_path
):
    reward = tmp_path / "my_reward.py"
    reward.write_text(USERS_REWARD)
    # 6 prompts x 3 responses = 18 rows; mini-batches of 4 x 3 = 12 make verl add 6 padding rows.
    run = train(
        STOCK,
        "algorithm.adv_estimator=gdpo",
        "+algorithm.gdpo_reward_keys=[tags,short]",
        f"reward.custom_reward_function.path={reward}",
        "trainer.n_gpus_per_node=2",
        "ray_kwargs.ray_init.num_gpus=2",
        "actor_rollout_ref.rollout.agent.num_workers=2",
        "data.train_batch_size=6",
        "actor_rollout_ref.rollout.n=3",
        "actor_rollout_ref.actor.ppo_mini_batch_size=4",
        # Each worker computes a prompt once for its responses, padding rows among them.
        "actor_rollout_ref.actor.use_prefix_grouper=true",
        "actor_rollout_ref.model.use_remove_padding=true",
        "actor_rollout_ref.actor.use_dynamic_bsz=true",
        "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=true",
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=200",
        "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=200",
        "algorithm.filter_groups.enable=true",
        "algorithm.filter_groups.metric=components",
        "actor_rollout_ref.actor.optim.lr=1e-3",
        "trainer.total_training_steps=3",
        "trainer.save_freq=3",
    )
    metrics = run.metrics()
    assert sorted(metrics) == [1, 2, 3]
    assert run.output.count("gdpo-verl 0.1.0: estimator 'gdpo' in place of verl 0.9.1's own") == 1
    # A warning from the trainer's process, into which verl has imported vLLM.
    assert re.search(r"WARNING:.*gdpo-verl: reward: for row .* the score is [23], but", run.output)
    assert "use_prefix_grouper has no effect" not in run.output
    evicted = "training/filter_groups/evicted_samples"
    assert sum(data.get(evicted, 0) for data in metrics.values()) > 0
    for step, data in metrics.items():
        check_step(data, run.rollouts(step))
        # vLLM samples from the weights that the trainer has: verl scores its tokens with them.
        assert data["training/rollout_probs_diff_max"] < 1e-3
    # Its own settings, with the tokens and the padding of its dumps, make its advantages again.
    replayed = replay([run.directory])
    assert replayed.reproduces is not None
    assert replayed.reproduces <= 1e-6
    assert (replayed.rows, replayed.recorded.setting.name) == (3 * 18, "gdpo")
    # Without a gradient, Adam would leave all but the weight decay's 1e-5 as they were.
    assert weight_change(policy, run.directory / "checkpoints/global_step_3") > 5e-4


def check_step(metrics, rows):
    """Check a step's log beside its dump, of groups that vary; `replay` has GDPO's advantages."""
    padding = [row for row in rows if row["uid"].startswith("pad")]
    real = [row for row in rows if not row["uid"].startswith("pad")]
    assert (len(real), len(padding)) == (18, 6)
    assert all(row["gdpo_advantage"] is None and row["tags"] is None for row in padding)
    rewards = components(real, ["tags", "short"])
    uids = groups(real)
    for uid in set(uids):
        assert rewards[[other == uid for other in uids]].std(dim=0).max() > 0
    logged = [metrics["rewards/tags/mean"], metrics["rewards/short/mean"]]
    assert logged == pytest.approx(rewards.mean(dim=0).tolist(), abs=1e-6)
    dumped, grpo = components(real, ["gdpo_advantage", "grpo_advantage"]).T
    assert dumped.std() > 0.1
    torch.testing.assert_close(grpo, decompose(rewards, groups(real)).grpo, rtol=0, atol=1e-6)
    # The advantages that the actor was given, by verl's own count over response tokens.
    assert metrics["critic/advantages/mean"] == pytest.approx(0.0, abs=1e-5)
    assert_trained_with(metrics, dumped)


@pytest.mark.slow
def test_legacy_trainer_gives_the_same_advantages_and_metrics(train):
    run = train(
        "toolbox/gdpo",
        "trainer.use_v1=false",
        "+algorithm.gdpo.whiten=sequence",
    )
    assert sorted(run.metrics()) == [1, 2]
    for step, data in run.metrics().items():
        rows = run.rollouts(step)
        rewards = components(rows, ["format", "correctness"])
        assert rewards.std(dim=0).min() > 0
        prompts = [row["input"] for row in rows]
        counts = torch.ones(len(rows))
        expected = decompose(rewards, prompts, counts, EstimatorSettings(whiten="sequence")).gdpo
        assert_trained_with(data, expected)
        assert data["rewards/format/mean"] == pytest.approx(float(rewards[:, 0].mean()), abs=1e-6)


# Asynchronous; one component is for one data source alone; every fifth answer makes it raise, and
# every other one meets a ground truth that cannot be read.
MIXED_REWARD = """
import asyncio

from gdpo_verl.rewards import Component, declares, tool_call


@declares(Component("format", 0, 1, optional=True), Component("correctness", -3, 3))
async def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    await asyncio.sleep(0.01)
    if data_source == "held_out":
        return {"score": 0.25, "acc": float(not solution_str)}
    assert sum(map(ord, solution_str)) % 5 or not solution_str, "every fifth"
    if sum(map(ord, solution_str)) % 2:
        tool_call.compute_score(data_source, solution_str, "no call")
    result = tool_call.compute_score(data_source, solution_str, ground_truth)
    if data_source == "toolbox":
        del result["format"]
    return result
"""


def test_a_variant_on_two_data_sources_with_an_async_reward_and_failing_sessions(
    train, toolbox, tmp_path
):
    pytest.importorskip("bfcl_eval")
    reward, bfcl = tmp_path / "my_reward.py", tmp_path / "bfcl"
    reward.write_text(MIXED_REWARD)
    run_cli("prepare", "bfcl", "--out", str(bfcl))
    # Held out: six rows of a source whose reward has other keys, and two of the training's own.
    rows = pq.read_table(toolbox / "validation.parquet").slice(0, 8)
    sources = pa.array(["held_out"] * 6 + ["toolbox"] * 2)
    place = rows.column_names.index("data_source")
    pq.write_table(rows.set_column(place, "data_source", sources), tmp_path / "held_out.parquet")

    run = train(
        "toolbox/gdpo",
        f"data.val_files={tmp_path / 'held_out.parquet'}",
        "trainer.val_before_train=true",
        f"trainer.validation_data_dir={tmp_path / 'validation'}",
        f"data.train_files=[{toolbox / 'train.parquet'},{bfcl / 'train.parquet'}]",
        f"reward.custom_reward_function.path={reward}",
        "+algorithm.gdpo.variant=rvpo",
        "+algorithm.gdpo.whiten=sequence",
        "data.train_max_samples=128",
        "data.max_prompt_length=500",  # the short quarter of its prompts
        "data.filter_overlong_prompts=true",
        "actor_rollout_ref.rollout.max_model_len=564",
    )
    held_out = run.metrics()[0]
    assert held_out["val-aux/held_out/reward/mean@1"] == 0.25
    assert held_out["val-core/held_out/acc/mean@1"] == 0.0
    dumped_rows = (tmp_path / "validation/0.jsonl").read_text().splitlines()
    assert sum('"acc": 0.0' in row for row in dumped_rows) == 6
    sources = set()
    for step in (1, 2):
        metrics = run.metrics()[step]
        rows = [row for row in run.rollouts(step) if not row["uid"].startswith("pad")]
        sources |= {row["format"] is None for row in rows}
        assert metrics["gdpo/failed_sessions"] == pytest.approx(1 - len(rows) / 32)
        rewards = components(rows, ["format", "correctness"])
        unscored = rewards[:, 0].isnan().double().mean()
        assert metrics["gdpo/format/unscored"] == pytest.approx(float(unscored))
        counts, variant = torch.ones(len(rows)), VARIANTS["rvpo"]
        settings = EstimatorSettings(whiten="sequence", variant=variant)
        expected = decompose(rewards, groups(rows), counts, settings)
        dumped = components(rows, ["gdpo_advantage", "rvpo_advantage"])
        both = torch.stack([expected.gdpo, expected.advantage], dim=1)
        torch.testing.assert_close(dumped, both, rtol=0, atol=1e-5)
        # The actor is given the variant's.
        assert_trained_with(metrics, dumped[:, 1])
    assert sources == {True, False}
    heard = re.findall(r"WARNING:.*gdpo-verl: (.*)", run.output)
    assert any("its ground truth is not valid" in line for line in heard)  # a reward worker's
    (first,) = [line for line in heard if "rollout sessions failed and are left out" in line]
    assert "AssertionError: every fifth" in first


def weight_change(policy, checkpoint):
    """The largest change of a weight from the policy to the checkpoint."""
    from transformers import AutoModelForCausalLM

    before = AutoModelForCausalLM.from_pretrained(policy).state_dict()
    files = sorted((checkpoint / "actor").glob("model_world_size_*_rank_*.pt"))
    shards = [torch.load(file, weights_only=False) for file in files]
    # FSDP2 shards the first dimension.
    changes = []
    for name in shards[0]:
        after = torch.cat([shard[name].to_local() for shard in shards])
        changes.append(float((after - before[name]).abs().max()))
    return max(changes)
