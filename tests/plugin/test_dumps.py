"""Rollout dumps: the dumped steps and prompts, and the columns that verl's own call gets."""

from types import SimpleNamespace

import pytest
import torch
from omegaconf import OmegaConf
from transfer_queue import KVBatchMeta

from gdpo_verl.config import GdpoConfig
from gdpo_verl.plugin.step.batch import RewardBatch, RewardRows
from gdpo_verl.plugin.step.dumps import Dump, DumpSettings, log_rollout_data


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
    calls = []
    config = OmegaConf.create({"trainer": {"rollout_data_dir": "r", **settings}})
    trainer = SimpleNamespace(config=config, global_steps=4)
    rows = KVBatchMeta(["b_0_0", "a_0_0", "a_1_0"], [{}] * 3)
    log_rollout_data(
        lambda *args, **kwargs: calls.append((args, kwargs)), trainer, rows, "timing", to="r"
    )
    if keys is None:
        assert calls == []
    else:
        (((who, batch, timing), named),) = calls
        assert (who, batch.keys, timing, named) == (trainer, keys, "timing", {"to": "r"})


def kept():
    """Return the dump of one mini-batch of two rows."""
    objective = GdpoConfig(reward_keys=("length",)).resolve([])
    keys = ["u_0_0", "u_1_0"]
    rows = RewardRows(objective, [{"length": 1.0}, {"length": 0.0}], keys, global_step=1)
    dump = Dump(objective)
    dump.keep(RewardBatch.of(rows, ["u", "u"], torch.ones(2)))
    return dump


COLUMNS = {
    "length": [0.0, 1.0],
    "response_tokens": [1.0, 1.0],
    "gdpo_advantage": pytest.approx([-(0.5**0.5), 0.5**0.5], abs=1e-5),
    "grpo_advantage": pytest.approx([-(0.5**0.5), 0.5**0.5], abs=1e-5),
}


def test_columns_are_added_to_those_of_verl_only_once():
    infos = {"uid": ["u_1_0", "u_0_0"], "acc": [1, 2]}
    dump = kept()
    for other in ({}, {"uid": ["of validation"]}):
        assert dump.move_into(other) == other
    assert dump.move_into(infos) == infos | COLUMNS
    assert dump.move_into(infos) == infos
