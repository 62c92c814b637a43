"""A batch of rollouts as the estimator needs it: components by row, rows by session."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gdpo_verl import diagnostics
from gdpo_verl.advantage import Estimation, apply_conditions
from gdpo_verl.advantage.checks import LARGEST
from gdpo_verl.config import Objective
from gdpo_verl.plugin.row_key import RowKey
from gdpo_verl.reward_dicts import (
    RewardErrors,
    check_unscored,
    read_components,
    weighted_sum,
)

# The largest share of a batch's responses that may be without a reward; above it training ends.
MOST_REWARD_ERRORS = 0.5


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


class RewardBatch:
    """The rows of one advantage computation, joined to sessions.

    verl names a row ``{uid}_{session}_{output}``. A session with several outputs is one
    entry in every group statistic, by its last output; its advantage goes to all of them.
    Rows that verl added to fill the batch belong to no session and get 0.

    Attributes:
      objective: components, weights and settings.
      raw: float64, shape (B, K), in reward units, as the reward returned them; NaN where
        not scored and in padding rows.
      rewards: the same after `algorithm.gdpo.conditions`.
      last_rows: int64, shape (S,), the row of each session's last output.
      group_ids: the group of each session.
      parse_errors: of each session, the reward's diagnostic of that name; None without one.
      errors: the reasons of the sessions without a reward (`failed_judgement`).
    """

    def __init__(
        self,
        objective: Objective,
        infos: Sequence[Mapping[str, Any]],
        group_ids: Sequence[Hashable],
        row_keys: Sequence[str],
        padding: Sequence[bool] | None = None,
    ) -> None:
        self.objective, self.infos = objective, infos
        padding = padding or [False] * len(row_keys)
        rows = [row for row, pad in enumerate(padding) if not pad]
        self.real = torch.tensor(rows, dtype=torch.int64)
        self.raw = torch.full((len(row_keys), len(objective.keys)), math.nan, dtype=torch.float64)
        self.raw[self.real] = components_of_rows(
            [infos[row] for row in rows], objective, [row_keys[row] for row in rows]
        )
        self.rewards = apply_conditions(self.raw, objective.keys, objective.config.conditions)
        self._join_sessions(rows, row_keys)
        last = self.last_rows.tolist()
        self.group_ids = [group_ids[row] for row in last]
        self.parse_errors = [_parse_error_code(infos[row].get("parse_error")) for row in last]
        self.errors = [text for row in last if (text := failed_judgement(infos[row]))]

    def _join_sessions(self, rows: Sequence[int], row_keys: Sequence[str]) -> None:
        names = [RowKey.parse(row_keys[row]) for row in rows]
        place: dict[tuple[str, int], int] = {}
        sessions = [place.setdefault(name[:2], len(place)) for name in names]
        self.session_of_row = torch.tensor(sessions, dtype=torch.int64)
        # verl's balancing shuffles the rows; in the order of the outputs, the last of a session
        # takes the place of its others.
        order = sorted(range(len(rows)), key=lambda row: names[row].output)
        last = {sessions[row]: rows[row] for row in order}
        self.last_rows = torch.tensor([last[s] for s in range(len(place))], dtype=torch.int64)

    def error_share(self) -> diagnostics.Weighted:
        """The share of the sessions without a reward.

        Raises:
          RewardErrors: it is above `MOST_REWARD_ERRORS`, or more responses lack a component
            than the component's `most_unscored` allows.
        """
        sessions = len(self.last_rows)
        share = diagnostics.Weighted(len(self.errors) / max(sessions, 1), sessions)
        if share > MOST_REWARD_ERRORS:
            raise RewardErrors(
                f"{len(self.errors)} of {sessions} responses of a batch have no reward; at most "
                f"{MOST_REWARD_ERRORS:.0%} may. verl's reward manager reports {self.errors[-1]!r}: "
                "see to the judge that the reward asks, or to reward.timeout."
            )
        last = self.last_rows
        check_unscored([self.infos[row] for row in last.tolist()], self.raw[last], self.objective)
        return share

    def session_tokens(self, token_counts: Tensor) -> Tensor:
        """The response tokens of all outputs of each session: float64, shape (S,)."""
        counts = token_counts.to("cpu", torch.float64)[self.real]
        return counts.new_zeros(len(self.last_rows)).index_add_(0, self.session_of_row, counts)

    def decompose(self, token_counts: Tensor | None = None, global_step: int = 0) -> Estimation:
        """Compute what the estimators make of the sessions.

        Args:
          token_counts: response tokens of each row, shape (B,); GDPO's advantage needs them.
          global_step: of the training, for scheduled weights.
        """
        last = self.last_rows
        return self.objective.estimate(
            self.raw[last],
            self.group_ids,
            None if token_counts is None else self.session_tokens(token_counts),
            global_step,
            conditioned=self.rewards[last],
        )

    def score(self) -> Tensor:
        """sum_k w_k r_k of each row, without schedules, in reward units: float64, shape (B,)."""
        return weighted_sum(self.rewards, self.objective)

    def to_rows(self, advantage: Tensor) -> Tensor:
        """A number for each session as one for each row, 0 for padding: (S,) to (B,)."""
        rows = advantage.new_zeros(len(self.raw))
        rows[self.real] = advantage[self.session_of_row]
        return rows


def _parse_error_code(value: Any) -> int | None:
    # A user's reward may use the name for something else, which is no reason to end a training.
    number: Any = value if isinstance(value, (int, float, np.number)) else math.nan
    return int(number) if abs(number) <= LARGEST else None
