"""The estimator as verl calls it, in trainers with the hooks of the plug-in and without them."""

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from verl.trainer.config.algorithm import AlgoConfig

from gdpo_verl import apply_conditions, gdpo_advantages

FORMAT = [1.0, 0.0, 1.0, 1.0, 0.0, 1.0]
CORRECT = [3.0, -3.0, None, 3.0, 1.0, -3.0]
UIDS = ["a", "a", "b", "a", "b", "b"]
MASK = torch.arange(4) < torch.tensor([1, 4, 2, 3, 2, 0])[:, None]
KEYS = ["format", "correctness"]


def rewards():
    columns = [FORMAT, [float("nan") if value is None else value for value in CORRECT]]
    return torch.tensor(columns, dtype=torch.float64).T


def computed(config, **components):
    """Return the advantages of verl's own function, which fully_async and one_step_off call."""
    from verl import DataProto
    from verl.trainer.ppo.ray_trainer import compute_advantage

    import gdpo_verl.plugin.entry  # noqa: F401  registers, where the tests run without verl's plug-ins

    arrays = {"uid": np.array(UIDS, dtype=object)}
    arrays |= {key: np.array(value, dtype=object) for key, value in components.items()}
    data = DataProto.from_dict(
        tensors={"token_level_rewards": torch.zeros(6, 4), "response_mask": MASK.long()},
        non_tensors=arrays,
    )
    return compute_advantage(data, "gdpo", config=config).batch["advantages"]


CONDITION = {"format": {"on": "correctness", "at_least": 1.0}}
WHOLE = {
    "gdpo_reward_keys": KEYS,
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
            AlgoConfig(gdpo_reward_keys=KEYS, gdpo_reward_weights=[1.0, 0.5]),
            {},
            {"weights": [1.0, 0.5]},
        ),
    ],
)
def test_components_that_verl_passes_are_weighted_by_the_configuration(config, conditions, options):
    found = computed(config, format=FORMAT, correctness=CORRECT)
    conditioned = apply_conditions(rewards(), KEYS, conditions)
    expected = gdpo_advantages(conditioned, UIDS, MASK, **options)
    torch.testing.assert_close(found, expected.float())


def test_without_a_configuration_the_estimator_names_what_is_missing():
    message = "(?s)expected the reward components.*config and non_tensor_batch"
    with pytest.raises(RuntimeError, match=message):
        computed(None, format=FORMAT)
