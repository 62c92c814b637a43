"""Advantages from rewards as dicts, for trainers that hand over nothing else."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from gdpo_verl import advantages_of, gdpo_advantages
from gdpo_verl.config import GdpoConfig
from gdpo_verl.rewards.components import Component

GROUPS = ["a", "b", "a", "b"]
ROWS: list[dict[str, Any]] = [
    {"right": 1, "short": 0.5},
    {"right": 0, "short": None},
    {"right": 0, "short": 1.0},
    {"right": 1, "short": math.nan},
]
TABLE = torch.tensor([[1.0, 0.5], [0, math.nan], [0, 1], [1, math.nan]], dtype=torch.float64)


@pytest.mark.parametrize("tokens", [None, [3, 1, 2, 5]], ids=["alike", "lengths"])
def test_settings_and_tokens_are_those_of_the_pure_function(tokens: list[int] | None) -> None:
    mask = torch.arange(5) < torch.tensor(tokens or [1] * 4)[:, None]
    expected = gdpo_advantages(TABLE, GROUPS, mask)[:, 0].tolist()
    assert advantages_of(ROWS, GROUPS, tokens) == expected
    options = {"whiten": "sequence", "epsilon": 0.1, "variant": "rvpo"}
    node = options | {"rvpo": {"k": 2.0}, "gate": {"on": "right"}}
    config = {"norm_adv_by_std_in_grpo": False, "gdpo": node}
    set_up: Any = options | {"scale": False, "k": 2.0, "gate": 0}
    expected = gdpo_advantages(TABLE, GROUPS, mask, **set_up)[:, 0].tolist()
    assert advantages_of(ROWS, GROUPS, tokens, config=config) == expected


def test_conditions_schedules_and_ranges_are_taken() -> None:
    config = {
        "gdpo": {
            "variant": "sa_mrpo",
            "conditions": {"short": {"on": "right", "at_least": 1}},
            "schedule": {"short": {"from": 0.0, "to": 1.0, "steps": 10}},
        }
    }
    components = [Component("right", 0, 1), Component("short", 0, 2)]
    conditioned = torch.tensor([[1.0, 0.5], [0, 0], [0, 0], [1, math.nan]])
    expected = gdpo_advantages(
        conditioned.double(),
        GROUPS,
        torch.ones(4, 1),
        weights=[1.0, 0.5],
        variant="sa_mrpo",
        ranges=[(0, 1), (0, 2)],
    )
    found = advantages_of(ROWS, GROUPS, config=config, components=components, step=5)
    assert found == expected[:, 0].tolist()


def test_other_things_in_a_dict_are_left_out_by_name() -> None:
    full = [row | {"score": 9.0, "parse_error": 4, "note": "text"} for row in ROWS]
    names = GdpoConfig(reward_keys=("right", "short"))
    assert advantages_of(full, GROUPS, config=names) == advantages_of(ROWS, GROUPS)
    for row in full:
        del row["note"]  # what verl and our rewards return beside components needs no name
    assert advantages_of(full, GROUPS) == advantages_of(ROWS, GROUPS)


def test_the_components_of_nemo_gym_and_skyrl_stand_in_a_dict_by_themselves() -> None:
    nested = [{"reward": 2.0, "response": {}, "reward_components": row} for row in ROWS]
    assert advantages_of(nested, GROUPS) == advantages_of(ROWS, GROUPS)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"right": 1}, {"right": 1, "short": 0}], "no 'short' for row 0, only"),
        ([{"score": 1}, {"score": 0}], "declares no components and none are named"),
    ],
)
def test_what_cannot_be_read_is_named(rows: list[Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        advantages_of(rows, [0, 0])


def test_small_batches() -> None:
    assert advantages_of([], []) == []
    assert advantages_of([{"a": 1.0}], ["x"]) == [0.0]  # a group of one has nothing to compare
    with pytest.raises(ValueError, match="group_ids: expected 2"):
        advantages_of(ROWS[:2], [0])
