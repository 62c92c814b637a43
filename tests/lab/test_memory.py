"""The advice when memory runs out, and a dry run with several problems."""

from __future__ import annotations

import pytest

from gdpo_verl.lab import dry_run
from gdpo_verl.lab.run.memory import remedy_for

MODEL = "actor_rollout_ref.model"
ACTOR = "actor_rollout_ref.actor"
ROWS = f"{ACTOR}.ppo_micro_batch_size_per_gpu"


def test_a_dry_run_goes_on_behind_its_first_problem(tmp_path):
    overrides = ["hardware=cpu", f"{MODEL}.path={tmp_path}", f"{ACTOR}.use_prefix_grouper=false"]
    overrides += [f"{ACTOR}.use_dynamic_bsz=false", f"{ROWS}=48"]
    model, batch, *_ = dry_run.dry_run("toolbox/grpo", tmp_path / "run", overrides).problems
    assert model.startswith(f"{MODEL}.path: expected a model's directory or a hub id, found")
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
