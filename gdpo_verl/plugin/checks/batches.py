"""Check that verl can divide a batch among the devices, and into micro-batches on each device."""

from __future__ import annotations

import math
from typing import Any

from gdpo_verl.plugin.checks.validation import on_default_trainer

_ACTOR = "actor_rollout_ref"


def check(config: Any) -> None:
    """Reject a batch that verl's default trainer cannot divide.

    Without this check verl would fail in the first step. verl fills a batch up to complete
    mini-batches (verl/trainer/ppo/v1/trainer_base.py, `_balance_batch`). Without dynamic batches,
    the rows of each device must be divisible into micro-batches (verl/workers/engine/utils.py,
    `prepare_micro_batches`).

    Raises:
      ValueError: the batch cannot be divided. The error names the key and the number of responses.
    """
    if not on_default_trainer(config):
        return
    actor, rollout, ref = (config[_ACTOR][part] for part in ("actor", "rollout", "ref"))
    if actor.strategy not in ("fsdp", "fsdp2") or config.trainer.get("val_only", False):
        return
    devices = config.trainer.nnodes * config.trainer.n_gpus_per_node
    devices = max(1, devices // actor.get("ulysses_sequence_parallel_size", 1))
    trained = actor.ppo_mini_batch_size * rollout.n
    if trained % devices:
        raise ValueError(
            f"{_ACTOR}.actor.ppo_mini_batch_size: expected a mini-batch that can be split evenly "
            f"among {devices} devices, found {actor.ppo_mini_batch_size} × {_ACTOR}.rollout.n="
            f"{rollout.n} responses. Use a multiple of {devices // math.gcd(devices, rollout.n)}."
        )
    mode = config.trainer.v1.get(config.trainer.v1.trainer_mode) or {}
    sampled = config.data.train_batch_size // mode.get("parameter_sync_step", 1) * rollout.n
    unit = math.lcm(trained, devices)
    filled = math.ceil(sampled / unit) * unit
    sizes = {"actor.ppo": (actor.use_dynamic_bsz, actor.ppo_micro_batch_size_per_gpu, trained)}
    correction = config.algorithm.get("rollout_correction") or {}
    if not correction.get("bypass_mode", False):
        size = rollout.log_prob_micro_batch_size_per_gpu
        sizes["rollout.log_prob"] = (rollout.log_prob_use_dynamic_bsz, size, filled)
    # With LoRA the actor without its adapter is the reference policy.
    if actor.use_kl_loss and not config[_ACTOR].model.get("lora_rank", 0):
        size = ref.log_prob_micro_batch_size_per_gpu
        sizes["ref.log_prob"] = (ref.log_prob_use_dynamic_bsz, size, filled)
    for name, (is_dynamic, size, rows) in sizes.items():
        per_device = rows // devices
        if size and not is_dynamic and per_device % size:
            raise ValueError(
                f"{_ACTOR}.{name}_micro_batch_size_per_gpu: expected a divisor of the {per_device} "
                f"responses of a device, found {size}. Use {math.gcd(per_device, size)}, or set "
                f"{_ACTOR}.actor.use_dynamic_bsz=true."
            )
