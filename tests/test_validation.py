"""What is refused before the first rollout, through verl's own configuration and validation."""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fake_verl
import pytest
from fake_verl import word_tokenizer
from omegaconf import DictConfig, OmegaConf

REWARDS = """
def good(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    return {"score": 2.0, "format": 1.0, "correctness": 1.0, "note": "text"}

def raises(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    return {"score": 1 / len(solution_str)}

def swallows(data_source, solution_str, ground_truth, extra_info=None, *, limit=1, **kwargs):
    return {"score": 1.0, "format": 1.0}

def named(data_source, solution_str, ground_truth, extra_info=None, *, limit=1):
    return {"score": 1.0, "format": 1.0}

def other(text, truth, **kwargs):
    return {"score": 1.0, "format": 1.0}

table = {}

def by_source(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    assert data_source != "raises"
    extra = {"detail": {"a": 1}} if data_source == "dict" else {}
    return 1.0 if data_source == "bare" else {"score": 1.0, "format": 1.0, **extra}

def a_text(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    return {"score": "1.0", "format": 1.0}

async def good_async(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    return {"score": 2.0, "format": 1.0, "correctness": None}
"""


@pytest.fixture
def compose(tmp_path: Path) -> Callable[..., DictConfig]:
    """The resolved configuration of a recipe whose data files and model exist."""
    (tmp_path / "rewards.py").write_text(REWARDS)
    write_rows(tmp_path / "data.parquet", ["toolbox"])
    (tmp_path / "config.json").touch()

    def build(*overrides: str, recipe: str = "toolbox/gdpo") -> DictConfig:
        files = [f"data.{key}={tmp_path / 'data.parquet'}" for key in ("train_files", "val_files")]
        model = f"actor_rollout_ref.model.path={tmp_path}"
        return fake_verl.compose(recipe, *files, model, *overrides)

    return build


def write_rows(path: Path, sources: list[str]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"data_source": pa.array(sources, pa.string())}), path)


def users(tmp_path: Path, name: str) -> list[str]:
    return [
        f"reward.custom_reward_function.path={tmp_path / 'rewards.py'}",
        f"reward.custom_reward_function.name={name}",
        "reward.reward_manager.name=naive",
    ]


def validate(config: DictConfig) -> None:
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    validate_config(config, need_reference_policy(config), need_critic(config))


# Refused in a run with GDPO.
INVALID = [
    ("+algorithm.gdpo.whitten=token", r"algorithm\.gdpo\.whitten: unknown.*mean 'whiten'"),
    (
        "+algorithm.gdpo.conditions={format:{on:correctness}}",
        r"algorithm\.gdpo\.conditions\.format: expected",
    ),
    ("algorithm.use_kl_in_reward=true", r"algorithm\.use_kl_in_reward.*use_kl_loss"),
    (
        "actor_rollout_ref.model.path=/no/model",
        r"actor_rollout_ref\.model\.path: expected a model's directory.*in '/no/model'",
    ),
    (
        "reward.reward_manager.name=batch",
        r"Unknown reward manager: batch, only \['dapo', 'gdpo', 'gdpo_components', 'naive'",
    ),
    (
        "reward.custom_reward_function.path=pkg://no.such.module",
        r"reward\.custom_reward_function: cannot load",
    ),
    (
        "reward.custom_reward_function.path=null",
        r"reward\.custom_reward_function\.path: not set.*gdpo_components has no default",
    ),
    (
        "reward.reward_manager.name=gdpo_component",
        r"reward\.reward_manager: Unknown reward manager",
    ),
    ("+algorithm.gdpo.variant=dvoa", r"algorithm\.gdpo\.variant: .* Did you mean 'dvao'"),
    (
        "+algorithm.gdpo.variant=pkg://broken_module:nan",
        r"algorithm\.gdpo\.variant: 'nan' failed on a batch of 9.*found nan",
    ),
    (
        "+algorithm.gdpo.variant=pkg://broken_module:nothing",
        r"algorithm\.gdpo\.variant: cannot load 'nothing'",
    ),
]
# Refused in a control, too.
INVALID_IN_BOTH = [
    ("+algorithm.gdpo.conditoins={}", r"gdpo\.conditoins: unknown key.*mean 'conditions'"),
    ("+algorithm.gdpo_reward_weight={format: 2}", r"weight: .*mean 'gdpo_reward_weights'"),
    ("+algorithm.gdpo_whiten=none", r"algorithm\.gdpo_whiten: .*mean 'gdpo\.whiten'"),
    ("+gdpo.whiten=none", r"gdpo: unknown key\. .* under algorithm\.gdpo"),
    ("+algorithm.gdpo_reward_keys=[output]", r"gdpo_reward_keys: 'output' cannot be"),
    ("+algorithm.gdpo_reward_weights={fromat: 2}", r"weights\.fromat: .*mean 'format'"),
    (
        "custom_reward_function.path=mine.py",
        r"^custom_reward_function\.path: .* Set reward\.custom_reward_function\.path instead",
    ),
    (
        "reward_model.reward_manager=naive",
        r"^reward_model\.reward_manager: .* Set reward\.reward_manager\.name instead",
    ),
    (
        "reward_model.model.path=judge",
        r"^reward_model\.model\.path: .* Set reward\.reward_model\.model_path instead",
    ),
    ("reward_model.rollout.name=vllm2", r"Set reward\.reward_model\.rollout\.name instead"),
    ("sandbox_fusion.url=http://box", r"Set reward\.sandbox_fusion\.url instead"),
]


@pytest.mark.parametrize(
    ("recipe", "override", "expected"),
    [
        *[("toolbox/gdpo", *each) for each in (*INVALID, *INVALID_IN_BOTH)],
        *[("toolbox/grpo", *each) for each in INVALID_IN_BOTH],
        (
            "toolbox/grpo",
            "+algorithm.gdpo.schedule={format: {from: 0.0, to: 1.0, steps: 5}}",
            r"algorithm\.gdpo\.schedule: .*algorithm\.adv_estimator=grpo",
        ),
    ],
)
def test_refused_before_ray_starts(
    compose: Callable,
    recipe: str,
    override: str,
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken = "def nan(d):\n    return d.combined * float('nan')\n"
    (tmp_path / "broken_module.py").write_text(broken)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "broken_module", raising=False)
    with pytest.raises(ValueError, match=expected):
        validate(compose(override, recipe=recipe))


def test_a_variant_without_groups_that_are_large_enough_is_refused(compose: Callable) -> None:
    pairs = ["+algorithm.gdpo.variant=corr_grpo", "actor_rollout_ref.rollout.n=2"]
    fits = "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=32"
    with pytest.raises(ValueError, match=r"rollout\.n: the variant 'corr_grpo' .* groups of 2"):
        validate(compose(*pairs, fits))


def test_reward_without_declaration_or_keys_is_refused(compose: Callable, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"algorithm\.gdpo_reward_keys: the reward declares no"):
        validate(compose(*users(tmp_path, "good")))


FILTER = "algorithm.filter_groups={{enable: true, metric: {}}}"


@pytest.mark.parametrize(
    ("overrides", "warned"),
    [
        ([], None),
        ([FILTER.format("components")], None),
        ([FILTER.format("reward")], "metric=reward drops groups in which the sum"),
        ([FILTER.format("format")], "metric=format drops groups in which 'format' alone"),
        ([FILTER.format("correctness"), "+algorithm.gdpo.gate={on: correctness}"], None),
        (
            [
                FILTER.format("correctness"),
                "+algorithm.gdpo.gate={on: correctness, when: failed}",
            ],
            "metric=correctness drops groups",
        ),
    ],
    ids=["no filter", "all components", "the sum", "one component", "the gate's", "failed alone"],
)
def test_group_filter_that_hides_components_is_warned_of(
    compose: Callable, caplog: pytest.LogCaptureFixture, overrides: list[str], warned: str | None
) -> None:
    validate(compose(*overrides))
    assert len(caplog.messages) == (warned is not None)
    assert all(str(warned) in message for message in caplog.messages)


def test_old_reward_keys_that_say_what_the_new_ones_do_are_no_fault(compose: Callable) -> None:
    validate(compose("reward_model.enable=false", "reward_model.reward_manager=gdpo_components"))


def test_a_run_that_names_nothing_of_ours_is_not_checked(compose: Callable) -> None:
    stock = ["reward.reward_manager.name=naive", "reward.custom_reward_function.path=null"]
    validate(compose(*stock, "reward_model.reward_manager=dapo", recipe="toolbox/grpo"))


@pytest.mark.parametrize(
    ("overrides", "warned"),
    [
        (["+algorithm.gdpo.variant=dvao"], r"^algorithm\.gdpo\.variant: no effect"),
        (["+algorithm.gdpo.gate={on: correctness}"], r"^algorithm\.gdpo\.gate: no effect"),
        (
            [
                "+algorithm.gdpo.conditions={format: {on: correctness, at_least: 1.0}}",
                "+algorithm.gdpo_reward_weights={format: 2.0}",
                "reward.reward_manager.name=naive",
            ],
            r"^algorithm\.gdpo\.conditions, algorithm\.gdpo_reward_weights: .*name=naive gives",
        ),
        (["+algorithm.gdpo.conditions={format: {on: correctness, at_least: 1.0}}"], None),
        (
            ["+reward.reward_kwargs.overlong_buffer_cfg={enable: true, len: 8}"],
            r"overlong_buffer_cfg: no effect with reward\.reward_manager\.name=gdpo_components",
        ),
    ],
)
def test_a_setting_without_effect_on_a_control_is_warned_of(
    compose: Callable, caplog: pytest.LogCaptureFixture, overrides: list[str], warned: str | None
) -> None:
    validate(compose(*overrides, recipe="toolbox/grpo"))
    assert len(caplog.messages) == (warned is not None)
    assert all(re.search(str(warned), message) for message in caplog.messages)


def test_a_filter_metric_that_the_reward_does_not_return_is_refused(compose: Callable) -> None:
    from gdpo_verl.plugin import validation

    returned = {"0": {"score": 1.0, "correctness": 1.0, "format": 0.0}}
    for metric in ("components", "reward", "score", "format"):
        config = compose(f"algorithm.filter_groups={{enable: true, metric: {metric}}}")
        validation.check_filter(config, returned)
    config = compose("algorithm.filter_groups={enable: true, metric: correctnes}")
    with pytest.raises(
        ValueError, match=r"^algorithm\.filter_groups\.metric: .*row 0\..*'correctness'\?$"
    ):
        validation.check_filter(config, returned)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from tokenizers.pre_tokenizers import Whitespace

    return word_tokenizer("<eos>", "<unk>", pre_tokenizer=Whitespace())


ROW = {
    "data_source": "toolbox",
    "reward_model": {"ground_truth": '<tool_call>\n{"name": "a", "parameters": {}}\n</tool_call>'},
    "extra_info": {"index": 0},
}


class Rows(list):
    """A data set as verl has it, of one row for each of these data sources."""

    def __init__(self, *sources: str) -> None:
        import datasets

        super().__init__(ROW | {"data_source": source} for source in sources)
        self.dataframe = datasets.Dataset.from_dict({"data_source": list(sources)})


def probe(
    config: DictConfig,
    tokenizer: object,
    train: list[dict] | None = None,
    held_out: list[dict] | None = None,
) -> object:
    from gdpo_verl.plugin import reward, validation

    trainer = SimpleNamespace(
        config=config,
        tokenizer=tokenizer,
        train_dataset=train or [ROW],
        val_dataset=held_out or [],
    )
    return validation.objective_of(config, reward.probe_reward(trainer))


def test_probe_finds_the_components_of_our_rewards(compose: Callable, tokenizer: object) -> None:
    assert probe(compose(), tokenizer).keys == ("format", "correctness")


def test_probe_warns_of_a_thought_that_the_prompt_opens_and_of_an_argument_passed_on(
    compose: Callable, tokenizer: object, caplog: pytest.LogCaptureFixture
) -> None:
    thinker = copy.deepcopy(tokenizer)
    thinker.chat_template = "{{ messages[0].content }}<think>\n"
    row = ROW | {"raw_prompt": [{"role": "user", "content": "2 + 2?"}]}
    passed_on = "+reward.custom_reward_function.reward_kwargs.another=false"
    probe(compose(passed_on, "reward.reward_manager.name=naive"), thinker, [row])
    assert "reward.reward_manager.name=naive: the prompt ends in '<think>" in caplog.text
    assert "reward_kwargs.another: pkg://gdpo_verl.rewards.tool_call:compute_score" in caplog.text
    caplog.clear()
    probe(compose(), thinker, [row])
    probe(compose("reward.reward_manager.name=naive"), tokenizer, [row])
    assert caplog.text == ""


def test_probe_tries_a_row_of_each_data_source_of_both_files(
    compose: Callable, tokenizer: object, tmp_path: Path
) -> None:
    config = compose(*users(tmp_path, "by_source"), "+algorithm.gdpo_reward_keys=[format]")
    assert probe(config, tokenizer, Rows("a", "a", "b"), Rows("a", "bare")).keys == ("format",)
    with pytest.raises(ValueError, match=r"row 2 of data\.val_files \(data source 'raises'\)"):
        probe(config, tokenizer, Rows("a"), Rows("a", "a", "raises"))
    with pytest.raises(ValueError, match=r"row 1 of data\.train_files .*expected .*found 1\.0\. "):
        probe(config, tokenizer, Rows("a", "bare"))
    with pytest.raises(ValueError, match=r"row 0 .*'detail' is {'a': 1} \(dict\), with which verl"):
        probe(config, tokenizer, Rows("a"), Rows("dict"))
    # Only a validation takes the mean of it, and without one nobody looks at its rows.
    assert probe(config, tokenizer, Rows("dict"), Rows("a")).keys == ("format",)
    without = compose(
        *users(tmp_path, "by_source"),
        *["+algorithm.gdpo_reward_keys=[format]", "trainer.test_freq=-1"],
        "trainer.val_before_train=false",
    )
    assert probe(without, tokenizer, Rows("a"), Rows("raises")).keys == ("format",)


def test_probe_runs_async_rewards(compose: Callable, tokenizer: object, tmp_path: Path) -> None:
    keys = "+algorithm.gdpo_reward_keys=[format,correctness]"
    config = compose(*users(tmp_path, "good_async"), keys)
    assert probe(config, tokenizer).keys == ("format", "correctness")


KWARGS = "+reward.custom_reward_function.reward_kwargs."


@pytest.mark.parametrize(
    ("function", "override", "expected"),
    [
        (
            "raises",
            "+algorithm.gdpo_reward_keys=[format]",
            r"row 0 of data\.train_files \(data source None\), with an empty answer: raised "
            r"ZeroDivisionError: division by zero \(.*rewards\.py:6\)",
        ),
        (
            "good",
            "+algorithm.gdpo_reward_keys=[format,corectness]",
            r"algorithm\.gdpo_reward_keys: 'corectness' is not among.*Did you mean 'correctness'",
        ),
        (
            "a_text",
            "+algorithm.gdpo_reward_keys=[format]",
            r"with an empty answer: expected a finite number as its score, found '1\.0'\. ",
        ),
        ("good", "+algorithm.gdpo_reward_keys=[format,note]", "number, None or NaN for 'note'"),
        # What verl cannot call as it is configured.
        ("swallows", f"{KWARGS}limt=3", r"kwargs\.limt: .* Did you mean 'limit'\?"),
        ("named", f"{KWARGS}limt=3", r"unexpected .* 'limt'\. .* Did you mean 'limit'"),
        ("other", f"{KWARGS}limit=3", "by name: missing a required argument: 'text'"),
        ("table", f"{KWARGS}limit=3", r"by name: \{\} is not a callable"),
    ],
)
def test_reward_is_called_once_before_the_first_rollout(
    compose: Callable,
    tokenizer: object,
    tmp_path: Path,
    function: str,
    override: str,
    expected: str,
) -> None:
    config = compose(*users(tmp_path, function), override)
    with pytest.raises(ValueError, match=expected):
        probe(config, tokenizer)


def test_manager_makes_the_score_the_weighted_sum(compose: Callable, tokenizer: object) -> None:
    from gdpo_verl.plugin.reward import probe_reward

    config = compose("+algorithm.gdpo_reward_weights={format:0.5,correctness:2}")
    trainer = SimpleNamespace(
        config=config, tokenizer=tokenizer, train_dataset=[ROW], val_dataset=[]
    )
    (returned,) = probe_reward(trainer).values()
    # An empty answer: format 0, correctness -3.
    assert (returned["format"], returned["correctness"]) == (0.0, -3.0)
    assert returned["score"] == 0.5 * 0.0 + 2 * -3.0


SEEDING = """
import random, sys
import numpy, torch
for seed in (random.seed, numpy.random.seed, torch.manual_seed):
    seed(7)
sys.modules["a_rewards_module_was_imported"] = sys

def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    return {"score": 0.0, "a": 0.0}
"""


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
def test_what_asks_for_anything_of_ours(compose: Callable, override: str, expected: bool) -> None:
    from gdpo_verl.plugin import validation

    config = compose(
        "algorithm.filter_groups.metric=null",
        "reward.reward_manager.name=naive",
        "reward.custom_reward_function.path=null",
        override,
        recipe="toolbox/grpo",
    )
    assert validation.uses_plugin(config) is expected
    bare = {"algorithm": {"filter_groups": {"enable": False}}}  # verl's other sections are absent
    assert not validation.uses_plugin(OmegaConf.create(bare))


@pytest.mark.parametrize("asked", [False, True], ids=["a stranger's", "one with our metrics"])
def test_a_reward_file_leaves_the_trainer_as_it_was(
    compose: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: bool
) -> None:
    import random

    import numpy as np
    import torch

    from gdpo_verl.plugin.trainer import seam_of

    path = tmp_path / "reward.py"
    path.write_text(
        "from gdpo_verl.rewards.components import declares\n"
        + SEEDING.replace("def compute", '@declares("a")\ndef compute')
    )
    config = compose(
        f"reward.custom_reward_function.path={path}",
        "reward.reward_manager.name=naive",
        *["+algorithm.gdpo.metrics=true"] * asked,
        recipe="toolbox/grpo",
    )

    def states() -> list[object]:
        return [
            random.getstate(),
            np.random.get_state()[1].tolist(),
            torch.get_rng_state().tolist(),
        ]

    monkeypatch.delitem(sys.modules, "a_rewards_module_was_imported", raising=False)
    before = states()
    assert (seam_of(config) is not None) is asked
    assert ("a_rewards_module_was_imported" in sys.modules) is asked
    assert states() == before


@pytest.mark.parametrize("estimator", ["gdpo", "grpo"])
def test_a_reward_file_that_exits_is_named(
    compose: Callable, tmp_path: Path, estimator: str
) -> None:
    from gdpo_verl.plugin import validation

    path = tmp_path / "reward.py"
    path.write_text("import sys\nsys.exit('no licence')\n")
    config = compose(f"reward.custom_reward_function.path={path}", recipe=f"toolbox/{estimator}")
    with pytest.raises(ValueError, match=r"cannot load .*SystemExit: no licence"):
        validation.objective_of(config)


def test_the_legacy_trainer_refuses_a_schedule(compose: Callable) -> None:
    from gdpo_verl.plugin import validation

    config = compose("+algorithm.gdpo.schedule={format: {from: 0.0, to: 1.0, steps: 5}}")
    validation.check_schedule(config)
    for key, value in {"trainer.use_v1": False, "rollout": {"nnodes": 1}}.items():
        other = copy.deepcopy(config)
        OmegaConf.update(other, key, value, force_add=True)
        with pytest.raises(ValueError, match=r"algorithm\.gdpo\.schedule: .*trainer\.use_v1=true"):
            validation.check_settings(other)


OPTIONAL = """
from gdpo_verl.rewards import Component, declares

@declares("a", Component("b", optional=True))
def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    return {"score": 1.0, "a": 1.0}
"""


def test_the_legacy_trainer_refuses_a_component_that_may_be_absent(
    compose: Callable, tmp_path: Path
) -> None:
    (tmp_path / "optional.py").write_text(OPTIONAL)
    path = f"reward.custom_reward_function.path={tmp_path / 'optional.py'}"
    validate(compose(path))
    with pytest.raises(ValueError, match=r"gdpo_reward_keys: \['b'\] may be absent.*use_v1=true"):
        validate(compose(path, "trainer.use_v1=false"))
