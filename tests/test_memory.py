"""Whether a model fits, by hand-worked figures and through verl's own configuration."""

from __future__ import annotations

from pathlib import Path

import hydra
import pytest
from omegaconf import DictConfig, OmegaConf
from transformers import Qwen2Config

from gdpo_verl import memory
from gdpo_verl.checks import check_run

RECIPES = Path(__file__).parents[1] / "recipes"
BILLION = 10**9


def compose(*overrides: str, recipe: str = "tool_call/gdpo") -> DictConfig:
    with hydra.initialize_config_dir(str(RECIPES), version_base=None):
        return hydra.compose(recipe, list(overrides))


def gigabytes(config: DictConfig, weights: int) -> list[float]:
    """Training, sampling and both at once, on one GPU, in units of 1e9 bytes."""
    return [bound.needed / BILLION for bound in memory.gpu_bounds(config, weights, 80 * memory.GIB)]


def test_full_training_takes_sixteen_bytes_a_weight_and_stays_with_twelve() -> None:
    # float32: weight, gradient and two moments, 16 GB; vLLM's bfloat16 copy 2 GB; without the
    # gradient 12 GB remain while it samples.
    assert gigabytes(compose("hardware=gpu1"), BILLION) == pytest.approx([16, 2, 12])


def test_eight_devices_share_training_and_tensor_parallelism_shares_sampling() -> None:
    config = compose("hardware=gpu8", "actor_rollout_ref.rollout.tensor_model_parallel_size=2")
    assert gigabytes(config, 8 * BILLION) == pytest.approx([16, 8, 12])
    config.actor_rollout_ref.actor.fsdp_config.fsdp_size = 4
    assert gigabytes(config, 8 * BILLION) == pytest.approx([32, 8, 24])


def test_lora_half_precision_and_offloading_lower_what_is_needed() -> None:
    # LoRA trains no weight of the model: 4 bytes each, kept in the machine's memory in between.
    assert gigabytes(compose("hardware=gpu24"), BILLION) == pytest.approx([4, 2, 0])
    fsdp = "actor_rollout_ref.actor.fsdp_config"
    half = compose("hardware=gpu1", f"{fsdp}.model_dtype=bfloat16")
    assert gigabytes(half, BILLION) == pytest.approx([8, 2, 6])
    offloaded = compose("hardware=gpu1", f"{fsdp}.optimizer_offload=true")
    assert gigabytes(offloaded, BILLION) == pytest.approx([16, 2, 4])


@pytest.mark.parametrize(
    ("hardware", "gibibytes", "weights", "overrides", "fits"),
    [
        pytest.param("gpu24", 24, 3.09, [], True, id="3B with LoRA on 24 GB"),
        pytest.param("gpu24", 24, 7.62, [], False, id="7B with LoRA on 24 GB"),
        pytest.param("gpu1", 80, 1.54, [], True, id="1.5B on one GPU"),
        pytest.param("gpu1", 80, 3.09, [], False, id="3B on one GPU"),
        pytest.param(
            "gpu1",
            80,
            3.09,
            ["actor_rollout_ref.actor.fsdp_config.optimizer_offload=true"],
            True,
            id="3B on one GPU, its optimizer offloaded",
        ),
        pytest.param(
            "gpu1",
            80,
            7.62,
            ["actor_rollout_ref.actor.fsdp_config.optimizer_offload=true"],
            False,
            id="7B on one GPU, its optimizer offloaded",
        ),
        pytest.param(
            "gpu1",
            80,
            7.62,
            ["actor_rollout_ref.model.lora_rank=32"],
            True,
            id="7B with LoRA on one GPU",
        ),
        pytest.param("gpu8", 80, 7.62, [], True, id="7B on eight GPUs"),
    ],
)
def test_hardware_recipes_fit_the_models_that_they_name(
    hardware: str, gibibytes: int, weights: float, overrides: list[str], fits: bool
) -> None:
    config = compose(f"hardware={hardware}", *overrides)
    total = gibibytes * memory.GIB
    bounds = list(memory.gpu_bounds(config, int(weights * BILLION), total))
    assert all(bound.needed <= bound.available for bound in bounds) is fits


def test_weights_are_counted_from_the_configuration_alone(tmp_path: Path) -> None:
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
    assert memory.count_weights(model) == 2 * layer + 64 + 1000 * 64
    assert memory.count_weights(OmegaConf.create({"path": str(tmp_path / "none")})) is None


def test_model_larger_than_the_machine_is_refused_before_ray_starts(tmp_path: Path) -> None:
    Qwen2Config(
        vocab_size=10**9, hidden_size=4096, num_hidden_layers=1, tie_word_embeddings=True
    ).save_pretrained(tmp_path / "huge")
    data = tmp_path / "data.parquet"
    data.touch()
    config = compose(
        f"actor_rollout_ref.model.path={tmp_path / 'huge'}",
        f"data.train_files={data}",
        f"data.val_files={data}",
        recipe="toolbox/gdpo",
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
