"""Stand-ins for parts of verl: a configuration, a trainer, and rows in its queue."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hydra
import pytest
import torch
from omegaconf import DictConfig, open_dict

from gdpo_verl.config import GdpoConfig

RECIPES = Path(__file__).parents[1] / "recipes"


def compose(name: str, *overrides: str) -> DictConfig:
    """Return the configuration of a recipe, as verl's driver composes it."""
    with hydra.initialize_config_dir(str(RECIPES), version_base=None):
        return hydra.compose(name, list(overrides))


def word_tokenizer(*words: str, **parts: Any) -> Any:
    """Return a tokenizer whose tokens are these words, which must include <eos> and <unk>.

    Further parts of the package `tokenizers` may be given, such as a pre_tokenizer.
    """
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: index for index, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    for name, part in parts.items():
        setattr(tokenizer, name, part)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", unk_token="<unk>")


def recipe(estimator: str = "gdpo", **algorithm: Any) -> DictConfig:
    """Return the toolbox recipe with these settings under `algorithm.gdpo`."""
    config = compose("toolbox/gdpo")
    with open_dict(config):
        config.algorithm.adv_estimator = estimator
        config.algorithm.gdpo = algorithm
        config.trainer.rollout_data_dir = "rollouts"
    return config


def trainer_of(config: DictConfig, *, hooks: bool = True, reward: Any = None) -> Any:
    """Return verl's trainer with only those attributes that its advantage step and its dump read.

    The components are those of the recipe, or those that a reward function declares.
    """
    from verl.trainer.ppo.v1 import PPOTrainerSync

    from gdpo_verl.plugin.checks import validation
    from gdpo_verl.plugin.step.trainer import TrainerHooks

    trainer = object.__new__(PPOTrainerSync)
    trainer.config = config
    trainer.global_steps = 1
    if reward is None:
        objective = validation.objective_of(config)
    else:
        objective = GdpoConfig.from_algorithm(config.algorithm).resolve(reward.components)
    trainer.gdpo_hooks = TrainerHooks(config, objective) if hooks else None
    return trainer


def put(queue: Any, rows: list[tuple[str, list[int], dict[str, Any] | None]]) -> Any:
    """Put rows of (key, response mask, components) into the queue, as an agent loop does."""
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


@pytest.fixture(autouse=True)
def emptied(queue: Any) -> Iterator[None]:
    """Empty the queue after each test."""
    yield
    for partition, rows in (queue.kv_list() or {}).items():
        if rows:
            queue.kv_clear(keys=list(rows), partition_id=partition)


def advantages(queue: Any, batch: Any, field: str = "advantages") -> list[list[float]]:
    data = queue.kv_batch_get(keys=batch.keys, partition_id="train", select_fields=[field])
    return [row.tolist() for row in data[field].unbind()]


def info(form: float | None, correctness: float | None) -> dict[str, Any]:
    return {"score": (form or 0) + (correctness or 0), "format": form, "correctness": correctness}
