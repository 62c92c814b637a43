"""Every recipe on every hardware: composed, known to verl, and fair to its control."""

import dataclasses
import functools
import re
from pathlib import Path

import fake_verl
import hydra
import pytest
import yaml
from hydra.utils import get_class
from omegaconf import OmegaConf
from transformers import Qwen2Config

from gdpo_verl.cpu.patches import name_vllm
from gdpo_verl.lab import catalog, dry_run
from gdpo_verl.lab.cli import main
from gdpo_verl.plugin.step.dumps import DumpSettings

RECIPES = Path(__file__).parents[2] / "recipes"
NAMES = sorted(
    str(file.relative_to(RECIPES).with_suffix("")) for file in RECIPES.glob("*/g[dr]po*.yaml")
)
HARDWARE = sorted(file.stem for file in (RECIPES / "hardware").glob("*.yaml"))
TASKS = sorted({name.split("/")[0] for name in NAMES})

# Mappings that verl hands on as they are, to us, a reward, Transformers, or Ray.
FREE = (
    "algorithm.gdpo",
    "reward.custom_reward_function.reward_kwargs",
    "actor_rollout_ref.model.override_config",
    "ray_kwargs.ray_init",
    # Ours, beside verl's trainer.rollout_data_dir.
    "trainer.rollout_dump_freq",
    "trainer.rollout_dump_prompts",
)

name_vllm()  # verl asks for vLLM's version when LoRA is on; the CPU build has another name


@functools.cache
def compose(name, hardware):
    files = [f"data.{key}=/dev/null" for key in ("train_files", "val_files")]
    return fake_verl.compose(name, f"hardware={hardware}", *files)


@functools.cache
def verls_own():
    with hydra.initialize_config_module("verl.trainer.config", version_base=None):
        return plain(hydra.compose("ppo_trainer"))


def plain(config):
    return OmegaConf.to_container(config, resolve=False)


def unknown_keys(node, known, path=""):
    """Keys that are neither in verl's configuration nor fields of the class it makes of it."""
    known = known if isinstance(known, dict) else {}
    fields = set(known)
    if "_target_" in known:
        fields |= {field.name for field in dataclasses.fields(get_class(known["_target_"]))}
    for key, value in node.items():
        where = f"{path}.{key}".lstrip(".")
        if where in FREE:
            continue
        if key not in fields:
            yield where
        elif isinstance(value, dict) and key in known:
            yield from unknown_keys(value, known[key], where)


# Each recipe and each kind of hardware; the other pairs are left to the slow tier.
PAIRS = [
    pytest.param(
        name,
        hardware,
        marks=[] if hardware == "cpu" or name.endswith("/gdpo") else pytest.mark.slow,
    )
    for name in NAMES
    for hardware in HARDWARE
]


@pytest.mark.parametrize(("name", "hardware"), PAIRS)
def test_composes_with_verls_keys_passes_its_validation_and_is_what_its_name_says(
    name, hardware, capsys, monkeypatch
):
    monkeypatch.setenv("RAY_ADDRESS", "a.cluster:6379")  # which has the GPUs and the model
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    config = compose(name, hardware)
    assert list(unknown_keys(plain(config), verls_own())) == []
    # So that the score is the sum that GDPO decouples (tests/plugin/test_reward_manager.py).
    assert config.reward.reward_manager.name == "gdpo_components"
    assert config.reward.custom_reward_function.path.startswith("pkg://gdpo_verl.rewards.")
    validate_config(config, need_reference_policy(config), need_critic(config))
    announced = capsys.readouterr().err.count("estimator 'gdpo' in place of verl 0.9.1's own")
    assert announced == ("gdpo" in name)
    # The published rules are the default; the strict ones, or conditions, are a sibling.
    task, recipe = name.split("/")
    if task in ("math_length", "instructions"):
        conditions = (config.algorithm.get("gdpo") or {}).get("conditions")
        assert bool(conditions) == recipe.endswith("_conditioned")
    elif task not in ("toolbox", "tool_turns"):
        strict = config.reward.custom_reward_function.reward_kwargs.strict
        assert strict == recipe.endswith("_strict")


@pytest.mark.parametrize("name", [name for name in NAMES if "/gdpo" in name])
def test_control_differs_in_the_estimator_and_the_name_alone(name):
    control = name.replace("/gdpo", "/grpo")
    run, other = (yaml.safe_load((RECIPES / f"{n}.yaml").read_text()) for n in (name, control))
    for config, recipe, estimator in ((run, name, "gdpo"), (other, control, "grpo")):
        assert config["algorithm"].pop("adv_estimator") == estimator
        assert config["trainer"].pop("experiment_name") == recipe.split("/")[1]
    assert run == other


@pytest.mark.parametrize("name", [name for name in NAMES if "/gdpo" in name])
@pytest.mark.parametrize("hardware", HARDWARE)
def test_dumps_are_off_where_they_would_be_more_than_a_few_gigabytes(name, hardware):
    config = compose(name, hardware).copy()
    config.trainer.rollout_data_dir = "rollouts"
    epoch = {"tool_call": 105, "gsm8k": 233}.get(name.split("/")[0], 100)
    steps = config.trainer.total_training_steps or epoch
    # Text is at most about 4 bytes for one token of a common tokenizer.
    tokens = config.data.max_prompt_length + config.data.max_response_length
    of_prompt = 4 * tokens * config.actor_rollout_ref.rollout.n
    everything = steps * config.data.train_batch_size * of_prompt
    dumps = DumpSettings.of(config.trainer)
    assert (0 < dumps.every <= steps) == (everything <= 3 * 2**30)


@pytest.mark.parametrize("hardware", HARDWARE)
@pytest.mark.parametrize("task", TASKS)
def test_a_dry_run_of_each_recipe_on_each_hardware(task, hardware, tmp_path):
    tiny = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4}
    Qwen2Config(vocab_size=413, hidden_size=128, **tiny).save_pretrained(tmp_path / "model")
    given = [f"hardware={hardware}", f"actor_rollout_ref.model.path={tmp_path / 'model'}"]
    given += [f"data.{key}={tmp_path}/{task}.parquet" for key in ("train_files", "val_files")]
    found = dry_run.dry_run(f"{task}/gdpo", tmp_path, given)
    text = found.to_text()
    assert "settings verl's validation and GDPO's passed" in text
    assert "memory   " in text
    (problem,) = found.problems  # nothing is prepared here
    assert problem.startswith("data.train_files: ")
    assert "does not exist here" in problem


def test_a_dry_run_finds_what_is_wrong_and_names_its_key(tmp_path, capsys):
    large = {"hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28}
    heads = {"num_attention_heads": 28, "num_key_value_heads": 4}
    Qwen2Config(vocab_size=151936, **large, **heads).save_pretrained(tmp_path / "model")
    # No data, and a KL penalty in the reward: no effect under GDPO. A small card is no fault.
    command = ["train", "tool_call/gdpo", "--dry-run", "--run", str(tmp_path / "run")]
    command += ["--card", "24", "hardware=gpu1", "algorithm.use_kl_in_reward=true"]
    command += [f"actor_rollout_ref.model.path={tmp_path / 'model'}"]
    command += [f"data.train_files={tmp_path}/rlla/train.parquet"]
    assert main(command) == 1
    printed = capsys.readouterr().out
    problems = [line for line in printed.splitlines() if line.startswith("PROBLEM")]
    assert any("algorithm.use_kl_in_reward: true has no effect" in line for line in problems)
    prepare = f"gdpo-verl prepare rlla --from FOLDER --out {tmp_path}/rlla"
    assert any("data.train_files: " in line and prepare in line for line in problems)
    assert "7.61 billion weights; one GPU, by --card: 24.0 GiB" in printed
    assert "these numbers reject no run" in printed
    assert "  weights in 1 shard(s): 28.4 GiB\n" in printed
    assert not any("actor_rollout_ref.model.path" in line for line in problems)
    assert (
        printed.splitlines()[-1]
        == f"Nothing was started. Correct {len(problems)} problem(s) first."
    )
    assert not (tmp_path / "run").exists()


# --- the READMEs -------------------------------------------------------------------------


@pytest.mark.parametrize("task", TASKS)
def test_a_readme_says_the_cost_prepares_what_its_recipe_reads_and_trains_both_arms(task):
    text = (RECIPES / task / "README.md").read_text(encoding="utf-8")
    cost = " ".join(text.partition("```")[0].partition("**Cost")[2].split())
    # Measured, with its machine; or the page says that nobody here ran it.
    assert "have not run it" in cost or ("cores" in cost and re.search(r"\d+ minutes", cost))
    first_block = re.search(r"```bash\n(.*?)```", text, re.DOTALL)[1]
    lines = first_block.splitlines()
    assert lines[0].startswith("scripts/setup.sh")
    assert lines[1] == "source .venv/bin/activate"
    (prepared,) = [line.split()[2] for line in lines if line.startswith("gdpo-verl prepare")]
    data = yaml.safe_load((RECIPES / task / "task.yaml").read_text())["data"]
    # Where it is written, with the prompts that fit.
    assert data["train_files"] == f"data/{prepared}/train.parquet"
    assert data["val_files"] == f"data/{prepared}/validation.parquet"
    assert catalog.DATA_SETS[prepared].max_prompt_length == data["max_prompt_length"]
    for arm in ("gdpo", "grpo"):
        assert any(line.startswith(f"scripts/train.sh {task}/{arm}") for line in lines)
