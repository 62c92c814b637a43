"""The capacity of a set of rewards to teach a policy, from the policy's responses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from omegaconf import OmegaConf

from gdpo_verl.lab.replay.capacity import capacity
from gdpo_verl.lab.text import columns
from gdpo_verl.plugin.batch import RewardBatch


def capacity_of(config: Any, batch: RewardBatch) -> dict[str, Any]:
    """Return the capacity of a batch of a policy's responses at the run's group size."""
    prompts = OmegaConf.select(config, "data.train_batch_size")
    return capacity(
        batch.decomposition.rewards.tolist(),
        batch.group_ids,
        batch.rows.objective.keys,
        size=int(config.actor_rollout_ref.rollout.n),
        prompts_a_step=int(prompts or len(set(batch.group_ids))),
    )


def capacity_lines(measured: Mapping[str, Any]) -> Iterator[str]:
    """A table of group sizes, and sentences; nothing where no capacity was measured."""
    if not measured:
        return
    varies: Mapping[str, Mapping[str, float]] = measured["varies"]
    if not varies:
        yield (f"capacity: not known from {measured['answers']} responses to a prompt; sample more")
        return
    keys = list(next(iter(varies.values())))
    sizes = [f"n = {size}" for size in varies]
    rows: list[Sequence[str]] = [("groups that vary", *sizes)]
    for key in keys:
        shares_of_key = [f"{shares[key]:.1%}" for shares in varies.values()]
        rows.append((key, *shares_of_key))
    yield from columns(rows)
    if measured["teaches"] is None:
        yield (
            f"capacity at actor_rollout_ref.rollout.n={measured['size']}: not known from "
            f"{measured['answers']} responses to a prompt; sample more"
        )
    else:
        yield (
            f"capacity at actor_rollout_ref.rollout.n={measured['size']}: "
            f"{measured['teaches']:.1f} of {measured['rewards']} rewards"
        )
    yield from measured["rare"]
