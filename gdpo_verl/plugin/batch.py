"""A batch of rollouts as the estimator needs it: components by row, rows by session."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gdpo_verl import diagnostics
from gdpo_verl.advantage import Estimation, apply_conditions, decompose
from gdpo_verl.advantage.checks import LARGEST
from gdpo_verl.config import Objective
from gdpo_verl.rundir.row_key import RowKey

# Of a batch's responses, what may be without a reward before the training ends.
MOST_REWARD_ERRORS = 0.5


class RewardErrors(RuntimeError):
    """Too many of a batch's responses are without a reward."""


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
        self.objective = objective
        padding = padding or [False] * len(row_keys)
        rows = [row for row, pad in enumerate(padding) if not pad]
        self.real = torch.tensor(rows, dtype=torch.int64)
        self.raw = torch.full((len(row_keys), len(objective.keys)), math.nan, dtype=torch.float64)
        self.raw[self.real] = read_components(
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
        sessions = np.array(
            [place.setdefault(name[:2], len(place)) for name in names], dtype=np.int64
        )
        self.session_of_row = torch.from_numpy(sessions)
        self.last_rows = self.real
        if len(place) < len(rows):
            outputs = np.array([name.output for name in names])
            order = np.lexsort((outputs, sessions))
            last = order[np.append(np.diff(sessions[order]) > 0, True)]
            self.last_rows = self.real[last]

    def error_share(self) -> diagnostics.Weighted:
        """The share of the sessions without a reward.

        Raises:
          RewardErrors: it is above `MOST_REWARD_ERRORS`.
        """
        sessions = len(self.last_rows)
        share = diagnostics.Weighted(len(self.errors) / max(sessions, 1), sessions)
        if share > MOST_REWARD_ERRORS:
            raise RewardErrors(
                f"{len(self.errors)} of {sessions} responses of a batch have no reward; at most "
                f"{MOST_REWARD_ERRORS:.0%} may. verl's reward manager reports {self.errors[-1]!r}: "
                "see to the judge that the reward asks, or to reward.timeout."
            )
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
        last, objective, config = self.last_rows, self.objective, self.objective.config
        return decompose(
            self.raw[last],
            self.group_ids,
            None if token_counts is None else self.session_tokens(token_counts),
            conditioned=self.rewards[last],
            weights=objective.weights_at(global_step),
            whiten=config.whiten,
            epsilon=config.epsilon,
            scale=config.scale,
            variant=config.estimator,
            ranges=objective.range_list,
            gate=objective.gate,
        )

    def score(self) -> Tensor:
        """sum_k w_k r_k of each row, without schedules, in reward units: float64, shape (B,)."""
        return _weighted_sum(self.rewards, self.objective)

    def to_rows(self, advantage: Tensor) -> Tensor:
        """A number for each session as one for each row, 0 for padding: (S,) to (B,)."""
        rows = advantage.new_zeros(len(self.raw))
        rows[self.real] = advantage[self.session_of_row]
        return rows


def score_of(info: Mapping[str, Any], objective: Objective, row: str) -> float:
    """sum_k w_k r_k of one response, after the conditions, in reward units.

    Args:
      info: what the reward returned.
      row: what to call it in an error.

    Raises:
      ValueError: a component is absent, infinite or not a number.
    """
    raw = read_components([info], objective, [row])
    conditioned = apply_conditions(raw, objective.keys, objective.config.conditions)
    return float(_weighted_sum(conditioned, objective)[0])


def _weighted_sum(rewards: Tensor, objective: Objective) -> Tensor:
    return rewards.nan_to_num(0.0) @ torch.tensor(objective.weights, dtype=torch.float64)


def failed_judgement(info: Mapping[str, Any]) -> str:
    """The reason why verl's `rate_limited` manager has no reward for a row; '' where it has one.

    It then returns the score 0 and one of two more keys beside 'acc' (verl/experimental/
    reward_loop/reward_manager/limited.py, `run_single`); such a row is not scored.
    """
    if set(info) == {"timeout", "acc"}:
        return "timeout"
    return str(info["error"]) if set(info) == {"error", "acc"} else ""


def read_components(
    infos: Sequence[Mapping[str, Any]], objective: Objective, rows: Sequence[str]
) -> Tensor:
    """Read the reward components of each row, in the order of the objective's keys.

    Args:
      infos: what the reward returned for each row (verl's `reward_extra_info`).
      objective: names the components and says which may be absent.
      rows: what to call each row in an error.

    Returns:
      float64, shape (B, K), in reward units; NaN where not scored: None, NaN, an optional
      component that is absent, or a row without a reward (`failed_judgement`).

    Raises:
      ValueError: a component is absent, infinite or not a number; names key and row.
    """
    nothing = dict.fromkeys(objective.keys)
    infos = [nothing if failed_judgement(info) else info for info in infos]
    columns = [
        _read_column([info.get(key, _ABSENT) for info in infos], key, infos, objective, rows)
        for key in objective.keys
    ]
    return torch.tensor(np.array(columns), dtype=torch.float64).T.contiguous()


_ABSENT = object()
# What numpy reads at once as `_read` reads it one by one.
_PLAIN = {float, int, bool, type(None), np.float64, np.float32, np.int64, np.bool_}


def _read_column(
    values: list[Any],
    key: str,
    infos: Sequence[Mapping[str, Any]],
    objective: Objective,
    rows: Sequence[str],
) -> Any:
    if set(map(type, values)) <= _PLAIN:
        with contextlib.suppress(OverflowError):  # an integer that is no float
            numbers = np.array(values, dtype=np.float64)
            if not (np.abs(numbers) > LARGEST).any():
                return numbers
    return [_read(info, key, objective, row) for info, row in zip(infos, rows, strict=True)]


def _parse_error_code(value: Any) -> int | None:
    if not isinstance(value, (int, float, np.number)):
        return None
    number: Any = value
    return int(number) if abs(number) <= LARGEST else None


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
    if abs(number) > LARGEST:
        raise ValueError(
            f"algorithm.gdpo_reward_keys: expected a finite number, None or NaN for {key!r}, found "
            f"{value!r} for row {row}. Numbers are at most {LARGEST:g} in size."
        )
    return _as_written(number, value)


def _as_written(number: float, value: Any) -> float:
    """0.7 for a half-precision 0.7, which as a float64 is 0.69921875 or 0.70019531."""
    dtype = torch.float16 if isinstance(value, np.float16) else getattr(value, "dtype", None)
    if dtype not in (torch.float16, torch.bfloat16):
        return number
    written = (float(f"{number:.{digits}g}") for digits in range(1, 6))
    return next((x for x in written if float(torch.tensor(x).to(dtype)) == number), number)
