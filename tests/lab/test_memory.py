"""Estimates of a run's memory, which never reject a run, and remedies when memory runs out."""

import pytest
from fake_verl import word_tokenizer
from omegaconf import OmegaConf
from transformers import Qwen2Config

from gdpo_verl.lab import dry_run
from gdpo_verl.lab.run.composition import compose
from gdpo_verl.lab.run.memory import Shape, load_shape, needs, remedy_for

BILLION = Shape(10**9, 150_000)
MODEL = "actor_rollout_ref.model"
ACTOR = "actor_rollout_ref.actor"
FSDP = f"{ACTOR}.fsdp_config"
ROWS = f"{ACTOR}.ppo_micro_batch_size_per_gpu"
PARTS = "actor_rollout_ref.rollout.tensor_model_parallel_size"
INFERS = "rollout.log_prob_max_token_len_per_gpu"


@pytest.mark.parametrize(
    ("hardware", "overrides", "expected"),
    [
        # In float32 there are 4 GB of weights, their gradients and two moments. vLLM has a copy in
        # bfloat16.
        ("gpu1", [], [4, 4, 8, 2]),
        ("gpu1", [f"{FSDP}.offload_policy=true"], [0, 0, 0, 2]),
        # LoRA trains no weights of the model.
        ("gpu24", [], [4, 2]),
        # The weights are divided into eight shards, and vLLM's copy into two parts.
        ("gpu8", [f"{PARTS}=2"], [0.5, 0.5, 1, 1]),
    ],
)
def test_the_memory_of_a_billion_weights_by_hand(hardware, overrides, expected):
    config = compose("tool_call/gdpo", [f"hardware={hardware}", *overrides])
    *state, _ = [size / 1e9 for _, size in needs(config, BILLION)]
    assert state == pytest.approx(expected)


@pytest.mark.parametrize(
    ("overrides", "tokens", "key"),
    [
        # The larger of the two limits counts. Without overrides one of them is 16,384.
        ([], 16384, "actor.ppo_max_token_len_per_gpu"),
        ([f"actor_rollout_ref.{INFERS}=32768"], 32768, INFERS),
        # A row has 2,048 tokens in the prompt and 1,024 in the response.
        ([f"{ACTOR}.use_dynamic_bsz=false", f"{ROWS}=2"], 2 * 3072, ROWS.partition(".")[2]),
    ],
    ids=["update", "log-probabilities", "rows"],
)
def test_the_memory_of_the_logits_of_one_micro_batch_by_hand(overrides, tokens, key):
    config = compose("tool_call/gdpo", ["hardware=gpu1", *overrides])
    *_, (what, size) = needs(config, BILLION)
    assert f"{tokens:,} tokens by actor_rollout_ref.{key}" in what
    assert size == tokens * 150_000 * 4


def test_the_shape_of_a_model_is_computed_from_its_configuration_alone(tmp_path):
    # A model without layers has one norm, and one matrix for both embeddings and output.
    sizes = {"vocab_size": 1000, "hidden_size": 64, "tie_word_embeddings": True}
    Qwen2Config(**sizes, num_hidden_layers=0).save_pretrained(tmp_path)
    model = OmegaConf.create({"path": str(tmp_path)})
    assert load_shape(model) == Shape(64 + 1000 * 64, 1000)
    for path in (str(tmp_path / "none"), None):
        assert load_shape(OmegaConf.create({"path": path})) is None


def test_a_dry_run_continues_after_its_first_problem(tmp_path):
    Qwen2Config(vocab_size=2, num_hidden_layers=1).save_pretrained(tmp_path)
    word_tokenizer("<eos>", "<unk>", "word").save_pretrained(tmp_path)
    overrides = ["hardware=cpu", f"{MODEL}.path={tmp_path}", f"{ACTOR}.use_prefix_grouper=false"]
    overrides += [f"{ACTOR}.use_dynamic_bsz=false", f"{ROWS}=48"]
    vocabulary, batch, *_ = dry_run.dry_run("toolbox/grpo", tmp_path / "run", overrides).problems
    assert vocabulary.startswith(f"{MODEL}.path: expected weights for every token, found 2 rows")
    assert batch == (
        f"{ROWS}: expected a divisor of the 128 responses of a device, found 48. Use 16, or set "
        f"{ACTOR}.use_dynamic_bsz=true."
    )


@pytest.mark.parametrize(
    ("error", "key"),
    [
        ("ValueError: No available memory for the cache blocks. Try", "gpu_memory_utilization"),
        (
            "ValueError: To serve at least one request with the models's max seq len (4096), 9 GiB "
            "KV cache is needed, which is larger than the available KV cache memory (1.0 GiB)",
            "max_model_len",
        ),
    ],
)
def test_errors_of_memory_have_a_remedy_with_its_key(error, key):
    assert key in (remedy_for(error) or "")
