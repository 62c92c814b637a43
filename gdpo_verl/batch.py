"""A batch of rollouts as the estimator needs it: components by row, rows by session."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gdpo_verl.advantage import apply_conditions, batch_step, gdpo_scalars, grpo_scalars
from gdpo_verl.config import Objective


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
    """

    def __init__(
        self,
        objective: Objective,
        infos: Sequence[Mapping[str, Any]],
        group_ids: Sequence[Hashable],
        row_keys: Sequence[str],
        padding: Sequence[bool] | None = None,
    ) -> None:
        self.objective = objective
        padding = padding or [False] * len(row_keys)
        self.real = torch.tensor(
            [row for row, pad in enumerate(padding) if not pad], dtype=torch.int64
        )
        rows = self.real.tolist()
        self.raw = torch.full((len(row_keys), len(objective.keys)), math.nan, dtype=torch.float64)
        self.raw[self.real] = read_components(
            [infos[row] for row in rows], objective, [row_keys[row] for row in rows]
        )
        self.rewards = apply_conditions(self.raw, objective.keys, objective.config.conditions)
        self._join_sessions(rows, row_keys)
        last = self.last_rows.tolist()
        self.group_ids = [group_ids[row] for row in last]
        self.parse_errors = [_code(infos[row].get("parse_error")) for row in last]

    def _join_sessions(self, rows: Sequence[int], row_keys: Sequence[str]) -> None:
        last: dict[str, tuple[int, int]] = {}
        sessions = []
        for row in rows:
            session, _, output = row_keys[row].rpartition("_")
            sessions.append(session)
            last[session] = max(last.get(session, (-1, row)), (int(output), row))
        place = {session: index for index, session in enumerate(last)}
        self.last_rows = torch.tensor([row for _, row in last.values()], dtype=torch.int64)
        self.session_of_row = torch.tensor(
            [place[session] for session in sessions], dtype=torch.int64
        )

    def session_tokens(self, token_counts: Tensor) -> Tensor:
        """The response tokens of all outputs of each session: float64, shape (S,)."""
        counts = token_counts.to("cpu", torch.float64)[self.real]
        return counts.new_zeros(len(self.last_rows)).index_add_(0, self.session_of_row, counts)

    @property
    def options(self) -> dict[str, Any]:
        """Weights, epsilon and scale, as the functions of `gdpo_verl.advantage` take them."""
        config = self.objective.config
        return {
            "weights": self.objective.weights,
            "epsilon": config.epsilon,
            "scale": config.scale,
        }

    def whiten_shift(self, token_counts: Tensor) -> float:
        """Where whitening puts an advantage of 0, unitless."""
        _, mean, factor = batch_step(
            self.rewards[self.last_rows],
            self.group_ids,
            self.session_tokens(token_counts),
            whiten=self.objective.config.whiten,
            **self.options,
        )
        return -mean * factor

    def gdpo(self, token_counts: Tensor) -> Tensor:
        """GDPO's advantage of each row: float64, shape (B,)."""
        advantage = gdpo_scalars(
            self.rewards[self.last_rows],
            self.group_ids,
            self.session_tokens(token_counts),
            whiten=self.objective.config.whiten,
            **self.options,
        )
        return self._to_rows(advantage)

    def grpo(self) -> Tensor:
        """GRPO's advantage of each row on the same weighted sum: float64, shape (B,)."""
        advantage = grpo_scalars(self.rewards[self.last_rows], self.group_ids, **self.options)
        return self._to_rows(advantage)

    def score(self) -> Tensor:
        """sum_k w_k r_k of each row, in reward units: float64, shape (B,)."""
        return self.rewards.nan_to_num(0.0) @ torch.tensor(
            self.objective.weights, dtype=torch.float64
        )

    def _to_rows(self, advantage: Tensor) -> Tensor:
        rows = advantage.new_zeros(len(self.raw))
        rows[self.real] = advantage[self.session_of_row]
        return rows


def read_components(
    infos: Sequence[Mapping[str, Any]], objective: Objective, rows: Sequence[str]
) -> Tensor:
    """The reward components of each row, in the order of the objective's keys.

    Args:
      infos: what the reward returned for each row (verl's `reward_extra_info`).
      objective: names the components and says which may be absent.
      rows: what to call each row in an error.

    Returns:
      float64, shape (B, K), in reward units; NaN where not scored: None, NaN, or an
      optional component that is absent.

    Raises:
      ValueError: a component is absent, infinite or not a number; names key and row.
    """
    table = [
        [_read(info, key, objective, row) for key in objective.keys]
        for info, row in zip(infos, rows, strict=True)
    ]
    return torch.tensor(table, dtype=torch.float64).reshape(len(table), len(objective.keys))


def _code(value: Any) -> int | None:
    is_number = isinstance(value, (int, float, np.number)) and math.isfinite(value)
    return int(value) if is_number else None


def _read(info: Mapping[str, Any], key: str, objective: Objective, row: str) -> float:
    if key not in info:
        if key in objective.optional:
            return math.nan
        remedy = (
            "Return it from compute_score on every path, failures included."
            if info
            else "An agent loop that sets reward_score itself must put the components into "
            "extra_fields['reward_extra_info']."
        )
        raise ValueError(
            f"algorithm.gdpo_reward_keys: the reward returned no {key!r} for row {row}, only "
            f"{sorted(info)}. {remedy}"
        )
    value = info[key]
    if value is None:
        return math.nan
    try:
        number = math.inf if isinstance(value, (str, bytes)) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.inf
    if math.isinf(number):
        raise ValueError(
            f"algorithm.gdpo_reward_keys: expected a finite number, None or NaN for {key!r}, found "
            f"{value!r} for row {row}"
        )
    return number
