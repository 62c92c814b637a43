"""Settings that `gdpo-verl train` chooses for a pretrained model on `hardware=cpu`."""

import json

import pytest
from omegaconf import OmegaConf

from gdpo_verl.cpu import settings as cpu_settings
from gdpo_verl.cpu.settings import BUCKET
from gdpo_verl.lab.run.launch import composed

# As in the config.json of SmolLM2-135M-Instruct and of Qwen2.5-0.5B-Instruct.
SIZES = ("hidden_size", "num_hidden_layers", "vocab_size", "intermediate_size")
SMOLLM2 = dict(zip(SIZES, (576, 30, 49152, 1536), strict=True))
QWEN = dict(zip(SIZES, (896, 24, 151936, 4864), strict=True))
TINY = dict(zip(SIZES, (128, 4, 768, 384), strict=True))
SLIDING = SMOLLM2 | {"layer_types": ["full_attention", "sliding_attention"]}
ACTOR = "actor_rollout_ref.actor"
TOKENS = f"{ACTOR}.ppo_max_token_len_per_gpu"
SHARES = f"{ACTOR}.use_prefix_grouper"
BY_TOKENS = f"{ACTOR}.use_dynamic_bsz"
PACKS = "actor_rollout_ref.model.use_remove_padding"
LORA = "actor_rollout_ref.model.lora_rank=16"
KL = f"{ACTOR}.use_kl_loss"
IN_REWARD = "algorithm.use_kl_in_reward=true"
BYPASS = "algorithm.rollout_correction.bypass_mode"
OF_LOG_PROBS = "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu"
SYNC, ASYNC = (f"trainer.v1.trainer_mode={mode}" for mode in ("sync", "colocate_async"))
LENGTHS = ("data.max_prompt_length=128", "data.max_response_length=48")
GIB = 1 << 30


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """Set a machine of 24 GiB that computes in bfloat16."""
    monkeypatch.setattr(cpu_settings, "memory", lambda: 24 * GIB)
    monkeypatch.setattr(cpu_settings, "multiplies_bfloat16", lambda: True)


def chosen_for(tmp_path, model, *overrides):
    (tmp_path / "config.json").write_text(json.dumps(model))
    given = ["hardware=cpu", f"actor_rollout_ref.model.path={tmp_path}", *overrides]
    return composed("gsm8k/gdpo", tmp_path / "run", given)[0]


@pytest.mark.parametrize(
    ("model", "given", "expected"),
    [
        # float32 of the embedding: 49,152 x 576 x 4 bytes are 108 MiB, 151,936 x 896 x 4 are 519.3.
        # Prompts are shared where attention is full, and old log-probabilities are the rollout's
        # where its policy is trained.
        (SMOLLM2, [SYNC], {BUCKET: 108, SHARES: True, PACKS: True, BYPASS: True}),
        # An adapter's reference must not be the first forward; else its types are unknown.
        (SMOLLM2, [SYNC, LORA, f"{KL}=true"], {BYPASS: False}),
        (SMOLLM2, [SYNC, LORA, IN_REWARD], {BYPASS: False}),
        (SMOLLM2, [SYNC, LORA, f"{KL}=false"], {BYPASS: True}),
        # What is given wins.
        (QWEN, [ASYNC, f"{TOKENS}=2048"], {BUCKET: 520, BYPASS: False, TOKENS: 2048}),
        (SLIDING, LENGTHS, {SHARES: False, BY_TOKENS: True, TOKENS: 512, OF_LOG_PROBS: 512}),
        # The recipe's own values stay for another model.
        (TINY, [], {f"{ACTOR}.ppo_micro_batch_size_per_gpu": 64}),
        ({"model_type": "unknown"}, [], {f"{ACTOR}.ppo_micro_batch_size_per_gpu": 64}),
    ],
)
def test_settings_follow_from_the_model(tmp_path, model, given, expected):
    config = chosen_for(tmp_path, model, *given)
    assert {key: OmegaConf.select(config, key) for key in expected} == expected


def test_a_micro_batch_is_smaller_on_a_small_machine_and_holds_a_row(tmp_path, monkeypatch):
    def tokens(gib):
        monkeypatch.setattr(cpu_settings, "memory", lambda: int(gib * GIB))
        config = chosen_for(tmp_path, SMOLLM2, *LENGTHS)
        return config.actor_rollout_ref.actor.ppo_max_token_len_per_gpu

    assert 176 < tokens(7.5) < 512
    assert tokens(7) == 176


def test_a_model_larger_than_the_memory_is_refused_with_what_it_takes(tmp_path, monkeypatch):
    monkeypatch.setattr(cpu_settings, "memory", lambda: 8 * GIB)
    cpu_settings.check_memory(chosen_for(tmp_path, SMOLLM2))

    # 508 million weights by 20 bytes, and 4 GiB for everything else.
    with pytest.raises(ValueError, match=r"model.path: .* 8.0 GiB of memory, found .* 13.5 GiB"):
        cpu_settings.check_memory(chosen_for(tmp_path, QWEN))


@pytest.mark.parametrize(("hardware", "dtype"), [(True, "bfloat16"), (False, "float32")])
def test_numbers_are_those_that_the_processor_multiplies(tmp_path, monkeypatch, hardware, dtype):
    monkeypatch.setattr(cpu_settings, "multiplies_bfloat16", lambda: hardware)
    config = chosen_for(tmp_path, SMOLLM2)

    assert config.actor_rollout_ref.actor.fsdp_config.dtype == dtype
    assert config.actor_rollout_ref.rollout.dtype == dtype


def test_hub_that_is_out_of_reach_is_asked_once(monkeypatch):
    asked = []

    def out_of_reach(*_, **__):
        asked.append(1)
        raise ConnectionError

    monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", out_of_reach)
    monkeypatch.setattr("transformers.PretrainedConfig.get_config_dict", out_of_reach)
    assert cpu_settings._read_config("models/tolbox") == {}
    assert len(asked) == 1
