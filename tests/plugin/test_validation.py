"""Runs that are rejected before the first rollout, through verl's configuration and validation."""

from __future__ import annotations

import copy
import random
import re
from types import SimpleNamespace
from typing import Any

import datasets
import fake_verl
import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from gdpo_verl.plugin.checks import batches, validation
from gdpo_verl.plugin.checks.checks import Moment, Run, check_run
from gdpo_verl.plugin.step.trainer import hooks_of

REWARDS = """
from gdpo_verl.rewards import Component, declares

def raises(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    return {"score": 1 / len(solution_str)}

def good(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    return {"score": 2.0, "format": 1.0, "correctness": 1.0, "note": "text"}

def swallows(data_source, solution_str, ground_truth, extra_info=None, *, limit=1, **kwargs):
    return {"score": 1.0, "format": 1.0}

def other(text, truth, **kwargs):
    return {"score": 1.0, "format": 1.0}

async def by_source(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    assert data_source != "raises"
    extra = {"detail": {"a": 1}} if data_source == "dict" else {}
    return 1.0 if data_source == "bare" else {"score": 1.0, "format": 1.0, **extra}

def a_text(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    return {"score": "1.0", "format": 1.0}

@declares("a", Component("b", optional=True))
def optional(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    return {"score": 1.0, "a": 1.0}
"""
NAIVE = "reward.reward_manager.name=naive"
FORMAT = "+algorithm.gdpo_reward_keys=[format]"


@pytest.fixture
def compose(tmp_path):
    """Compose the configuration of a toolbox recipe, with one of REWARDS if it is named."""
    (tmp_path / "rewards.py").write_text(REWARDS)
    rows = tmp_path / "data.parquet"
    datasets.Dataset.from_dict({"data_source": ["toolbox"]}).to_parquet(rows)
    (tmp_path / "config.json").touch()

    def build(*overrides, recipe="gdpo", function=None):
        given = [f"data.train_files={rows}", f"data.val_files={rows}"]
        given.append(f"actor_rollout_ref.model.path={tmp_path}")
        if function:
            path = f"reward.custom_reward_function.path={tmp_path / 'rewards.py'}"
            given += [path, f"reward.custom_reward_function.name={function}", NAIVE]
        return fake_verl.compose(f"toolbox/{recipe}", *given, *overrides)

    return build


def validate(config):
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    validate_config(config, need_reference_policy(config), need_critic(config))


DERIVED = "++algorithm.gdpo.derived.x=pkg://group_functions"
RAMP = "{format: {from: 0.0, to: 1.0, steps: 5}}"
MICRO_BATCHES = (
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu",
)
ONE_AND_DIVIDED = [
    "actor_rollout_ref.rollout.n=1",
    f"{MICRO_BATCHES[0]}=16",
    f"{MICRO_BATCHES[1]}=16",
]
TWO = ["actor_rollout_ref.rollout.n=2", f"{MICRO_BATCHES[0]}=32"]
# A recipe, the settings, and the message. test_config.py tests settings that are wrong in any run.
REFUSED = [
    ("gdpo", ["algorithm.use_kl_in_reward=true"], r"algorithm\.use_kl_in_reward.*use_kl_loss"),
    (
        "grpo",
        ["data.max_prompt_length=1024", "actor_rollout_ref.rollout.max_model_len=256"],
        r"actor_rollout_ref\.rollout\.max_model_len: .*data\.max_prompt_length=1024, found 256",
    ),
    (
        "gdpo",
        ["actor_rollout_ref.model.path=/no/model"],
        r"actor_rollout_ref\.model\.path: expected a model's directory.*in '/no/model'",
    ),
    (
        "gdpo",
        ["reward.custom_reward_function.path=null"],
        r"reward\.custom_reward_function\.path: not set.*gdpo_components has no default",
    ),
    (
        "gdpo",
        ["reward.reward_manager.name=batch"],
        r"reward\.reward_manager: Unknown reward manager: batch, only "
        r"\['dapo', 'gdpo', 'gdpo_components', 'naive'",
    ),
    (
        "gdpo",
        ["+algorithm.gdpo.variant=corr_grpo", *TWO],
        r"actor_rollout_ref\.rollout\.n: the variant 'corr_grpo' .* groups of 2",
    ),
    ("gdpo", [f"{DERIVED}:absent"], r"algorithm\.gdpo\.derived\.x: cannot load 'absent'"),
    (
        "gdpo",
        [f"{DERIVED}:brevity", "trainer.use_v1=false"],
        r"algorithm\.gdpo\.derived: works only",
    ),
    ("gdpo", ["+algorithm.whiten=none"], r"algorithm\.whiten: .* Did you mean 'gdpo\.whiten'\?"),
    ("grpo", ["++algorithm.gdpo.conditoins={}"], r"algorithm\.gdpo\.conditoins: .*'conditions'"),
    ("grpo", ["++gdpo={whiten: none}"], r"gdpo: unknown key\. .* under algorithm\.gdpo"),
    (
        "grpo",
        ["++algorithm.gdpo_reward_weights={fromat: 2}"],
        r"algorithm\.gdpo_reward_weights\.fromat: .*mean 'format'",
    ),
    (
        "grpo",
        ["++custom_reward_function.path=mine.py"],
        r"custom_reward_function\.path: verl no longer reads .*Set reward\.custom_reward",
    ),
    (
        "grpo",
        ["++reward_model.reward_manager=naive"],
        r"reward_model\.reward_manager: verl no longer reads .*Set reward\.reward_manager\.name in",
    ),
    (
        "grpo",
        [f"++algorithm.gdpo.schedule={RAMP}"],
        r"algorithm\.gdpo\.schedule: .*algorithm\.adv_estimator=grpo",
    ),
]


@pytest.mark.parametrize(("recipe", "overrides", "message"), REFUSED)
def test_a_wrong_run_is_rejected_before_ray_starts(compose, recipe, overrides, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        validate(compose(*overrides, recipe=recipe))


ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
MICRO = "log_prob_micro_batch_size_per_gpu"
# The toolbox has 32 prompts in a step, 16 in a mini-batch, and 8 responses to each.
DIVIDED = [
    ([f"{ACTOR}.ppo_micro_batch_size_per_gpu=48"], r"actor\.ppo_micro_batch_size_per_gpu: .* 128 "),
    ([f"{ROLLOUT}.{MICRO}=96"], rf"{ROLLOUT}\.{MICRO}: .* 256 responses.* found 96\. Use 32, or"),
    (
        [f"{ACTOR}.use_kl_loss=true", f"actor_rollout_ref.ref.{MICRO}=5"],
        rf"actor_rollout_ref\.ref\.{MICRO}: .* found 5\. Use 1, ",
    ),
    # verl fills 24 prompts up to 2 mini-batches.
    (["data.train_batch_size=24", f"{ROLLOUT}.{MICRO}=192"], "the 256 responses"),
    (
        ["trainer.n_gpus_per_node=2", f"{ACTOR}.ppo_micro_batch_size_per_gpu=128"],
        "the 64 responses",
    ),
    (["trainer.n_gpus_per_node=3"], f"{ACTOR}.ppo_mini_batch_size: .* 3 devices.*multiple of 3"),
]
UNDIVIDED = [
    [],
    [f"{ACTOR}.ppo_micro_batch_size_per_gpu=128"],
    [f"{ACTOR}.ppo_micro_batch_size_per_gpu=48", f"{ACTOR}.use_dynamic_bsz=true"],
    [f"actor_rollout_ref.ref.{MICRO}=5"],  # there is no reference policy
    [
        f"{ROLLOUT}.{MICRO}=96",
        "algorithm.rollout_correction.bypass_mode=true",
    ],
    ["trainer.n_gpus_per_node=2", f"{ACTOR}.ulysses_sequence_parallel_size=2"],
    [f"{ACTOR}.ppo_micro_batch_size_per_gpu=48", "trainer.use_v1=false"],
    ["data.train_batch_size=24"],
    [f"{ACTOR}.ppo_micro_batch_size_per_gpu=48", "trainer.val_only=true"],
]


def plain(compose, overrides):
    """Set micro-batches of rows."""
    config = [f"{ACTOR}.use_dynamic_bsz=false", f"{ACTOR}.use_prefix_grouper=false"]
    return compose(*config, *overrides)


@pytest.mark.parametrize(("overrides", "message"), DIVIDED)
def test_a_batch_that_cannot_be_divided_is_rejected(compose, overrides, message):
    with pytest.raises(ValueError, match=message):
        validate(plain(compose, overrides))


@pytest.mark.parametrize("overrides", UNDIVIDED)
def test_a_batch_that_verl_can_divide_is_not_rejected(compose, overrides):
    config = plain(compose, overrides)
    batches.check(config)


def filtered(metric):
    return f"algorithm.filter_groups={{enable: true, metric: {metric}}}"


GATE = "+algorithm.gdpo.gate={on: correctness}"
CONDITIONS = "+algorithm.gdpo.conditions={format: {on: correctness, at_least: 1.0}}"
WEIGHTS = "+algorithm.gdpo_reward_weights={format: 2.0}"
OLD = "reward_model.reward_manager"


@pytest.mark.parametrize(
    ("recipe", "overrides", "warned"),
    [
        ("gdpo", [], None),
        ("gdpo", [filtered("components")], None),
        ("gdpo", [filtered("reward")], "metric=reward drops groups in which the score"),
        ("gdpo", [filtered("format")], "metric=format drops groups in which 'format' alone"),
        ("gdpo", [filtered("correctness"), GATE], None),
        # Old keys with the meaning of the new ones.
        ("gdpo", ["reward_model.enable=false", f"{OLD}=gdpo_components"], None),
        # A run without settings of gdpo-verl is not checked.
        ("grpo", [NAIVE, "reward.custom_reward_function.path=null", f"{OLD}=dapo"], None),
        ("grpo", ["+algorithm.gdpo.variant=dvao"], r"^algorithm\.gdpo\.variant: no effect"),
        ("grpo", [GATE], r"^algorithm\.gdpo\.gate: no effect"),
        (
            "grpo",
            [CONDITIONS, WEIGHTS, NAIVE],
            r"^algorithm\.gdpo\.conditions, algorithm\.gdpo_reward_weights: .*name=naive gives",
        ),
        ("grpo", [CONDITIONS], None),
        # Such a run may learn from a group of one response, as verl's GRPO does.
        (
            "gdpo",
            [*ONE_AND_DIVIDED, "+algorithm.gdpo.variant=pkg://own:own"],
            r"rollout\.n: .*'pkg://own:own' l",
        ),
        ("grpo", ONE_AND_DIVIDED, None),
        (
            "gdpo",
            ["algorithm.norm_adv_by_std_in_grpo=false"],
            r"algorithm\.norm_adv_by_std_in_grpo=false: .* makes no difference",
        ),
    ],
)
def test_a_run_that_can_start_warns_of_settings_without_effect_and_of_hidden_components(
    compose, caplog, recipe, overrides, warned, tmp_path, monkeypatch
):
    (tmp_path / "own.py").write_text("def own(d):\n    return d.combined\n")
    monkeypatch.syspath_prepend(tmp_path)
    validate(compose(*overrides, recipe=recipe))
    assert len(caplog.messages) == (warned is not None)
    assert all(re.search(str(warned), message) for message in caplog.messages)


# ---------------------------------------------------------------- the probe of the reward

ROW = {
    "data_source": "toolbox",
    "reward_model": {"ground_truth": '<tool_call>\n{"name": "a", "parameters": {}}\n</tool_call>'},
    "extra_info": {"index": 0},
}


class Rows(list):
    """A data set like verl's, with one row for each of these data sources."""

    tool_schemas: list[dict[str, Any]] | None = None

    def __init__(self, *sources):
        super().__init__(ROW | {"data_source": source} for source in sources)
        self.dataframe = datasets.Dataset.from_dict({"data_source": list(sources)})


@pytest.fixture(scope="module")
def tokenizer():
    from tokenizers.pre_tokenizers import Whitespace

    return fake_verl.word_tokenizer("<eos>", "<unk>", pre_tokenizer=Whitespace())


@pytest.fixture
def probe(compose, tokenizer):
    """Return the components that a probe finds, and the arguments for the first row."""

    def run(*overrides, train=(ROW,), held_out=(), tokens=None, **options):
        trainer = SimpleNamespace(
            config=compose(*overrides, **options),
            tokenizer=tokens or tokenizer,
            train_dataset=train,
            val_dataset=held_out,
        )
        found = Run(trainer.config, trainer)
        check_run(found, Moment.ROWS)
        return found.objective.keys, next(iter(found.returned.values()))

    return run


def test_the_probe_warns_of_a_thought_that_the_prompt_opens_and_of_an_unnamed_argument(
    probe, tokenizer, caplog
):
    thinker = copy.deepcopy(tokenizer)
    thinker.chat_template = "{{ messages[0].content }}<think>\n"
    rows = [ROW | {"raw_prompt": [{"role": "user", "content": "2 + 2?"}]}]
    passed_on = "+reward.custom_reward_function.reward_kwargs.another=false"
    probe(passed_on, NAIVE, train=rows, tokens=thinker)
    assert "reward.reward_manager.name=naive: the prompt ends in '<think>" in caplog.text
    assert "reward_kwargs.another: pkg://gdpo_verl.rewards.tool_call:compute_score" in caplog.text
    caplog.clear()
    probe(train=rows, tokens=thinker)
    probe(NAIVE, train=rows)
    assert caplog.text == ""


@pytest.mark.parametrize("kept", ["data.filter_overlong_prompts=true", "data.truncation=left"])
def test_prompts_that_verl_would_cut_are_rejected(probe, kept):
    rows = [ROW | {"raw_prompt": [{"role": "user", "content": "a " * n}]} for n in (4, 3, 5, 4)]
    assert probe("data.max_prompt_length=5", train=rows)
    # With data.truncation=left verl cuts prompts, and the check needs no call of the reward.
    for more in ("", "data.truncation=right", "reward.reward_model.enable=true"):
        with pytest.raises(ValueError, match=r"3 tokens for prompts of up to 5 \(3 of 4 tried are"):
            probe("data.max_prompt_length=3", *filter(None, [more]), train=rows)
    assert probe("data.max_prompt_length=3", kept, train=rows)


def test_schemas_of_tools_count_in_the_length_of_a_prompt(probe, tokenizer):
    writes_tools = copy.deepcopy(tokenizer)
    writes_tools.chat_template = "{{ tools }} {{ messages[0].content }}"
    rows = Rows("a")
    rows[0] |= {"raw_prompt": [{"role": "user", "content": "2 + 2?"}]}
    assert probe("data.max_prompt_length=16", train=rows, tokens=writes_tools)
    rows.tool_schemas = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
    with pytest.raises(ValueError, match=r"16 tokens for prompts of up to"):
        probe("data.max_prompt_length=16", train=rows, tokens=writes_tools)


UNSEEN = ["trainer.test_freq=-1", "trainer.val_before_train=false"]


@pytest.mark.parametrize(
    ("train", "held_out", "settings", "message"),
    [
        (["a", "a", "b"], ["a", "bare"], [], None),
        (["a"], ["a", "a", "raises"], [], r"row 2 of data\.val_files \(data source 'raises'\)"),
        (["a", "bare"], [], [], r"row 1 of data\.train_files .*expected .*found 1\.0\. "),
        (["a"], ["dict"], [], r"row 0 .*'detail' is {'a': 1} \(dict\), with which verl"),
        # Only a validation averages this value, and without a validation its rows are not read.
        (["dict"], ["a"], [], None),
        (["a"], ["raises"], UNSEEN, None),
    ],
)
def test_the_probe_tries_a_row_of_each_data_source_of_both_files(
    probe, train, held_out, settings, message
):
    rows = {"train": Rows(*train), "held_out": Rows(*held_out)}
    if message is None:
        assert probe(FORMAT, *settings, **rows, function="by_source")[0] == ("format",)
    else:
        with pytest.raises(ValueError, match=message):
            probe(FORMAT, *settings, **rows, function="by_source")


LIMIT = "+reward.custom_reward_function.reward_kwargs.limit=3"
LIMT = LIMIT.replace("limit", "limt")


@pytest.mark.parametrize(
    ("function", "override", "expected"),
    [
        (
            "raises",
            FORMAT,
            r"row 0 of data\.train_files \(data source None\), with an empty response: raised "
            r"ZeroDivisionError: division by zero \(.*rewards\.py:5\)",
        ),
        (
            "a_text",
            FORMAT,
            r"with an empty response: expected a finite number as its score, found '1\.0'\. ",
        ),
        ("good", "+algorithm.gdpo_reward_keys=[format,note]", "number, None or NaN for 'note'"),
        # Reward functions that verl cannot call as they are configured.
        ("swallows", LIMT, r"kwargs\.limt: .* Did you mean 'limit'\?"),
        ("other", LIMIT, "by name: missing a required argument: 'text'"),
        # A function of the whole group is tried on the result of the reward function.
        (None, f"{DERIVED}:verbosity", r"^algorithm\.gdpo\.derived\.x: .*KeyError: 'words'"),
    ],
)
def test_the_reward_is_called_once_before_the_first_rollout(probe, function, override, expected):
    with pytest.raises(ValueError, match=expected):
        probe(override, function=function)


# ---------------------------------------------------------------- whose run it is


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("algorithm.adv_estimator=gdpo", True),
        ("+algorithm.gdpo.metrics=true", True),
        ("+algorithm.gdpo_reward_keys=[a]", True),
        ("algorithm.filter_groups.metric=components", True),
        ("reward.reward_manager.name=gdpo_components", True),
        ("reward.custom_reward_function.path=pkg://gdpo_verl.rewards.tool_call", False),
        ("trainer.total_epochs=1", False),
    ],
)
def test_settings_that_make_a_run_one_of_gdpo_verl(compose, override, expected):
    stock = ["algorithm.filter_groups.metric=null", "reward.custom_reward_function.path=null"]
    assert validation.uses_plugin(compose(*stock, NAIVE, override, recipe="grpo")) is expected
    bare = {"algorithm": {"filter_groups": {"enable": False}}}  # verl's other sections are missing
    assert not validation.uses_plugin(OmegaConf.create(bare))


SEEDING = """
import random
import numpy, torch
from gdpo_verl.config.components import declares
for seed in (random.seed, numpy.random.seed, torch.manual_seed):
    seed(7)

@declares("a")
def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    return {"score": 0.0, "a": 0.0}
"""


def test_a_reward_file_does_not_change_the_trainers_random_state(compose, tmp_path):
    (tmp_path / "seeding.py").write_text(SEEDING)
    path = f"reward.custom_reward_function.path={tmp_path / 'seeding.py'}"
    config = compose(path, NAIVE, "+algorithm.gdpo.metrics=true", recipe="grpo")

    def states():
        numpys = np.random.get_state()[1].tolist()
        return [random.getstate(), numpys, torch.get_rng_state().tolist()]

    before = states()
    assert hooks_of(config) is not None
    assert states() == before


def test_a_reward_file_that_is_missing_or_exits_is_named(compose, tmp_path):
    path = tmp_path / "exits.py"
    path.write_text("import sys\nsys.exit('no licence')\n")
    faults = {
        path: r"cannot load .*SystemExit: no licence \(.*exits.py:2\)\. Correct this",
        tmp_path / "missing.py": r"module_path='.*missing.py'\. Give path=pkg://",
    }
    for file, fault in faults.items():
        config = compose(f"reward.custom_reward_function.path={file}")
        with pytest.raises(ValueError, match=fault):
            validation.objective_of(config)


def test_the_legacy_trainer_rejects_a_component_that_may_be_absent(compose):
    validate(compose(function="optional"))
    with pytest.raises(ValueError, match=r"gdpo_reward_keys: \['b'\] may be absent.*use_v1=true"):
        validate(compose("trainer.use_v1=false", function="optional"))
