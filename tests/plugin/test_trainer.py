"""The hooks around verl's trainer methods, called with stand-ins for these methods, without Ray."""

import contextlib
import gc
import logging
from types import SimpleNamespace
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from fake_verl import recipe
from gdpo_verl.recipes.toolbox.policy import TASK
from omegaconf import open_dict

from gdpo_verl.config import GdpoConfig
from gdpo_verl.config.components import Component
from gdpo_verl.lab.policy.model import train_tokenizer
from gdpo_verl.plugin.step import estimator, queue, replay_buffer
from gdpo_verl.plugin.step import trainer as trainer_module
from gdpo_verl.plugin.step.batch import RewardErrors
from gdpo_verl.plugin.watch import liveness

ROW = {
    "raw_prompt": [{"role": "user", "content": "call"}],
    "data_source": "toolbox",
    "reward_model": {
        "style": "rule",
        "ground_truth": "<think> a </think> <response> b </response>",
    },
    "extra_info": {"index": 0},
}


class Buffer:
    """A replay buffer with the attributes that the hooks use, which verl's buffer may lack."""

    filter_groups_metric = "components"

    def _sync_metadata_from_transfer_queue(self): ...

    def _dapo_filtered_keys(self, partition_id): ...


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TASK, 0, vocabulary=300)


@pytest.fixture
def trainer(tmp_path, tokenizer):
    config = recipe()
    for key in ("train_files", "val_files"):
        config.data[key] = str(tmp_path / "rows.parquet")
    pq.write_table(pa.table({"data_source": ["toolbox"]}), tmp_path / "rows.parquet")
    (tmp_path / "config.json").touch()
    config.actor_rollout_ref.model.path = str(tmp_path)
    return SimpleNamespace(config=config, tokenizer=tokenizer, replay_buffer=Buffer())


def verls(trainer, *args, **kwargs):
    """A stand-in for verl's `_init_dataloader`."""
    trainer.train_dataset = trainer.val_dataset = [ROW]
    return args, kwargs


def advantages(trainer, batch, metrics):
    """A stand-in for verl's `_compute_advantage`."""
    count = len(batch.keys)
    step = estimator._step.get()
    uids, ones = ["u"] * count, torch.ones(count, 1)
    tensors = {"response_mask": ones, "token_level_scores": ones}
    step.data = SimpleNamespace(non_tensor_batch={"uid": uids}, batch=tensors)
    if trainer.config.algorithm.adv_estimator == "gdpo":
        estimator.gdpo(torch.zeros(count, 1), ones, uids)
    return "verl's own result"


def train_on(trainer, *infos, step=advantages):
    """Call the hooks around a step of verl on a batch with these rewards.

    If the rewards are exceptions, reading them raises the first one.
    """
    keys = [f"u_{row}_0" for row in range(len(infos))]
    batch = SimpleNamespace(keys=keys, tags=[{}] * len(infos), partition_id="train")
    read = infos if isinstance(infos[0], Exception) else [list(infos)]
    with mock.patch.object(queue, "reward_infos", side_effect=read):
        return trainer_module._compute_advantage(step, trainer, batch, {})


@pytest.mark.parametrize("adv_estimator", ["gdpo", "grpo"])
def test_a_trainer_gets_its_hooks_and_its_buffer_is_watched(trainer, adv_estimator):
    trainer.config.algorithm.adv_estimator = adv_estimator
    assert trainer_module._init_dataloader(verls, trainer, "x", n=1) == (("x",), {"n": 1})
    assert trainer.gdpo_hooks.objective.keys == ("format", "correctness")
    assert isinstance(trainer.gdpo_hooks.failures, replay_buffer.SessionFailures)
    assert trainer.replay_buffer._dapo_filtered_keys("val") == (set(), {})
    assert trainer.config.data.seed is not None
    del trainer.replay_buffer
    trainer_module._init_dataloader(verls, trainer)
    assert trainer.gdpo_hooks.failures is None


def without_rewards_of_ours(config, **algorithm):
    with open_dict(config):
        config.algorithm = {"adv_estimator": "grpo", **algorithm}
        config.reward.custom_reward_function = {"path": None}
        config.reward.reward_manager.name = "naive"
        config.data.seed = None


def test_a_run_without_settings_of_gdpo_gets_no_hooks(trainer):
    without_rewards_of_ours(trainer.config)
    before = trainer.config.copy()
    trainer_module._init_dataloader(verls, trainer)
    assert trainer.gdpo_hooks is None
    assert trainer.config == before
    assert trainer.replay_buffer.__dict__ == {}


def test_the_filter_needs_components_of_a_run_with_any_estimator(trainer):
    without_rewards_of_ours(trainer.config, filter_groups={"metric": "components"})
    with pytest.raises(ValueError, match=r"filter_groups\.metric=components: expected declared"):
        trainer_module._init_dataloader(verls, trainer)


def test_a_filter_by_a_key_that_the_probe_does_not_return_is_rejected(trainer):
    with open_dict(trainer.config):
        trainer.config.algorithm.filter_groups = {"enable": True, "metric": "correctnes"}
    with pytest.raises(ValueError, match="metric: 'correctnes'"):
        trainer_module._init_dataloader(verls, trainer)


def test_an_error_in_the_hooks_of_another_estimator_is_logged_and_removes_the_hooks(
    trainer, caplog
):
    trainer.config.algorithm.adv_estimator = "grpo"
    trainer_module._init_dataloader(verls, trainer)
    for _ in range(2):
        found = train_on(trainer, KeyError("moved upstream"), step=lambda *args: args)
        assert (found[0], found[1].keys, found[2]) == (trainer, ["u_0_0"], {})
    assert trainer.gdpo_hooks is None
    (record,) = (r for r in caplog.records if "no more metrics for the reward" in r.getMessage())
    assert record.levelno == logging.WARNING
    assert record.exc_info


@pytest.mark.parametrize("manager", ["gdpo_components", "naive"])
def test_a_row_without_a_component_ends_a_grpo_baseline_whose_score_is_the_sum(trainer, manager):
    trainer.config.algorithm.adv_estimator = "grpo"
    trainer.config.reward.reward_manager.name = manager
    with open_dict(trainer.config):
        trainer.config.algorithm.gdpo = {"metrics": True}
    trainer_module._init_dataloader(verls, trainer)
    infos = [{"format": 1.0, "correctness": 3.0}, {"score": 0.25, "correctness": 3.0}]
    ends = pytest.raises(ValueError, match="the reward returned no 'format' for row u_1_0, only")
    with ends if manager == "gdpo_components" else contextlib.nullcontext():
        train_on(trainer, *infos)


@pytest.mark.parametrize("adv_estimator", ["gdpo", "grpo"])
def test_a_judge_that_fails_too_often_ends_a_gdpo_run_and_its_grpo_baseline(trainer, adv_estimator):
    trainer.config.algorithm.adv_estimator = adv_estimator
    trainer_module._init_dataloader(verls, trainer)
    judged = [Component("judge", most_unscored=0.1)]
    trainer.gdpo_hooks.objective = GdpoConfig(metrics=False).resolve(judged)
    with pytest.raises(RewardErrors, match=r"^3 of 3 responses.*at most 10% may.*HTTP 503"):
        train_on(trainer, *[{"judge": None, "judge_error": "HTTP 503"}] * 3)


@pytest.mark.parametrize("before", [gc.enable, gc.disable])
def test_the_garbage_collector_pauses_in_a_step_with_hooks_and_is_then_restored(trainer, before):
    trainer.config.algorithm.adv_estimator = "grpo"
    trainer_module._init_dataloader(verls, trainer)
    seen = []

    def step(*args):
        seen.append(gc.isenabled())
        raise KeyError("verl's own")

    before()
    try:
        for _ in range(2):
            with pytest.raises(KeyError, match="verl's own"):
                train_on(trainer, {}, step=step)
            assert gc.isenabled() == (before is gc.enable)
            trainer.gdpo_hooks = None
    finally:
        gc.enable()
    assert seen == [False, before is gc.enable]


@pytest.mark.parametrize(("attributes", "step"), [({}, 0), ({"global_steps": 7}, 7)])
def test_the_estimator_gets_the_global_step(trainer, attributes, step):
    trainer_module._init_dataloader(verls, trainer)
    vars(trainer).update(attributes)
    infos = [{"format": 1.0, "correctness": 3.0}, {"format": 0.0, "correctness": -3.0}]
    with mock.patch.object(trainer.gdpo_hooks, "report") as report:
        assert train_on(trainer, *infos) == "verl's own result"
    assert report.call_args[0][0].rows.global_step == step


def test_the_actors_are_watched_while_verl_trains(trainer, monkeypatch):
    calls = []
    found = [None]
    monkeypatch.setattr(liveness.ActorWatch, "start", lambda watch: calls.append("start"))
    monkeypatch.setattr(liveness.ActorWatch, "stop", lambda watch: calls.append("stop"))
    monkeypatch.setattr(liveness.ActorWatch, "first_death", lambda watch: found[-1])
    trainer_module._init_dataloader(verls, trainer)
    trainer.replay_buffer = Buffer()  # a buffer that does not count failures

    def fit(trainer):
        trainer.replay_buffer._sync_metadata_from_transfer_queue()
        return [*calls]

    assert trainer_module._fit(fit, trainer) == ["start"]
    assert calls == ["start", "stop"]
    found.append("a reward worker died")
    with pytest.raises(RuntimeError, match="a reward worker died"):
        trainer_module._fit(fit, trainer)


@pytest.mark.parametrize(
    "method",
    [trainer_module._fit, trainer_module._save_checkpoint, trainer_module._dump_generations],
)
def test_without_hooks_verls_method_gets_its_arguments_unchanged(method):
    trainer = SimpleNamespace()
    found = method(lambda *args, **kwargs: (args, kwargs), trainer, 1, last=True)
    assert found == ((trainer, 1), {"last": True})
