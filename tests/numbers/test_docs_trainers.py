"""The documented code for other trainers runs on objects with the attributes of those trainers."""

import re
from pathlib import Path
from types import SimpleNamespace as Object

import numpy as np
import pytest
import torch

from gdpo_verl import advantages_of

PAGE = (Path(__file__).parents[2] / "docs/other_trainers.md").read_text(encoding="utf-8")
# Two groups of two, whose rows are interleaved; the lengths are 1 to 3 tokens.
DICTS = [{"a": 1.0, "b": 0.0}, {"a": 0.0, "b": 0.0}, {"a": 1.0, "b": 1.0}, {"a": 0.0, "b": 0.0}]
TOKENS = [3, 1, 2, 1]
ALIKE = advantages_of(DICTS, [0, 0, 1, 1])
BY_TOKENS = advantages_of(DICTS, [0, 0, 1, 1], TOKENS)
MASK = torch.arange(4) < torch.tensor(TOKENS)[:, None]
OF_EACH_TOKEN = torch.tensor(BY_TOKENS)[:, None] * MASK


@pytest.fixture(scope="module")
def page():
    """Return the functions that the page's blocks of code define, by name."""
    names = {"advantages_of": advantages_of, "np": np, "torch": torch}
    names["register_rllm_adv_estimator"] = lambda name: lambda function: function
    found = {}
    for block in re.findall(r"```python\n((?:@[^\n]*\n)?def .*?)```", PAGE, flags=re.DOTALL):
        exec(block, names)
        name = re.search(r"def (\w+)\((\w+)", block)
        assert name
        found[f"{name[1]} of {name[2]}"] = names[name[1]]
    return found


def test_older_verl(page):
    columns = {"correct": "a", "short": "b"}
    arrays = {"uid": np.array(["x", "x", "y", "y"], dtype=object)}
    for name, key in columns.items():
        arrays[name] = np.array([row[key] for row in DICTS])
    data = Object(batch={"response_mask": MASK.long()}, non_tensor_batch=arrays)
    assert page["compute_advantage of data"](data, "gdpo", gamma=1.0) is data
    torch.testing.assert_close(data.batch["advantages"], OF_EACH_TOKEN)


def test_rllm(page):
    trajectories = [Object(signals=signals) for signals in DICTS]
    groups = [Object(trajectories=trajectories[:2]), Object(trajectories=trajectories[2:])]
    found, _ = page["gdpo of rewards"]([], None, traj_groups=groups)
    assert [len(each) for each in found] == [2, 2]
    assert np.concatenate(found).tolist() == ALIKE


def test_slime_and_miles(page):
    args = Object(reward_key="sum")
    samples = [
        Object(
            reward=rewards | {"sum": sum(rewards.values())},
            group_index=row // 2,
            response_length=9 if row % 2 else tokens,
            loss_mask=[0] * 2 + [1] * tokens if row % 2 else None,
            get_reward_value=lambda args, rewards=rewards: sum(rewards.values()),
        )
        for row, (rewards, tokens) in enumerate(zip(DICTS, TOKENS, strict=True))
    ]
    assert page["gdpo of args"](args, samples) == ([1.0, 0.0, 2.0, 0.0], BY_TOKENS)


def test_nemo_rl(page):
    prompts = torch.tensor([[5, 6], [5, 6], [5, 7], [5, 7]])
    batch = {
        "reward/a": torch.tensor([row["a"] for row in DICTS]),
        "reward/b": torch.tensor([row["b"] for row in DICTS]),
    }
    found = page["compute_advantage of self"](None, prompts, None, MASK, batch | {"other": 0})
    torch.testing.assert_close(found, OF_EACH_TOKEN)


def test_tinker_cookbook(page):
    groups = [Object(metrics_G=DICTS[:2]), Object(metrics_G=DICTS[2:])]
    found = page["compute_advantages of trajectory_groups_P"](groups)
    torch.testing.assert_close(torch.stack(found), torch.tensor(ALIKE).view(2, 2))


def test_verifiers(page):
    def trace(rewards, tokens):
        node = Object(mask=[False] + [True] * tokens, advantages=None)
        return Object(rewards={n: Object(score=v) for n, v in rewards.items()}, nodes=[node])

    traces = [trace(*each) for each in zip(DICTS, TOKENS, strict=True)]
    page["assign_advantages of traces"](traces, [0, 0, 1, 1])
    expected = [[value] * tokens for value, tokens in zip(BY_TOKENS, TOKENS, strict=True)]
    assert [each.nodes[0].advantages for each in traces] == expected
