"""The choice of the steps and prompts whose rollouts are dumped.

verl dumps every response of every step (verl/trainer/ppo/v1/trainer_base.py, `fit` and
`_log_rollout_data`): for 65,000 rollouts a step that is more time than a step's update, and tens
of GB. Two keys of ours stand beside `trainer.rollout_data_dir`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gdpo_verl.row_key import RowKey

_KEYS = ("rollout_dump_freq", "rollout_dump_prompts")


@dataclass(frozen=True)
class DumpSettings:
    """The part of a run that is dumped.

    Attributes:
      every: `trainer.rollout_dump_freq`, in steps; 0 or less is never.
      prompts: `trainer.rollout_dump_prompts`, of each dumped step; None is all.
    """

    every: int = 1
    prompts: int | None = None

    @classmethod
    def of(cls, trainer: Any) -> DumpSettings:
        """Read verl's `trainer` node.

        Raises:
          ValueError: names the key in full.
        """
        every = trainer.get("rollout_dump_freq", 1)
        prompts = trainer.get("rollout_dump_prompts", None)
        if isinstance(every, bool) or not isinstance(every, int):
            raise ValueError(
                f"trainer.rollout_dump_freq: expected a number of steps (-1 for never), found "
                f"{every!r}"
            )
        if prompts is not None and (not isinstance(prompts, int) or prompts < 1):
            raise ValueError(
                f"trainer.rollout_dump_prompts: expected a number of prompts above 0, or null for "
                f"all, found {prompts!r}"
            )
        return cls(every if trainer.get("rollout_data_dir", None) else 0, prompts)

    def has(self, step: int) -> bool:
        """Tell whether the rollouts of this step are dumped."""
        return self.every > 0 and step % self.every == 0

    def chosen(self, keys: Sequence[str]) -> list[str]:
        """The rows of the prompts that are dumped, by verl's keys ``{uid}_{session}_{output}``.

        >>> DumpSettings(prompts=1).chosen(["b_0_0", "a_0_0", "b_1_0"])
        ['a_0_0']
        """
        uids = [RowKey.parse(key).uid for key in keys]
        chosen = set(sorted(set(uids))[: self.prompts])
        return [key for key, uid in zip(keys, uids, strict=True) if uid in chosen]


def log_rollout_data(original: Any, trainer: Any, *args: Any, **kwargs: Any) -> Any:
    """Take the place of verl's `_log_rollout_data`, which a run without our keys keeps."""
    if trainer.config.trainer.keys().isdisjoint(_KEYS):
        return original(trainer, *args, **kwargs)
    return _dump_some(original, trainer, *args, **kwargs)


def _dump_some(original: Any, trainer: Any, batch: Any, *args: Any, **kwargs: Any) -> None:
    dumps = DumpSettings.of(trainer.config.trainer)
    if dumps.has(trainer.global_steps):
        if dumps.prompts is not None:
            batch = batch.select_keys(dumps.chosen(batch.keys))
        original(trainer, batch, *args, **kwargs)
