"""Rollout dumps: the dumped steps and prompts."""

from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf
from transfer_queue import KVBatchMeta

from gdpo_verl.plugin.step.dumps import DumpSettings, log_rollout_data


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        ({}, []),  # no directory
        ({"rollout_data_dir": "r"}, [1, 2, 3, 4, 5, 6]),
        ({"rollout_data_dir": "r", "rollout_dump_freq": 3}, [3, 6]),
        ({"rollout_data_dir": "r", "rollout_dump_freq": -1}, []),
    ],
)
def test_rollouts_are_dumped_at_the_configured_steps(settings, steps):
    dumps = DumpSettings.of(settings)
    assert [step for step in range(1, 7) if dumps.has(step)] == steps


@pytest.mark.parametrize(
    ("key", "value"),
    [("rollout_dump_freq", "often"), ("rollout_dump_prompts", 0), ("rollout_dump_freq", True)],
)
def test_wrong_dump_settings_are_rejected_with_their_key(key, value):
    with pytest.raises(ValueError, match=rf"trainer\.{key}: expected a number"):
        DumpSettings.of({key: value})


@pytest.mark.parametrize(
    ("settings", "keys"),
    [
        ({}, ["b_0_0", "a_0_0", "a_1_0"]),
        ({"rollout_dump_prompts": 1}, ["a_0_0", "a_1_0"]),
        ({"rollout_dump_freq": 3, "rollout_dump_prompts": 1}, None),
    ],
)
def test_verl_dumps_the_rows_of_the_chosen_prompts(settings, keys):
    def original(trainer, rows, *args, **kwargs):
        return trainer.global_steps, rows.keys, args, kwargs

    config = OmegaConf.create({"trainer": {"rollout_data_dir": "r", **settings}})
    trainer = SimpleNamespace(config=config, global_steps=4)
    rows = KVBatchMeta(["b_0_0", "a_0_0", "a_1_0"], [{}] * 3)
    found = log_rollout_data(original, trainer, rows, "timing", to="r")
    assert found == (keys and (4, keys, ("timing",), {"to": "r"}))
