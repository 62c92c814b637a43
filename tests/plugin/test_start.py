"""A model that cannot be loaded is rejected, whichever command starts the run."""

import httpx
import pytest
from huggingface_hub import errors
from omegaconf import OmegaConf
from processes import in_fresh_process

from gdpo_verl.lab.cli import main
from gdpo_verl.upstream import model as our_model
from gdpo_verl.upstream.model import check_lora, check_model, peft_without_fsdp1

KEY = "actor_rollout_ref.model.path"


def training(path, **model):
    judge = {"enable": False, "model_path": None}
    return OmegaConf.create(
        {
            "actor_rollout_ref": {"model": {"path": path, "hf_config_path": None, **model}},
            "reward": {"reward_model": judge},
        }
    )


@pytest.fixture
def toolbox_policy(tmp_path, monkeypatch):
    """Make a policy in models/toolbox of the working directory, as `make-policy` does."""
    policy = tmp_path / "models" / "toolbox"
    policy.mkdir(parents=True)
    (policy / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    return policy


@pytest.fixture
def hub(monkeypatch):
    """Simulate a hub that has three names, and cannot be reached for any other name."""
    refused = {"typo": errors.RepositoryNotFoundError, "gated": errors.GatedRepoError}

    def answer(url):
        name = url.split("/")[4]
        if name in refused:
            response = httpx.Response(404, request=httpx.Request("HEAD", url))
            raise refused[name](url, response=response)
        if name != "known":
            raise httpx.ConnectError(url)

    monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", answer)


@pytest.mark.usefixtures("toolbox_policy", "hub")
@pytest.mark.parametrize(
    ("path", "found"),
    [
        (None, r"found no config\.json in ''"),
        ("~/models/deepseek-llm-7b-chat", r"in '~/models/deepseek.*', verl's own default \("),
        ("~/models/toolbox", r"found '~/models/toolbox', in which verl does not replace the '~'"),
        ("/no/model", r"no config\.json in '/no/model' \(working directory /"),
        ("models/toolbox/", r"found 'models/toolbox/', at whose last slash verl stops"),
        ("models/toolbx", r"in 'models/toolbx' .*\. Did you mean 'toolbox'\? Set it to"),
        ("runs/mine/model", r"in 'runs/mine/model'"),
        ("mymodel/typo", r", and the hub has none for this machine \(RepositoryNotFoundError\)"),
        ("meta/gated", r", and the hub has none for this machine \(GatedRepoError\)"),
    ],
)
def test_a_model_that_does_not_exist_is_rejected(path, found):
    with pytest.raises(ValueError, match=rf"{KEY}: expected a model's directory or.*{found}"):
        check_model(training(path))


@pytest.mark.usefixtures("toolbox_policy", "hub")
@pytest.mark.parametrize(
    "path", ["models/toolbox", "models/known", "Qwen/Qwen2.5-0.5B", "gpt2", "hdfs://models/x"]
)
def test_a_model_that_exists_or_can_be_fetched_is_not_rejected(path):
    check_model(training(path))


def test_offline_the_cache_of_the_hub_decides(toolbox_policy):
    with pytest.raises(ValueError, match="nor in the hub's cache, and HF_HUB_OFFLINE does not"):
        check_model(training("models/cached"))
    # huggingface_hub stores the configuration of a model like this.
    cached = toolbox_policy.parents[1] / "cache" / "models--models--cached"
    for file, text in {"refs/main": "1" * 40, f"snapshots/{'1' * 40}/config.json": "{}"}.items():
        (cached / file).parent.mkdir(parents=True)
        (cached / file).write_text(text)
    check_model(training("models/cached"))


def test_the_configuration_and_the_reward_model_are_checked_too(toolbox_policy):
    check_model(training("/weights/alone", hf_config_path=str(toolbox_policy)))
    config = training("models/toolbox")
    config.reward.reward_model = {"enable": True, "model_path": "/no/judge"}
    with pytest.raises(ValueError, match=r"^reward\.reward_model\.model_path: .*'/no/judge'"):
        check_model(config)


@pytest.mark.usefixtures("toolbox_policy")
def test_a_run_on_other_machines_may_use_files_and_models_that_are_missing_here():
    for path in ("/shared/model", "Qwen/Qwen2.5-0.5B", "~/models/toolbox", "models/toolbox"):
        check_model(training(path), elsewhere=True)
    for path in ("models/toolbx", "~/models/other", "./other"):
        with pytest.raises(ValueError, match=r"no config\.json in"):
            check_model(training(path), elsewhere=True)


@pytest.mark.parametrize("command", [["train"], ["train", "--dry-run"], ["submit"]], ids=" ".join)
def test_a_missing_model_is_reported_before_anything_starts(tmp_path, capsys, command):
    run = tmp_path / "run"
    assert main([*command, "toolbox/grpo", "--run", str(run)]) == 1
    printed = "".join(capsys.readouterr())
    assert f"{KEY}: expected a model's directory or a hub id, found no config.json" in printed
    # otherwise the corrected path would differ from the path in config.yaml
    assert not (run / "config.yaml").exists()


def test_lora_under_fsdp1_is_rejected_with_a_peft_that_loses_the_adapter(monkeypatch):
    def check(strategy, rank=8, merge=False):
        adapter = {"lora_rank": rank, "lora": {"merge": merge}}
        actor = {"strategy": strategy}
        check_lora(OmegaConf.create({"actor_rollout_ref": {"model": adapter, "actor": actor}}))

    monkeypatch.setattr(our_model, "version", lambda name: "0.20.0")
    check("fsdp")
    monkeypatch.setattr(our_model, "version", lambda name: "0.21.0")
    check("fsdp2")
    check("fsdp", rank=0)
    check("fsdp", merge=True)
    with pytest.raises(ValueError, match=r"^actor_rollout_ref\.actor\.strategy: .*fsdp2 for LoRA"):
        check("fsdp")


# One process with one shard is enough, because the names of the weights do not depend on their
# number.
ADAPTER = """
import json, torch
from peft import LoraConfig, get_peft_model
from torch.distributed.fsdp import FullyShardedDataParallel
from transformers import LlamaConfig, LlamaForCausalLM
from verl.utils import fsdp_utils
sizes = dict.fromkeys(("hidden_size", "intermediate_size", "vocab_size"), 16)
heads = dict.fromkeys(("num_attention_heads", "num_key_value_heads", "num_hidden_layers"), 1)
adapter = LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM")
model = get_peft_model(LlamaForCausalLM(LlamaConfig(**sizes, **heads)), adapter)
store = torch.distributed.HashStore()
torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
policy = fsdp_utils.get_fsdp_wrap_policy(module=model, is_lora=True)
cpu = torch.device("cpu")
model = FullyShardedDataParallel(model, auto_wrap_policy=policy, device_id=cpu)
print("@" + json.dumps(len(fsdp_utils.collect_lora_params(model, False, True))))
"""


@pytest.mark.slow
def test_the_installed_peft_loses_the_adapter_under_fsdp1():
    assert (in_fresh_process(ADAPTER) == 0) == (peft_without_fsdp1() is not None)
