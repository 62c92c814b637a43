"""`gdpo_verl.swift` trains in ms-swift, with the advantages of the pure function.

ms-swift needs other versions of TRL, peft and datasets than verl. So scripts/test.sh installs them
in a separate folder, which only `swift_step.py` and the command `swift` use.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import documents
import pytest
from trainings import made_once

from gdpo_verl import advantages_of
from gdpo_verl.lab.policy.pretrained import make_smollm2
from gdpo_verl.lab.rundir.run import read_run

SWIFT = Path(sys.prefix) / "ms_swift"
ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (SWIFT / "swift").is_dir(), reason=f"no ms-swift in {SWIFT}: run scripts/test.sh --all"
    ),
]
# The same settings as in swift_step.py.
SETTINGS = {
    "gdpo_reward_weights": {"Zeros": 0.5},
    "gdpo": {
        "variant": "dvao",
        "whiten": "token",
        "conditions": {"Zeros": {"on": "Letters", "at_least": 0.2}},
    },
}
REJECTED = {
    "rloo": "--advantage_estimator: expected grpo, found rloo. GDPO computes",
    "kl": "--kl_in_reward: expected False, found True. The sum",
    "dynamic": "--dynamic_sample: expected False, found True. It replaces",
    "weights": "gdpo.gdpo_reward_weights: --reward_weights is set, too. Remove",
    "name": "gdpo.gdpo_reward_weights.zeros: 'zeros' is not among",
    "credit": "gdpo.gdpo.credit: reward functions return one number",
    "twice": "--reward_funcs: expected functions of distinct names",
    "several samples": "--multi_turn_scheduler: expected one sample",
    "megatron": "gdpo_verl.swift: expected the command swift rlhf",
}


def run_with_swift(*arguments, **variables):
    environment = os.environ | {
        "PYTHONPATH": f"{SWIFT}{os.pathsep}{ROOT}",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    done = subprocess.run(
        [sys.executable, *arguments],
        env=environment | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def steps_of(out):
    """Return the metrics that ms-swift logged at each step."""
    lines = (out / "logging.jsonl").read_text().splitlines()
    return [entry for entry in map(json.loads, lines) if "loss" in entry]


def batches_of(out):
    """Return the responses of each step, with their rewards and advantages."""
    batches = {}
    for line in (out / "completions.jsonl").read_text().splitlines():
        batch = json.loads(line)
        batches[batch["step"][0]] = batch  # ms-swift writes the last batch twice
    return list(batches.values())


def check(batch, names, config):
    """Compute the advantages of a logged batch, and compare them with the logged ones."""
    rewards = []
    for row in zip(*(batch[name] for name in names), strict=True):
        scored = [None if value is None or math.isnan(value) else round(value, 6) for value in row]
        rewards.append(dict(zip(names, scored, strict=True)))
    groups = [row // 4 for row in range(len(rewards))]
    expected = advantages_of(rewards, groups, batch["response_tokens"], config=config)
    assert len(expected) == 8
    assert batch["advantages"] == pytest.approx(expected, abs=1e-5)
    assert any(expected)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    program = str(ROOT / "tests/swift_step.py")
    return made_once(
        tmp_path_factory, "swift_trainer", lambda out: run_with_swift(program, str(out))
    )


def test_metrics_are_logged_and_read(results):
    for step in steps_of(results / "steps"):
        assert 0 < step["gdpo/Zeros/advantage_share"] < 1
        assert math.isfinite(step["gdpo/variant/dvao/agrees_with_gdpo"])
        # Only a component with a range has a saturation.
        assert step["gdpo/Letters/saturation"] == pytest.approx(step["rewards/Letters/mean"])
        assert 0 < step["rewards/Letters/mean"] < 1
    run = read_run(results / "steps")  # this is how the report reads a run
    assert run.training_steps == [1, 2]
    assert sorted(run.components) == ["Ends", "Letters", "Zeros"]


@pytest.mark.parametrize(("name", "message"), REJECTED.items())
def test_arguments_and_settings_that_do_not_fit_are_rejected(results, name, message):
    errors = json.loads((results / "errors.json").read_text())
    assert errors.keys() == REJECTED.keys()
    assert errors[name].startswith(message)


def test_one_process_and_two_train_with_the_advantages_of_the_whole_batch(results, tmp_path):
    (tmp_path / "policy").symlink_to(results / "policy")
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    run_with_swift(*launcher, str(ROOT / "tests/swift_step.py"), str(tmp_path))
    batches = batches_of(tmp_path / "steps") + batches_of(results / "steps")
    assert len(batches) == 4
    for batch in batches:
        assert len(set(batch["response_tokens"])) > 1
        check(batch, ["Letters", "Zeros", "Ends"], SETTINGS)


MISFIT = """
from gdpo_verl.upstream import dependencies as upstream
here = upstream.violations
def violations(root, contract):
    contract["rlhf_trainers.grpo_trainer"].append(upstream.Dependency("GRPOTrainer._score"))
    return here(root, contract)
upstream.violations = violations
try:
    import gdpo_verl.swift
except RuntimeError as error:
    print(error)
"""


def test_an_ms_swift_that_does_not_fit_is_named():
    found = run_with_swift("-c", MISFIT)
    assert re.search(
        r"gdpo_verl\.swift does not fit ms-swift 4\.6\.0: "
        r"swift\.rlhf_trainers\.grpo_trainer\.GRPOTrainer\._score is not there\. Run: pip",
        found,
    )


def blocks(language):
    """Return the blocks of code in a language on the page for users."""
    page = (ROOT / "docs/ms_swift.md").read_text()
    return [token.content for token in documents.parse(page) if token.info == language]


@pytest.mark.real
def test_two_steps_of_the_page_train_an_adapter(tmp_path, monkeypatch):
    try:
        make_smollm2(tmp_path / "models/smollm2")
    except OSError as error:
        pytest.skip(str(error))
    monkeypatch.chdir(tmp_path)
    plugin, data = blocks("python")
    _, command = blocks("bash")
    (tmp_path / "plugin.py").write_text(plugin)
    command = command.replace("HuggingFaceTB/SmolLM2-135M-Instruct", "models/smollm2")
    words = shlex.split(command.replace("\\\n", ""))
    assert words[0] == "swift"
    run_with_swift("-c", data)
    run_with_swift("-m", "swift.cli.main", *words[1:])
    out = tmp_path / "runs/swift"
    settings = {
        "gdpo_reward_weights": {"Brief": 0.5},
        "gdpo": {"conditions": {"Brief": {"on": "Number", "at_least": 1}}},
    }
    batches = batches_of(out)
    assert len(batches) == 2
    assert len(steps_of(out)) == 2
    for batch in batches:
        check(batch, ["Correct", "Number", "Brief"], settings)
    for step in steps_of(out):
        assert step["grad_norm"] > 0
        assert step["gdpo/Brief/saturation"] > 0
