"""Rollout dumps: the columns that they get, and the choice of their steps and prompts.

verl dumps every response of every step (verl/trainer/ppo/v1/trainer_base.py, `fit` and
`_log_rollout_data`): for 65,000 rollouts a step that is more time than a step's update, and tens
of GB. Two keys of ours stand beside `trainer.rollout_data_dir`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gdpo_verl.advantage import GDPO
from gdpo_verl.config import Objective
from gdpo_verl.config.components import BY_TURN, MINI_BATCH, TOKENS
from gdpo_verl.plugin.batch import RewardBatch
from gdpo_verl.plugin.row_key import RowKey

_KEYS = ("rollout_dump_freq", "rollout_dump_prompts")


@dataclass(frozen=True)
class DumpSettings:
    """The part of a run that is dumped.

    Attributes:
      every: `trainer.rollout_dump_freq`, in steps; 0 or less is never.
      prompts: `trainer.rollout_dump_prompts`, of each dumped step; None is all.
    """

    every: int
    prompts: int | None

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
        """Return whether the rollouts of this step are dumped."""
        return self.every > 0 and step % self.every == 0

    def chosen(self, keys: Sequence[str]) -> list[str]:
        """The rows of the prompts that are dumped, by verl's keys ``{uid}_{session}_{output}``."""
        uids = [RowKey.parse(key).uid for key in keys]
        chosen = set(sorted(set(uids))[: self.prompts])
        return [key for key, uid in zip(keys, uids, strict=True) if uid in chosen]


def log_rollout_data(original: Any, trainer: Any, *args: Any, **kwargs: Any) -> Any:
    """Take the place of verl's `_log_rollout_data`, which a run without our keys keeps."""
    # A wrong call, too, goes through to verl.
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
    """The columns that a rollout dump gets: components, response tokens, advantages of each row.

    The advantages are GDPO's, GRPO's, and those of a variant where one is chosen. verl dumps a
    step's rows together when all its mini-batches are done; where there are several, a column
    says which one a row was whitened with. A component by turn has its list beside its sum, and so
    have the tokens and the advantage that trains where turns have their own: there the advantage
    is the mean over the response's tokens.
    """

    def __init__(self, objective: Objective, trains_turns: bool = False) -> None:
        self.trains_turns = trains_turns
        variant = objective.config.chosen_variant
        self.variant = "" if variant is GDPO else f"{variant.name}_advantage"
        self.names = [*objective.keys, TOKENS, "gdpo_advantage", "grpo_advantage"]
        self.names += [self.variant] if self.variant else []
        self._step = -1
        self._tables: list[torch.Tensor] = []
        self._rows: dict[str, int] = {}
        self._lists: dict[str, dict[str, list[Any]]] = {}  # by column and row

    def __len__(self) -> int:
        return len(self._rows)

    def keep(self, batch: RewardBatch) -> None:
        """Keep the rows of one mini-batch of a step."""
        decomposition = batch.decomposition
        global_step = batch.rows.global_step
        if global_step != self._step:
            self.clear()  # of a trainer that has not dumped its last step
            self._step = global_step
        trained = decomposition.advantage
        if self.trains_turns:
            trained = batch.turns.token_means(batch.by_turn.advantage)
        gdpo = decomposition.gdpo if self.variant else trained
        of_sessions = [gdpo, decomposition.grpo]
        if self.variant:
            of_sessions.append(trained)
        tokens = decomposition.token_counts
        if tokens is None:
            tokens = torch.full_like(decomposition.gdpo, torch.nan)
        columns = [batch.to_rows(each) for each in (tokens, *of_sessions)]
        table = torch.cat([batch.raw, torch.stack(columns, dim=1)], dim=1)[batch.real]
        for row, place in enumerate(batch.real.tolist(), start=len(self._rows)):
            self._rows[batch.rows.keys[place]] = row
        self._tables.append(table)
        self._keep_lists(batch)

    def _keep_lists(self, batch: RewardBatch) -> None:
        columns = {key: batch.turn_lists(key) for key in sorted(batch.rows.objective.by_turn)}
        if self.trains_turns:
            columns[TOKENS] = [*batch.turns.lists(batch.turns.tokens)]
            trained = batch.turns.lists(batch.by_turn.advantage)
            columns[self.variant or "gdpo_advantage"] = [*trained]
        sessions = batch.session_of_row.tolist()
        for name, lists in columns.items():
            kept = self._lists.setdefault(f"{name}{BY_TURN}", {})
            for row, session in zip(batch.real.tolist(), sessions, strict=True):
                turns = lists[session]
                if turns is not None:
                    kept[batch.rows.keys[row]] = [None if x != x else x for x in turns]

    def columns(self, row_keys: list[str]) -> dict[str, list[Any]]:
        """The columns of these rows, None for padding and what is not scored; empty for others."""
        if self._rows.keys().isdisjoint(row_keys):
            return {}
        # Padding is in no table: it gets the row behind them.
        nothing = torch.full((1, len(self.names)), torch.nan, dtype=torch.float64)
        table = torch.cat([*self._tables, nothing])[
            [self._rows.get(key, len(self._rows)) for key in row_keys]
        ]
        values = table.numpy().astype(object)
        values[table.isnan().numpy()] = None
        columns = {name: row.tolist() for name, row in zip(self.names, values.T, strict=True)}
        for name, lists in self._lists.items():
            columns[name] = [lists.get(key) for key in row_keys]
        if len(self._tables) > 1:
            numbers = [number for number, rows in enumerate(self._tables) for _ in rows]
            columns[MINI_BATCH] = [
                numbers[self._rows[key]] if key in self._rows else None for key in row_keys
            ]
        return columns

    def clear(self) -> None:
        """Forget all rows."""
        self._tables.clear()
        self._rows.clear()
        self._lists.clear()


def with_columns(
    dump: Dump, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Add the dump's columns to the arguments; validation's dump has its own."""
    # verl: _dump_generations(self, inputs, outputs, gts, scores, reward_extra_infos_dict, …)
    name = "reward_extra_infos_dict"
    place = 4
    given = kwargs[name] if name in kwargs else args[place]
    columns = dump.columns(given.get("uid", []))
    if not columns:
        return args, kwargs
    dump.clear()
    if name in kwargs:
        return args, kwargs | {name: given | columns}
    return (*args[:place], given | columns, *args[place + 1 :]), kwargs
