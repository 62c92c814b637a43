"""Rollout dumps: additional columns, and the choice of steps and prompts.

verl dumps every response of every step (verl/trainer/ppo/v1/trainer_base.py, `fit` and
`_log_rollout_data`). With 65,000 rollouts per step a dump takes longer than the update, and tens of
GB. Two keys of the plug-in, next to `trainer.rollout_data_dir`, limit the dumps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gdpo_verl.advantage import GDPO
from gdpo_verl.config import Objective
from gdpo_verl.config.components import BY_CRITERION, BY_TURN, MINI_BATCH, TOKENS
from gdpo_verl.plugin.step.batch import RewardBatch
from gdpo_verl.reward_dicts import as_written, criteria_as_written
from gdpo_verl.upstream.row_key import RowKey

_KEYS = ("rollout_dump_freq", "rollout_dump_prompts")


@dataclass(frozen=True)
class DumpSettings:
    """The steps and the prompts that are dumped.

    Attributes:
      every: `trainer.rollout_dump_freq`, the number of steps from one dump to the next; 0 or less
        means that there are no dumps.
      prompts: `trainer.rollout_dump_prompts`, the number of prompts in a dump; None means all.
    """

    every: int
    prompts: int | None

    @classmethod
    def of(cls, trainer: Any) -> DumpSettings:
        """Read verl's `trainer` node.

        Raises:
          ValueError: a setting is wrong. The error names its key in full.
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
        """Return whether the rollouts of this step are dumped."""
        return self.every > 0 and step % self.every == 0

    def chosen(self, keys: Sequence[str]) -> list[str]:
        """Return the keys of the rows that are dumped. A key is ``{uid}_{session}_{output}``."""
        uids = [RowKey.parse(key).uid for key in keys]
        chosen_uids = set(sorted(set(uids))[: self.prompts])
        return [key for key, uid in zip(keys, uids, strict=True) if uid in chosen_uids]


def log_rollout_data(original: Any, trainer: Any, *args: Any, **kwargs: Any) -> Any:
    """Replace verl's `_log_rollout_data` in a run that sets one of our keys."""
    # Without our keys the arguments are passed on unchanged, so that verl reports wrong ones.
    if trainer.config.trainer.keys().isdisjoint(_KEYS):
        return original(trainer, *args, **kwargs)
    return _dump_some(original, trainer, *args, **kwargs)


def _dump_some(original: Any, trainer: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
    dumps = DumpSettings.of(trainer.config.trainer)
    if not dumps.has(trainer.global_steps):
        return None
    if dumps.prompts is not None:
        batch = batch.select_keys(dumps.chosen(batch.keys))
    return original(trainer, batch, *args, **kwargs)


class Dump:
    """The columns that we add to a rollout dump.

    They are the components, the number of response tokens, and the advantages of GDPO, of GRPO, and
    of a variant if one is configured. These columns are added in special cases:

    - verl dumps the rows of a step together, after all of its mini-batches. If there are several
      mini-batches, a column has the number of the mini-batch with which the row was whitened.
    - A per-turn component has a column with its list, in addition to the column with its sum.
    - If each turn has its own advantage, the token counts and the advantage that trains the model
      also have a column with a list. The number in their other column is the sum of the tokens, or
      the mean of the advantage over the tokens of the response.
    - A component by criterion has a column with its mapping, in addition to its number.
    """

    def __init__(self, objective: Objective) -> None:
        variant = objective.config.chosen_variant
        self.variant = "" if variant is GDPO else f"{variant.name}_advantage"
        self.names = [*objective.keys, TOKENS, "gdpo_advantage", "grpo_advantage"]
        self.names += [self.variant] if self.variant else []
        self._step = -1
        self._mini_batches = 0
        self._rows: dict[str, dict[str, Any]] = {}  # the columns of each row, by verl's key

    def keep(self, batch: RewardBatch) -> None:
        """Keep the rows of one mini-batch of a step."""
        decomposition = batch.decomposition
        global_step = batch.rows.global_step
        if global_step != self._step:
            self.clear()  # rows of an earlier step that the trainer did not dump
            self._step = global_step
        trained = batch.trained.advantage
        gdpo = decomposition.gdpo if self.variant else trained
        of_sessions = [gdpo, decomposition.grpo]
        if self.variant:
            of_sessions.append(trained)
        tokens = decomposition.token_counts
        assert tokens is not None, "the default trainer passes the response mask"
        sessions = batch.sessions
        columns = [sessions.to_rows(numbers) for numbers in (tokens, *of_sessions)]
        table = torch.cat([batch.raw, torch.stack(columns, dim=1)], dim=1)[sessions.real].tolist()
        lists = self._lists(batch)
        real = sessions.real.tolist()
        of_real = sessions.of_real.tolist()
        for row, session, numbers in zip(real, of_real, table, strict=True):
            entry: dict[str, Any] = dict(zip(self.names, as_written(numbers), strict=True))
            entry |= {name: column[session] for name, column in lists.items()}
            entry[MINI_BATCH] = self._mini_batches
            self._rows[batch.rows.keys[row]] = entry
        self._mini_batches += 1

    def _lists(self, batch: RewardBatch) -> dict[str, list[Any]]:
        """Return the columns of lists and of mappings for each session."""
        lists: dict[str, Sequence[Any]] = dict(batch.turn_lists)
        by_turn = batch.by_turn
        if by_turn is not None:
            lists[TOKENS] = by_turn.turns.lists(by_turn.turns.tokens)
            lists[self.variant or "gdpo_advantage"] = by_turn.lists
        written: dict[str, list[Any]] = {}
        for name, column in lists.items():
            written[f"{name}{BY_TURN}"] = [turns and as_written(turns) for turns in column]
        for name, graded in batch.graded.items():
            mappings = [criteria_as_written(criteria) for criteria in graded]
            written[f"{name}{BY_CRITERION}"] = mappings
        return written

    def columns(self, row_keys: list[str]) -> dict[str, list[Any]]:
        """Return the columns of these rows. A value is None for padding, and if it is not scored.

        The result is empty if none of these rows was kept.
        """
        if self._rows.keys().isdisjoint(row_keys):
            return {}
        names = list(next(iter(self._rows.values())))
        if self._mini_batches == 1:
            names.remove(MINI_BATCH)
        rows = [self._rows.get(key, {}) for key in row_keys]
        columns: dict[str, list[Any]] = {}
        for name in names:
            columns[name] = [row.get(name) for row in rows]
        return columns

    def move_into(self, infos: dict[str, Any]) -> dict[str, Any]:
        """Add our columns to verl's columns, and forget the rows.

        The columns of a validation dump are not changed, because its rows were not kept.
        """
        columns = self.columns(infos.get("uid", []))
        if columns:
            self.clear()
        return infos | columns

    def clear(self) -> None:
        """Forget all rows."""
        self._mini_batches = 0
        self._rows.clear()
