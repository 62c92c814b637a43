"""verl's trainers without a TransferQueue: the legacy trainer, fully_async and one_step_off."""

import contextvars
from typing import Any

import numpy as np
import pytest
import torch
from fake_verl import recipe
from omegaconf import OmegaConf
from verl.trainer.config.algorithm import AlgoConfig

from gdpo_verl import apply_conditions, gdpo_advantages

# 2 prompts x 3 responses of 2 tokens.
UIDS = list("aaabbb")
COMPONENTS = {"format": [1.0, 0.0, 1.0, 0.0, 0.0, 1.0], "correctness": [3.0, -3, 1, -3, -3, -3]}


@pytest.fixture(autouse=True)
def own_context(monkeypatch):
    """Restore the state of a process that has created no trainer."""
    from gdpo_verl.plugin.step import estimator

    fresh = contextvars.ContextVar[Any]("trainer", default=None)
    monkeypatch.setattr(estimator, "legacy_trainer", fresh)


def separate(config):
    """Make the base class of the trainers of fully_async and one_step_off."""
    from verl.experimental.separation.ray_trainer import SeparateRayPPOTrainer

    OmegaConf.update(config, "rollout", {"nnodes": 1, "n_gpus_per_node": 1}, force_add=True)
    trainer = object.__new__(SeparateRayPPOTrainer)
    trainer.config, trainer.metrics, trainer.timing_raw = config, {}, {}
    scores = torch.zeros(6, 2)
    scores[:, -1] = torch.tensor(COMPONENTS["format"]) + torch.tensor(COMPONENTS["correctness"])
    trainer.reward_tensor = scores
    trainer.reward_extra_infos_dict = {key: list(v) for key, v in COMPONENTS.items()}
    return trainer


def batch():
    from verl import DataProto

    return DataProto.from_dict(
        tensors={
            "response_mask": torch.ones(6, 2),
            "attention_mask": torch.ones(6, 3, dtype=torch.int64),
            "prompts": torch.ones(6, 1, dtype=torch.int64),
            "responses": torch.ones(6, 2, dtype=torch.int64),
        },
        non_tensors={"uid": np.array(UIDS, dtype=object)},
    )


@pytest.mark.parametrize("adv_estimator", ["gdpo", "grpo"])
def test_a_trainer_without_queue_gets_advantages_of_the_declared_components_and_their_metrics(
    adv_estimator, caplog
):
    from verl.trainer.ppo.metric_utils import compute_data_metrics

    trainer = separate(recipe(adv_estimator))
    trainer.reward_tensor[0, -1] = 7.0
    data = trainer._fit_compute_advantage(batch())
    metrics = compute_data_metrics(batch=data, use_critic=False)
    assert metrics["rewards/format/mean"] == pytest.approx(0.5)
    assert metrics["rewards/correctness/max"] == 3.0
    assert metrics["critic/score/mean"] == pytest.approx(0.5 - 8 / 6 + 3 / 6)
    assert "the score is 7, but the weighted sum" in caplog.text
    assert metrics["gdpo/correctness/constant_groups"] == 0.5
    # verl's file tracker can write only plain numbers.
    assert {type(v) for k, v in metrics.items() if k.startswith(("gdpo/", "rewards/"))} == {float}
    assert ("gdpo/whiten_shift" in metrics) == (adv_estimator == "gdpo")
    if adv_estimator == "gdpo":
        rewards = torch.tensor([COMPONENTS["format"], COMPONENTS["correctness"]]).T
        expected = gdpo_advantages(rewards, UIDS, torch.ones(6, 2))
        torch.testing.assert_close(data.batch["advantages"], expected)


def test_a_run_without_settings_of_gdpo_gets_only_verls_metrics():
    from verl.trainer.ppo.metric_utils import compute_data_metrics

    config = recipe("grpo")
    config.algorithm.gdpo = None
    config.reward.reward_manager.name = "naive"
    config.reward.custom_reward_function.path = None
    data = separate(config)._fit_compute_advantage(batch())
    assert not [key for key in compute_data_metrics(data, False) if "format" in key]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"algorithm.use_kl_in_reward": True}, r"algorithm\.use_kl_in_reward: true has no effect"),
        (
            {"algorithm.gdpo.schedule": {"format": {"from": 0.0, "to": 1.0, "steps": 5}}},
            r"algorithm\.gdpo\.schedule: .* fully_async and one_step_off",
        ),
    ],
)
def test_settings_without_effect_are_rejected_before_ray_starts_and_at_the_first_step(
    change, expected
):
    from verl.trainer import main_ppo

    config = recipe()
    for key, value in change.items():
        OmegaConf.update(config, key, value, force_add=True)
    trainer = separate(config)
    # fully_async starts Ray with this function, and does not call verl's validation.
    with pytest.raises(ValueError, match=expected):
        main_ppo.run_ppo(config, task_runner_class=None)
    with pytest.raises(ValueError, match=expected):
        trainer._fit_compute_advantage(batch())


def without_hooks(config, **components):
    """Return the advantages of verl's own function, called without a trainer of ours."""
    from verl.trainer.ppo.ray_trainer import compute_advantage

    import gdpo_verl.plugin.entry  # noqa: F401  registers, where the tests run without verl's plug-ins

    data = batch()
    data.batch["token_level_rewards"] = torch.zeros(6, 2)
    for key, values in components.items():
        data.non_tensor_batch[key] = np.array(values, dtype=object)
    return compute_advantage(data, "gdpo", config=config).batch["advantages"]


CONDITION = {"format": {"on": "correctness", "at_least": 1.0}}
WHOLE = {
    "gdpo_reward_keys": list(COMPONENTS),
    "gdpo_reward_weights": [2.0, 1.0],
    "norm_adv_by_std_in_grpo": False,
    "gdpo": {"whiten": "sequence", "conditions": CONDITION},
}


@pytest.mark.parametrize(
    ("config", "conditions", "options"),
    [
        (
            OmegaConf.create(WHOLE),
            CONDITION,
            {"weights": [2.0, 1.0], "whiten": "sequence", "scale": False},
        ),
        (
            AlgoConfig(gdpo_reward_keys=list(COMPONENTS), gdpo_reward_weights=[1.0, 0.5]),
            {},
            {"weights": [1.0, 0.5]},
        ),
    ],
)
def test_components_that_verl_passes_are_weighted_by_the_configuration(config, conditions, options):
    correctness = [3.0, -3, None, -3, 1, -3]
    found = without_hooks(config, **COMPONENTS | {"correctness": correctness})
    table = np.array([COMPONENTS["format"], correctness], dtype=np.float64).T
    conditioned = apply_conditions(torch.from_numpy(table), list(COMPONENTS), conditions)
    expected = gdpo_advantages(conditioned, UIDS, torch.ones(6, 2), **options)
    torch.testing.assert_close(found, expected.float())


def test_without_a_configuration_the_estimator_names_what_is_missing():
    message = "(?s)expected the reward components.*config and non_tensor_batch"
    with pytest.raises(RuntimeError, match=message):
        without_hooks(None)
