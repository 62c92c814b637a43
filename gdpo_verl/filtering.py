"""DAPO's group filter on components: ``algorithm.filter_groups.metric=components``.

verl 0.9.1 drops a group when one metric, by default the summed reward, is the same in all of
its rows (verl/trainer/ppo/v1/replay_buffer.py, `_dapo_filtered_keys`). GDPO still learns from
such a group when its components vary, so under this metric a group is dropped only if every
component is constant in it.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from gdpo_verl.batch import RewardBatch
from gdpo_verl.checks import FILTER_METRIC
from gdpo_verl.config import Objective
from gdpo_verl.diagnostics import groups_that_vary
from gdpo_verl.hooks import wrap
from gdpo_verl.queue import fetch, reward_infos


def filter_by_components(replay_buffer: Any, objective: Objective | None) -> None:
    """Make `replay_buffer` know the metric `components`.

    Raises:
      ValueError: it is asked for, and the reward has no components.
    """
    # A custom sampler gets no metric from verl and filters as it likes.
    if getattr(replay_buffer, "filter_groups_metric", None) != FILTER_METRIC:
        return
    if objective is None:
        raise ValueError(
            f"algorithm.filter_groups.metric={FILTER_METRIC}: the reward declares no components, "
            "and none are named. Declare them with gdpo_verl.rewards.components.declares, or set "
            "algorithm.gdpo_reward_keys=[...]."
        )

    def filtered(original: Any, partition_id: str) -> tuple[set[str], Counter[float]]:
        if partition_id != "train":
            return set(), Counter()
        finished = replay_buffer.finished_keys[partition_id]
        known = replay_buffer._dapo_classification_cache[partition_id]
        for uid in known.keys() - finished:
            del known[uid]
        new = finished - known.keys()
        keys = [key for key in replay_buffer.partitions[partition_id] if key.split("_")[0] in new]
        known.update(dict.fromkeys(new) | _constant_groups(keys, partition_id, objective))
        constant = {uid: score for uid, score in known.items() if score is not None}
        return set(constant), Counter(constant.values())

    wrap(replay_buffer, "_dapo_filtered_keys", filtered)


def _constant_groups(keys: list[str], partition_id: str, objective: Objective) -> dict[str, float]:
    """The groups of several rows without a varying component, with their score."""
    if not keys:
        return {}
    infos = reward_infos(fetch(keys, partition_id, ["extra_fields"])["extra_fields"])
    uids = [key.split("_")[0] for key in keys]
    batch = RewardBatch(objective, infos, uids, keys)
    varies = groups_that_vary(batch.rewards[batch.last_rows], batch.group_ids)
    sizes = Counter(batch.group_ids)
    scores = dict(zip(uids, batch.score().tolist(), strict=True))
    return {uid: scores[uid] for uid in sizes if sizes[uid] > 1 and uid not in varies}
