"""A run that did not ask for GDPO is the same with the plug-in installed and without."""

import json
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from processes import run
from waiting import HANGS

from gdpo_verl.lab.replay import replay

pytestmark = [pytest.mark.real, pytest.mark.slow]
TESTS = Path(__file__).parents[1]

REWARD = """
import random
import numpy as np
import torch
print("a user's reward is imported")
random.seed(7), np.random.seed(7), torch.manual_seed(7)

def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    length = len(solution_str)
    return {"score": float(length % 7), "length": length, "parity": length % 2}
"""
EXITS = """
import sys
sys.exit("only for the workers that compute rewards")

def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    return 0.0
"""
# The two entries that a run may ask for by name.
OURS = {
    "verl.trainer.ppo.core_algos.ADV_ESTIMATOR_REGISTRY": "gdpo",
    "verl.experimental.reward_loop.reward_manager.registry.REWARD_MANAGER": "gdpo_components",
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """A policy's tokenizer and configuration, rows, and two reward files of a user's."""
    from gdpo_verl.recipes.toolbox.policy import TASK
    from transformers import Qwen2Config

    from gdpo_verl.lab.policy.model import train_tokenizer

    directory = tmp_path_factory.mktemp("unnoticed")
    train_tokenizer(TASK, 0, vocabulary=300).save_pretrained(directory / "policy")
    Qwen2Config(architectures=["Qwen2ForCausalLM"]).save_pretrained(directory / "policy")
    (directory / "reward.py").write_text(REWARD)
    (directory / "exits.py").write_text(EXITS)
    (directory / "agent_loop.yaml").write_text("- name: answers\n  _target_: unnoticed.Answers\n")
    rows = [
        {
            "prompt": [{"role": "user", "content": f"call {index}"}],
            "data_source": "unnoticed",
            "reward_model": {"style": "rule", "ground_truth": "call"},
            "extra_info": {"index": index},
        }
        for index in range(16)
    ]
    pq.write_table(pa.Table.from_pylist(rows), directory / "rows.parquet")
    return directory


def findings(script, *arguments, directory, policy):
    """Run a script of this folder in a separate process; returns what it found."""
    environment = {"VERL_USE_EXTERNAL_PLUGINS": policy, "PYTHONPATH": str(TESTS)}
    command = [sys.executable, TESTS / script, *arguments, directory]
    process = run(*command, environment=environment, timeout=HANGS)
    assert process.returncode == 0, process.stdout[-3000:] + process.stderr[-6000:]
    return json.loads((directory / f"{(*arguments, policy)[0]}.json").read_text())


@pytest.fixture(scope="module")
def sides(directory):
    """Traces of the same step in a process without the plug-in, and in one with it."""
    return {
        policy: findings("unnoticed.py", directory=directory, policy=policy)
        for policy in ("none", "auto")
    }


def differing(sides, choose):
    """The findings so named that are not the same on both sides, as (without, with)."""
    without, with_plugin = sides["none"], sides["auto"]
    assert without.keys() == with_plugin.keys()
    chosen = [name for name in without if choose(name)]
    assert chosen
    return {
        name: (without[name], with_plugin[name])
        for name in chosen
        if without[name] != with_plugin[name]
    }


def test_both_sides_really_take_the_step(sides):
    without, with_plugin = sides["none"], sides["auto"]
    assert "gdpo_verl.upstream.hooks" in with_plugin["modules: imported"]
    loaded = {name.split(".")[0] for name in without["modules: in the end"]}
    assert not loaded & {"gdpo_verl", "wrapt"}
    for side in sides.values():
        rows = side["queue after the advantages"]["train"]
        assert len(rows["rows"]) == 10  # 3 + 2 + 3 sessions, and two rows of padding
        assert any(value != "0.0" for _, row in rows["fields"]["advantages"] for value in row)
        assert side["file rollouts/1.jsonl"].count("\n") == 10
        assert side["validation"]
        raised = [name for name, value in side.items() if str(value).startswith("raised")]
        assert all(name.startswith("raises: ") for name in raised), raised
        assert len(raised) == 20
        assert len([name for name in side if name.startswith("raises: ")]) == 20


def test_a_stock_dump_is_replayed_with_its_reward(sides, directory, tmp_path):
    dump = tmp_path / "rollouts/1.jsonl"
    dump.parent.mkdir()
    dump.write_text(sides["none"]["file rollouts/1.jsonl"])
    # verl's own trainer dumps no components: without the function it is refused (test_replay.py).
    found = replay([dump.parent], function=str(directory / "reward.py"))
    assert found.recorded.keys == ("length", "parity")
    assert (found.rows, found.recorded.setting.name, found.asked.setting.name) == (
        8,
        "grpo",
        "gdpo",
    )


def test_registries_have_the_two_names_that_a_run_asks_for_and_no_more(sides):
    for moment in ("registries", "registries in the end"):
        without, with_plugin = sides["none"][moment], sides["auto"][moment]
        for table, name in OURS.items():
            assert with_plugin[table].pop(name).startswith("gdpo_verl.")
            without[table].pop(name, None)
        assert len(without) > 20
    assert not differing(sides, lambda name: name.startswith("registries"))


def test_only_the_plugin_itself_is_imported_besides(sides):
    moments = [name for name in sides["none"] if name.startswith("modules: ")]
    assert len(moments) == 5  # two of them in verl's workers
    for moment in moments:
        without, with_plugin = (set(sides[policy][moment]) for policy in ("none", "auto"))
        more = {name for name in with_plugin - without if name.split(".")[0] != "gdpo_verl"}
        assert {name for name in more if name.split(".")[0] != "wrapt"} == set(), moment
        assert without <= with_plugin, moment


@pytest.mark.parametrize(
    "what",
    [
        "settings",
        "process",
        "queue",
        "metrics",
        "file",
        "validation",
        "names",  # the members of verl's modules and classes
        "start",  # with a reward file that seeds or exits: in verl's workers alone
        "raises",  # what goes wrong, as verl raises it
    ],
)
def test_the_step_leaves_the_same(sides, what):
    assert not differing(sides, lambda name: name.split()[0].rstrip(":") == what)


@pytest.mark.parametrize("where", ["inside", "outside"])
def test_a_plugin_that_wraps_the_same_methods_gets_along(directory, where):
    from neighbours import METHODS

    found = findings("neighbours.py", where, directory=directory, policy="auto")
    for estimator, side in found.items():
        assert side["seen"] == list(METHODS)
        ours = estimator == "gdpo"
        assert ("length" in json.loads(side["dump"].splitlines()[0])) == ours
        assert ("rewards/length/mean" in side["metrics"]) == ours
        assert "latest_checkpointed_iteration.txt" in side["saved"]
    # Parities 0, 1, 0, 1 and lengths 4, 2, 2, 1, normalised: -.87 + 1.39, .87 - .20, -.87 - .20,
    # .87 - .99.
    decoupled = [row[0] for row in found["gdpo"]["advantages"]]
    assert sorted(range(4), key=decoupled.__getitem__) == [2, 3, 0, 1]
