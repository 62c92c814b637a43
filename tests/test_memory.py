"""Whether a model fits: by hand, by PyTorch's tracker, through verl's configuration."""

from __future__ import annotations

import copy
import functools
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from omegaconf import DictConfig, OmegaConf
from transformers import Qwen2Config
from verl_step import count_bytes

from gdpo_verl.dry_run import CARDS
from gdpo_verl.plugin.validation import check_run
from gdpo_verl.run import activations, memory
from gdpo_verl.run.activations import Shape
from gdpo_verl.run.composition import compose

BILLION = 10**9
MODEL = "actor_rollout_ref.model"
FSDP = "actor_rollout_ref.actor.fsdp_config"

# Sizes of the recipes' models, as their configurations on the hub give them.
QWEN_1_5B = Shape(1_543_714_304, 28, 1536, 8960, 151936)
QWEN_3B = Shape(3_085_938_688, 36, 2048, 11008, 151936)
R1_1_5B = Shape(1_777_088_000, 28, 1536, 8960, 151936)
R1_7B = Shape(7_615_616_512, 28, 3584, 18944, 152064)
OF_RECIPE = {
    "tool_call": QWEN_1_5B,
    "gsm8k": QWEN_1_5B,
    "math_length": R1_1_5B,
    "code": R1_7B,
}


def state(config: DictConfig) -> list[float]:
    """Of a billion weights: in log-probabilities, in an update, vLLM's, and beside vLLM; in GB."""
    shape = Shape(BILLION, 1, 1, 1, 1)
    found = [bound.needed for bound in memory.gpu_bounds(config, shape, 80 * memory.GIB)]
    for place, phase in enumerate(("log_prob", "update")):
        found[place] -= activations.work(config, shape, phase).total
    return [needed / BILLION for needed in found]


def test_full_training_takes_sixteen_bytes_a_weight_and_stays_with_twelve() -> None:
    # float32: weight, gradient and two moments, 16 GB; vLLM's bfloat16 copy 2 GB; without the
    # gradient 12 GB remain in log-probabilities and while vLLM samples.
    found = state(compose("tool_call/gdpo", ["hardware=gpu1"]))
    assert found == pytest.approx([12, 16, 2, 12])


def test_eight_devices_share_training_and_tensor_parallelism_shares_sampling() -> None:
    parallel = "actor_rollout_ref.rollout.tensor_model_parallel_size=2"
    config = compose("tool_call/gdpo", ["hardware=gpu8", parallel])
    assert state(config) == pytest.approx([1.5, 2, 1, 1.5])
    config.actor_rollout_ref.actor.fsdp_config.fsdp_size = 4
    assert state(config) == pytest.approx([3, 4, 1, 3])


def test_lora_half_precision_and_offloading_lower_what_is_needed() -> None:
    # LoRA trains no weight of the model: 4 bytes each, kept in the machine's memory in between.
    assert state(compose("tool_call/gdpo", ["hardware=gpu24"])) == pytest.approx([4, 4, 2, 0])
    half = compose("tool_call/gdpo", ["hardware=gpu1", f"{FSDP}.model_dtype=bfloat16"])
    assert state(half) == pytest.approx([6, 8, 2, 6])
    offloaded = compose("tool_call/gdpo", ["hardware=gpu1", f"{FSDP}.optimizer_offload=true"])
    assert state(offloaded) == pytest.approx([4, 16, 2, 4])


# --- a micro-batch's work, against PyTorch's own tracker ---------------------------------

# Of one kind the vocabulary dominates, as in the recipes' models; of the other the layers.
WIDE = Qwen2Config(
    vocab_size=16384,
    hidden_size=64,
    intermediate_size=256,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    tie_word_embeddings=True,
)
DEEP = Qwen2Config(
    vocab_size=64,
    hidden_size=128,
    intermediate_size=512,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    tie_word_embeddings=True,
)
# The bound may be this far from what is counted: 0.8 to 1.35 of it.
LOW, HIGH = 0.8, 1.35


@functools.cache
def composed(precision: str) -> DictConfig:
    dtype = f"+{FSDP}.mixed_precision.param_dtype={precision}"
    return compose("tool_call/gdpo", ["hardware=gpu1", dtype])


def counted_and_bound(
    shape: Qwen2Config, rows: list[int], phase: activations.Phase, dtype: torch.dtype, **how: Any
) -> tuple[int, float]:
    entropy = how.pop("entropy", phase == "log_prob")
    counted = count_bytes(
        shape, rows, dtype=dtype, update=phase == "update", entropy=entropy, **how
    )
    config = copy.deepcopy(composed("bf16" if dtype is torch.bfloat16 else "fp32"))
    config.actor_rollout_ref.actor.entropy_coeff = 0.001 * entropy
    config.actor_rollout_ref.model.use_fused_kernels = how.get("fused", False)
    config.actor_rollout_ref.actor.entropy_from_logits_with_chunking = how.get("chunked", False)
    config.actor_rollout_ref.model.use_remove_padding = how.get("packed", True)
    # As many rows of one length as there are.
    config.actor_rollout_ref.actor.use_dynamic_bsz = False
    config.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu = len(rows)
    config.actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu = len(rows)
    config.data.max_prompt_length, config.data.max_response_length = rows[0] - 8, 8
    sizes = Shape(
        shape.hidden_size * shape.vocab_size,
        shape.num_hidden_layers,
        shape.hidden_size,
        shape.intermediate_size,
        shape.vocab_size,
    )
    bound = activations.work(config, sizes, phase)
    # The tracker leaves out the weights, of which FSDP gathers this matrix.
    return counted, bound.total - sizes.hidden * sizes.vocabulary * dtype.itemsize


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
@pytest.mark.parametrize(
    ("phase", "how"),
    [
        pytest.param("log_prob", {}, id="log-probabilities"),
        pytest.param("log_prob", {"packed": False}, id="log-probabilities padded"),
        pytest.param("log_prob", {"fused": True}, id="log-probabilities fused"),
        pytest.param("log_prob", {"chunked": True}, id="log-probabilities chunked"),
        pytest.param("update", {}, id="update"),
        pytest.param("update", {"packed": False}, id="update padded"),
        pytest.param("update", {"fused": True}, id="update fused"),
        pytest.param("update", {"entropy": True}, id="update with entropy"),
        pytest.param("update", {"entropy": True, "packed": False}, id="with entropy padded"),
        pytest.param("update", {"entropy": True, "fused": True}, id="with entropy fused"),
    ],
)
def test_what_the_vocabulary_needs_is_what_pytorch_counts(
    phase: activations.Phase, how: dict[str, Any], dtype: torch.dtype
) -> None:
    counted, bound = counted_and_bound(WIDE, [24] * 4, phase, dtype, **how)
    assert LOW * counted < bound < HIGH * counted


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
@pytest.mark.parametrize("phase", ["log_prob", "update"])
def test_what_the_layers_need_is_what_pytorch_counts(
    phase: activations.Phase, dtype: torch.dtype
) -> None:
    # Many tokens, so that the gradients of so small a model do not count.
    counted, bound = counted_and_bound(DEEP, [96] * 8, phase, dtype)
    assert LOW * counted < bound < HIGH * counted


def test_padded_rows_are_counted_by_verls_own_partition() -> None:
    config = compose("tool_call/gdpo", ["hardware=gpu8"])
    packed = activations.micro_batch(config, "update")
    assert (packed.tokens, packed.span) == (16384, 16384)
    config.actor_rollout_ref.model.use_remove_padding = False
    padded = activations.micro_batch(config, "update")
    # verl limits the sum of the lengths, 3,072 at most; padding comes on top.
    assert 16384 < padded.tokens < 8 * 16384
    assert padded.span == 3072


# --- what fits ---------------------------------------------------------------------------


def bounds(recipe: str, hardware: str, shape: Shape, *overrides: str) -> list[memory.Bound]:
    config = compose(f"{recipe}/gdpo", [f"hardware={hardware}", *overrides])
    return list(memory.gpu_bounds(config, shape, int(CARDS[hardware] * memory.GIB)))


@pytest.mark.parametrize("hardware", CARDS)
@pytest.mark.parametrize("recipe", OF_RECIPE)
def test_each_recipe_fits_the_cards_that_it_claims(recipe: str, hardware: str) -> None:
    fits = all(bound.fits for bound in bounds(recipe, hardware, OF_RECIPE[recipe]))
    assert fits == (recipe != "code" or hardware in ("gpu8", "cluster"))


@pytest.mark.parametrize(
    ("hardware", "shape", "overrides", "fits"),
    [
        pytest.param("gpu24", QWEN_3B, [], True, id="3B with LoRA on 24 GB"),
        pytest.param("gpu24", R1_7B, [], False, id="7B with LoRA on 24 GB"),
        pytest.param("gpu1", QWEN_3B, [], False, id="3B on one GPU"),
        pytest.param("gpu1", QWEN_3B, [f"{FSDP}.optimizer_offload=true"], True, id="3B offloaded"),
        pytest.param("gpu1", R1_7B, [f"{FSDP}.optimizer_offload=true"], False, id="7B offloaded"),
        pytest.param("gpu1", R1_7B, [f"{MODEL}.lora_rank=32"], True, id="7B with LoRA"),
        pytest.param("gpu8", R1_7B, [], True, id="7B on eight GPUs"),
    ],
)
def test_hardware_recipes_fit_the_models_that_they_name(
    hardware: str, shape: Shape, overrides: list[str], fits: bool
) -> None:
    found = bounds("tool_call", hardware, shape, *overrides)
    assert all(bound.fits for bound in found) is fits


def test_the_former_defaults_are_refused_with_the_key_at_fault() -> None:
    plain = [f"{MODEL}.use_remove_padding=false", f"{MODEL}.use_fused_kernels=false"]
    limit = "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu"
    log_prob, update, *_ = bounds("tool_call", "gpu8", QWEN_1_5B, *plain, f"{limit}=32768")
    assert not log_prob.fits
    assert limit in log_prob.lower
    assert "use_remove_padding=true" in log_prob.lower
    assert "use_fused_kernels=true" in log_prob.lower
    assert not update.fits
    assert "actor_rollout_ref.actor.ppo_max_token_len_per_gpu" in update.lower


def test_shape_is_told_from_the_configuration_alone(tmp_path: Path) -> None:
    Qwen2Config(
        vocab_size=1000,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    ).save_pretrained(tmp_path)
    # A layer: q and o 64·64 (q with bias 64), k and v 64·32 with bias 32, three times 64·128 in
    # the MLP, two norms of 64; one more norm, and one matrix for both ends.
    layer = 2 * 64 * 64 + 64 + 2 * (64 * 32 + 32) + 3 * 64 * 128 + 2 * 64
    model = OmegaConf.create({"path": str(tmp_path)})
    assert activations.load_shape(model) == Shape(2 * layer + 64 + 1000 * 64, 2, 64, 128, 1000)
    assert activations.load_shape(OmegaConf.create({"path": str(tmp_path / "none")})) is None


def test_model_larger_than_the_machine_is_refused_before_ray_starts(tmp_path: Path) -> None:
    Qwen2Config(
        vocab_size=10**9, hidden_size=4096, num_hidden_layers=1, tie_word_embeddings=True
    ).save_pretrained(tmp_path / "huge")
    data = tmp_path / "data.parquet"
    pq.write_table(pa.table({"data_source": ["toolbox"]}), data)
    config = compose(
        "toolbox/gdpo",
        [
            f"{MODEL}.path={tmp_path / 'huge'}",
            f"data.train_files={data}",
            f"data.val_files={data}",
        ],
    )
    with pytest.raises(
        ValueError,
        match=r"actor_rollout_ref\.model\.path: .*4096\.\d+ billion "
        r"weights, does not fit: .* need on this machine at least \d+.* Take a smaller model",
    ):
        check_run(config)


@pytest.mark.parametrize(
    ("error", "key"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate", "ppo_max_token_len"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to", "log_prob_max_token_len_per_gpu"),
        ("ValueError: No available memory for the cache blocks. Try", "gpu_memory_utilization"),
        (
            "ValueError: To serve at least one request with the models's max seq len (4096), 9 GiB "
            "KV cache is needed, which is larger than the available KV cache memory (1.0 GiB)",
            "max_model_len",
        ),
    ],
)
def test_errors_of_memory_have_a_remedy_with_its_key(error: str, key: str) -> None:
    assert key in (memory.remedy_for(error) or "")
