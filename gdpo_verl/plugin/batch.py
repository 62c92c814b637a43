"""A batch of rollouts as the estimator needs it: components by row, rows by session."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gdpo_verl import diagnostics
from gdpo_verl.advantage import Decomposition, Turns, decompose, turn_numbers
from gdpo_verl.advantage.checks import LARGEST
from gdpo_verl.config import Objective
from gdpo_verl.plugin.row_key import RowKey
from gdpo_verl.reward_dicts import (
    RewardErrors,
    check_unscored,
    decompose_by_turn,
    read_components,
    turns_of,
    unnested,
    weighted_sum,
)

# The largest share of a batch's responses that may be without a reward; above it training ends.
MOST_REWARD_ERRORS = 0.5
NEEDS_SEAM = (
    "needs what verl's default trainer alone shows us of a batch. Train with verl.trainer.main_ppo "
    "and trainer.use_v1=true, or do without."
)


def failed_judgement(info: Mapping[str, Any]) -> str:
    """The reason why verl's `rate_limited` manager has no reward for a row; '' where it has one.

    It then returns the score 0 and one of two more keys beside 'acc' (verl/experimental/
    reward_loop/reward_manager/limited.py, `run_single`); such a row is not scored.
    """
    if set(info) == {"timeout", "acc"}:
        return "timeout"
    return str(info["error"]) if set(info) == {"error", "acc"} else ""


def components_of_rows(
    infos: Sequence[Mapping[str, Any]], objective: Objective, rows: Sequence[str]
) -> Tensor:
    """Read the components from verl's `reward_extra_info` of each row, as `read_components`.

    A row without a judgement has none of the keys, which is no fault of the reward: NaN.
    """
    nothing = dict.fromkeys(objective.keys)
    judged = [nothing if failed_judgement(info) else info for info in infos]
    return read_components(judged, objective, rows)


@dataclass(frozen=True)
class RewardRows:
    """The rows of one advantage computation with their rewards, handed to the estimator.

    Attributes:
      objective: components, weights and settings.
      infos: what the reward returned for each row (verl's `reward_extra_info`).
      keys: verl's names of the rows.
      padding: the rows that verl added to fill the batch; empty where there are none.
      masks: the response mask of each row as it was sampled, for what needs lengths; verl's
        rollout correction may have emptied the one that an estimator gets. Without them no derived
        component is scored.
      global_step: of the training, for scheduled weights.
    """

    objective: Objective
    infos: Sequence[Mapping[str, Any]]
    keys: Sequence[str]
    padding: Sequence[bool] = ()
    global_step: int = 0
    masks: Sequence[Tensor] | None = None


@dataclass(frozen=True, eq=False)
class RewardBatch:
    """The rows of one advantage computation, joined to sessions, and their decomposition.

    verl names a row ``{uid}_{session}_{output}``. A session with several outputs is one
    entry in every group statistic, by its last output; its advantage goes to all of them.
    Rows that verl added to fill the batch belong to no session and get 0.

    Attributes:
      rows: as they were handed in.
      raw: float64, shape (B, K), in reward units, as the reward returned them; NaN where
        not scored and in padding rows.
      rewards: the same after `algorithm.gdpo.conditions`.
      token_counts: response tokens of each row, shape (B,); GDPO's advantage needs them.
      mask: the response mask of the loss, shape (B, T), for components by turn.
      real: int64, the rows that are no padding, and `session_of_row`, the session of each.
      last_rows: int64, shape (S,), the row of each session's last output.
      group_ids: the group of each session.
    """

    rows: RewardRows
    raw: Tensor
    rewards: Tensor
    token_counts: Tensor | None
    mask: Tensor | None
    real: Tensor
    session_of_row: Tensor
    last_rows: Tensor
    group_ids: Sequence[Any]

    @classmethod
    def of(
        cls,
        rows: RewardRows,
        uids: Sequence[Hashable],
        token_counts: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> RewardBatch:
        """Read the components of the rows, and join the rows to sessions.

        Args:
          uids: of each row; those with equal ones share a prompt.
          token_counts, mask: as the attributes.

        Raises:
          ValueError: a component is missing or not a number; names key and row.
        """
        objective, infos, keys = rows.objective, rows.infos, rows.keys
        padding = rows.padding or [False] * len(keys)
        real = [row for row, pad in enumerate(padding) if not pad]
        raw = torch.full((len(keys), len(objective.keys)), math.nan, dtype=torch.float64)
        raw[torch.tensor(real, dtype=torch.int64)] = components_of_rows(
            [infos[row] for row in real], objective, [keys[row] for row in real]
        )
        names = [RowKey.parse(keys[row]) for row in real]
        place: dict[tuple[str, int], int] = {}
        sessions = [place.setdefault(name[:2], len(place)) for name in names]
        # verl's balancing shuffles the rows; in the order of the outputs, the last of a session
        # takes the place of its others.
        order = sorted(range(len(real)), key=lambda row: names[row].output)
        last = {sessions[row]: real[row] for row in order}
        last_rows = [last[session] for session in range(len(place))]
        group_ids = [uids[row] for row in last_rows]
        if objective.config.derived and rows.masks is not None:
            lengths = [0] * len(place)
            for row, session in zip(real, sessions, strict=True):
                lengths[session] += int(rows.masks[row].sum())
            last_infos = [unnested(infos[row]) for row in last_rows]
            complete = objective.with_derived(raw[last_rows], last_infos, lengths, group_ids)
            raw[real] = torch.where(objective.is_derived, complete[sessions], raw[real])
        return cls(
            rows=rows,
            raw=raw,
            rewards=objective.conditioned(raw),
            token_counts=token_counts,
            mask=mask,
            real=torch.tensor(real, dtype=torch.int64),
            session_of_row=torch.tensor(sessions, dtype=torch.int64),
            last_rows=torch.tensor(last_rows, dtype=torch.int64),
            group_ids=group_ids,
        )

    @cached_property
    def last_infos(self) -> list[Mapping[str, Any]]:
        """The reward's dict for each session's last output."""
        return [self.rows.infos[row] for row in self.last_rows.tolist()]

    @property
    def _judged_infos(self) -> list[Mapping[str, Any]]:
        nothing = dict.fromkeys(self.rows.objective.keys)
        return [nothing if failed_judgement(info) else info for info in self.last_infos]

    @property
    def parse_errors(self) -> list[int | None]:
        """The reward's diagnostic of that name for each session; None without one."""
        return [_parse_error_code(info.get("parse_error")) for info in self.last_infos]

    @cached_property
    def errors(self) -> list[str]:
        """The reasons of the sessions without a reward (`failed_judgement`)."""
        return [text for info in self.last_infos if (text := failed_judgement(info))]

    @property
    def error_share(self) -> diagnostics.Weighted:
        """The share of the sessions without a reward."""
        sessions = len(self.last_rows)
        return diagnostics.Weighted(len(self.errors) / max(sessions, 1), sessions)

    def check_errors(self) -> None:
        """Raise RewardErrors where too many sessions are without a reward, or a component.

        That is, more than `MOST_REWARD_ERRORS`, or than a component's `most_unscored` allows.
        """
        if self.error_share > MOST_REWARD_ERRORS:
            raise RewardErrors(
                f"{len(self.errors)} of {len(self.last_rows)} responses of a batch have no reward; "
                f"at most {MOST_REWARD_ERRORS:.0%} may. verl's reward manager reports "
                f"{self.errors[-1]!r}: see to the judge that the reward asks, or to reward.timeout."
            )
        check_unscored(self.last_infos, self.raw[self.last_rows], self.rows.objective)

    @property
    def session_tokens(self) -> Tensor | None:
        """The response tokens of all outputs of each session: float64, shape (S,); or None."""
        if self.token_counts is None:
            return None
        counts = self.token_counts.to("cpu", torch.float64)[self.real]
        return counts.new_zeros(len(self.last_rows)).index_add_(0, self.session_of_row, counts)

    @cached_property
    def decomposition(self) -> Decomposition:
        """The sessions' rewards, decomposed under the settings of this step."""
        last = self.last_rows
        return decompose(
            self.raw[last],
            self.group_ids,
            self.session_tokens,
            conditioned=self.rewards[last],
            **self.rows.objective.settings_at(self.rows.global_step),
        )

    @cached_property
    def turns(self) -> Turns:
        """The turns of the sessions: runs of 1 in the response masks as they were sampled.

        Raises:
          ValueError: a session has several outputs.
        """
        masks = self.rows.masks
        assert masks is not None
        if len(self.real) > len(self.last_rows):
            several = int(self.session_of_row.bincount().argmax())
            key = self.rows.keys[int(self.last_rows[several])]
            raise ValueError(
                f"algorithm.gdpo.credit={self.rows.objective.config.credit}: the session of row "
                f"{key} has several outputs, and turns are known within one output alone. Set "
                "algorithm.gdpo.credit=answer, which credits the whole session with the sum of "
                f"{sorted(self.rows.objective.by_turn)}, or use an agent loop of one output."
            )
        numbers = self._turn_numbers[self.last_rows]
        counts = numbers.amax(dim=1).add(1).tolist()
        kept = numbers >= 0
        if self.mask is not None:  # of the loss: less than was sampled after a rejection
            kept &= self.mask.to("cpu")[self.last_rows].bool()[:, : numbers.shape[1]]
        tokens = torch.zeros(len(counts), max(counts, default=0) + 1, dtype=torch.float64)
        tokens.scatter_add_(1, numbers.clamp(min=0), kept.to(tokens))
        lists = [row[:count] for row, count in zip(tokens.tolist(), counts, strict=True)]
        return Turns.of(lists)

    @cached_property
    def _turn_numbers(self) -> Tensor:
        """The turn of each token of each row, -1 outside: shape (B, T)."""
        masks = self.rows.masks
        assert masks is not None
        padded = torch.nn.utils.rnn.pad_sequence([mask.to("cpu") for mask in masks], True)
        return turn_numbers(padded)

    @cached_property
    def by_turn(self) -> Decomposition:
        """The decomposition of the sessions' turns.

        Raises:
          ValueError: a component has no number for each turn.
        """
        keys = [self.rows.keys[row] for row in self.last_rows.tolist()]
        objective, turns = self.rows.objective, self.turns
        return decompose_by_turn(self.decomposition, self._judged_infos, objective, keys, turns)

    @property
    def trained(self) -> Decomposition:
        """The decomposition whose advantage trains: of the turns, else of the sessions."""
        return self.by_turn if self.rows.objective.credits_turns else self.decomposition

    def turn_lists(self, key: str) -> list[list[float] | None]:
        """A component by turn of each session, as the reward returned it."""
        wording = self.rows.objective.config.wording
        return [turns_of(unnested(info), key, wording, "") for info in self._judged_infos]

    def turns_on_tokens(self, mask: Tensor) -> Tensor:
        """The advantage of each turn on its tokens, 0 elsewhere: shape (B, T), as the mask."""
        values = self.turns.table(self.by_turn.advantage)
        table = values.new_zeros(len(self.raw), values.shape[1] + 1)
        table[self.last_rows, : values.shape[1]] = values
        # The last column, which -1 takes, is 0.
        numbers = self._turn_numbers
        missing = mask.shape[1] - numbers.shape[1]
        numbers = torch.nn.functional.pad(numbers, (0, missing), value=-1)
        numbers = torch.where(numbers < 0, values.shape[1], numbers)
        return table.gather(1, numbers).to(mask) * mask

    def score(self) -> Tensor:
        """sum_k w_k r_k of each row, without schedules, in reward units: float64, shape (B,)."""
        return weighted_sum(self.rewards, self.rows.objective)

    def returned_score(self) -> Tensor:
        """The same without the derived components, of which the reward knows nothing."""
        objective = self.rows.objective
        if not objective.config.derived:
            return self.score()
        returned = torch.where(objective.is_derived, torch.nan, self.raw)
        return weighted_sum(objective.conditioned(returned), objective)

    def to_rows(self, advantage: Tensor) -> Tensor:
        """A number for each session as one for each row, 0 for padding: (S,) to (B,)."""
        rows = advantage.new_zeros(len(self.raw))
        rows[self.real] = advantage[self.session_of_row]
        return rows


def _parse_error_code(value: Any) -> int | None:
    # A user's reward may use the name for something else, which is no reason to end a training.
    number: Any = value if isinstance(value, (int, float, np.number)) else math.nan
    return int(number) if abs(number) <= LARGEST else None
