"""A batch of rollouts as the estimator needs it: the components and the session of each row.

verl calls a rollout a session. If an agent loop returns several outputs for a session, each output
is a row of the batch.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from gdpo_verl import diagnostics
from gdpo_verl.advantage import Decomposition, MaskedRows, TurnDecomposition, Turns
from gdpo_verl.advantage.checks import read_number
from gdpo_verl.advantage.criteria import Graded
from gdpo_verl.config import Objective
from gdpo_verl.reward_dicts import (
    RewardErrors,
    check_unscored,
    decompose_by_turn,
    failed_judgement,
    graded_criteria,
    read_components,
    turn_lists,
    unnested,
)
from gdpo_verl.upstream.row_key import RowKey

# The largest share of a batch's responses that may have no reward; above it the run ends.
MOST_REWARD_ERRORS = 0.5


def judged(info: Mapping[str, Any], objective: Objective) -> Mapping[str, Any]:
    """Return the rewards of a row by the names of the components.

    Args:
      info: verl's `reward_extra_info` of the row.
      objective: the components.

    Returns:
      A dict in which all components are None if the row has no reward (`failed_judgement`).
    """
    return dict.fromkeys(objective.keys) if failed_judgement(info) else unnested(info)


@dataclass(frozen=True)
class RewardRows:
    """The rows of one computation of advantages, with their rewards.

    Attributes:
      objective: the components, their weights and the settings.
      infos: the dict that the reward function returned for each row (verl's `reward_extra_info`).
      keys: verl's names of the rows.
      padding: for each row, whether verl added it to fill the batch. It is empty if no row is
        padding.
      global_step: the global step of the run, for scheduled weights.
      masks: the response mask of each row as it was sampled, from which lengths and turns are
        read. The mask that an estimator gets is not suitable, because verl's rollout correction may
        have set it to 0. Without `masks` derived components are not scored.
    """

    objective: Objective
    infos: Sequence[Mapping[str, Any]]
    keys: Sequence[str]
    padding: Sequence[bool] = ()
    global_step: int = 0
    masks: Sequence[Tensor] | None = None


@dataclass(frozen=True, eq=False)
class Sessions:
    """The S sessions to which the rows of a batch belong.

    verl names a row ``{uid}_{session}_{output}``. Rows that verl added to fill the batch belong to
    no session.

    Attributes:
      rows: the number of rows, B.
      real: the numbers of the rows that are not padding: int64.
      of_real: the session of each row in `real`: int64.
      last: the row with the last output of each session: int64, shape (S,).
    """

    rows: int
    real: Tensor
    of_real: Tensor
    last: Tensor

    @classmethod
    def of(cls, keys: Sequence[str], padding: Sequence[bool]) -> Sessions:
        """Find the sessions of rows with these names; `padding` is as in `RewardRows`."""
        real = [row for row, pad in enumerate(padding or [False] * len(keys)) if not pad]
        names = [RowKey.parse(keys[row]) for row in real]
        place: dict[tuple[str, int], int] = {}
        of_real = [place.setdefault(name[:2], len(place)) for name in names]
        # verl shuffles the rows to balance its devices. They are sorted by output here, so that in
        # the dict below the last output of a session replaces the earlier ones.
        order = sorted(range(len(real)), key=lambda row: names[row].output)
        last = {of_real[row]: real[row] for row in order}
        return cls(
            rows=len(keys),
            real=torch.tensor(real, dtype=torch.int64),
            of_real=torch.tensor(of_real, dtype=torch.int64),
            last=torch.tensor([last[session] for session in range(len(place))], dtype=torch.int64),
        )

    def sums(self, of_rows: Tensor) -> Tensor:
        """Add up the numbers of the rows of each session: shape (B,) to (S,)."""
        sums = of_rows.new_zeros(len(self.last))
        return sums.index_add_(0, self.of_real, of_rows[self.real])

    def to_rows(self, of_sessions: Tensor) -> Tensor:
        """Give each row the number of its session, and 0 to padding: shape (S,) to (B,)."""
        rows = of_sessions.new_zeros(self.rows)
        rows[self.real] = of_sessions[self.of_real]
        return rows


@dataclass(frozen=True, eq=False)
class RewardBatch:
    """The rows of one computation of advantages, their sessions, and the decomposition.

    A session with several outputs counts once in the statistics of its group, with the rewards of
    its last output. All outputs of a session get the advantage of the session. Padding rows get 0.

    Attributes:
      rows: the rows.
      raw: the rewards that the reward function returned: float64, shape (B, K), in reward units;
        NaN where not scored, and in padding rows.
      token_counts: the number of response tokens of each row, shape (B,). The advantage of GDPO
        needs them.
      mask: the response mask of the loss, shape (B, T), for per-turn components.
      sessions: the S sessions of the rows.
      group_ids: the group of each session.
      infos: the rewards of the last output of each session (`judged`).
      graded: for each component by criterion, the criteria of the last output of each session.
      errors: for each session without a reward, the reason (`failed_judgement`).
    """

    rows: RewardRows
    raw: Tensor
    token_counts: Tensor | None
    mask: Tensor | None
    sessions: Sessions
    group_ids: Sequence[Any]
    infos: Sequence[Mapping[str, Any]]
    graded: Mapping[str, Sequence[Graded | None]]
    errors: Sequence[str]

    @classmethod
    def of(
        cls,
        rows: RewardRows,
        uids: Sequence[Hashable],
        token_counts: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> RewardBatch:
        """Read the components of the rows, and find the sessions of the rows.

        Args:
          rows: the rows.
          uids: the uid of each row. Rows with equal uids share a prompt.
          token_counts, mask: see the attributes.

        Raises:
          ValueError: a component is missing or not a number. The error names key and row.
        """
        objective = rows.objective
        sessions = Sessions.of(rows.keys, rows.padding)
        last = sessions.last.tolist()
        group_ids = [uids[row] for row in last]
        infos = {row: judged(rows.infos[row], objective) for row in sessions.real.tolist()}
        last_infos = [infos[row] for row in last]
        raw = torch.full((len(rows.keys), len(objective.keys)), math.nan, dtype=torch.float64)
        keys = [rows.keys[row] for row in infos]
        real_infos = list(infos.values())
        graded = graded_criteria(real_infos, objective, keys)
        raw[sessions.real] = read_components(real_infos, objective, keys, graded)
        graded_last = {}
        for key, column in graded.items():
            by_row = dict(zip(infos, column, strict=True))
            graded_last[key] = [by_row[row] for row in last]
        if objective.config.derived and rows.masks is not None:
            sampled = torch.tensor([int(mask.sum()) for mask in rows.masks])
            lengths = sessions.sums(sampled).tolist()
            complete = objective.with_derived(raw[last], last_infos, lengths, group_ids)
            of_rows = complete[sessions.of_real]
            raw[sessions.real] = torch.where(objective.is_derived, of_rows, raw[sessions.real])
        failures = (failed_judgement(rows.infos[row]) for row in last)
        return cls(
            rows=rows,
            raw=raw,
            token_counts=token_counts,
            mask=mask,
            sessions=sessions,
            group_ids=group_ids,
            infos=last_infos,
            graded=graded_last,
            errors=[failure for failure in failures if failure],
        )

    @property
    def parse_errors(self) -> list[int | None]:
        """The value of `parse_error` for each session; None for a session without it."""
        return [_parse_error_code(info.get("parse_error")) for info in self.infos]

    @property
    def error_share(self) -> diagnostics.Weighted:
        """The share of the sessions without a reward."""
        return diagnostics.Weighted.of(len(self.errors), len(self.infos))

    def check_errors(self) -> None:
        """Raise RewardErrors if too many sessions have no reward, or lack one component.

        The limits are `MOST_REWARD_ERRORS`, and the `most_unscored` of each component.
        """
        if self.error_share > MOST_REWARD_ERRORS:
            raise RewardErrors(
                f"{len(self.errors)} of {len(self.infos)} responses in this batch have no "
                f"reward; at most {MOST_REWARD_ERRORS:.0%} may have none. verl's reward manager "
                f"reports {self.errors[-1]!r}. Check the judge's server, or raise reward.timeout."
            )
        check_unscored(self.infos, self.raw[self.sessions.last], self.rows.objective)

    @cached_property
    def decomposition(self) -> Decomposition:
        """The decomposition of the sessions' rewards with the settings of this step."""
        last = self.sessions.last
        tokens = None
        if self.token_counts is not None:
            tokens = self.sessions.sums(self.token_counts.to("cpu", torch.float64))
        return self.rows.objective.decompose(
            self.raw[last],
            self.group_ids,
            tokens,
            self.rows.global_step,
            self.graded,
            self._last_keys,
        )

    @cached_property
    def turn_lists(self) -> dict[str, list[list[float] | None]]:
        """The per-turn components of each session, as the reward function returned them."""
        return turn_lists(self.infos, self.rows.objective, self._last_keys)

    @property
    def _last_keys(self) -> list[str]:
        return [self.rows.keys[row] for row in self.sessions.last.tolist()]

    @cached_property
    def _turns(self) -> tuple[Turns, Tensor]:
        """The turns of the sessions, and the turn of each token (`Turns.in_masks`).

        Raises:
          ValueError: a session has several outputs.
        """
        objective = self.rows.objective
        if len(self.sessions.real) > len(self.infos):
            several = int(self.sessions.of_real.bincount().argmax())
            raise ValueError(
                f"algorithm.gdpo.credit={objective.config.estimator.credit}: the session of row "
                f"{self._last_keys[several]} has several outputs, and per-turn credit needs one "
                "output. Set algorithm.gdpo.credit=answer, which credits the complete session with "
                f"the sum of {sorted(objective.by_turn)}, or use an agent loop with one output."
            )
        assert self.rows.masks is not None
        masks = pad_sequence([mask.to("cpu") for mask in self.rows.masks], batch_first=True)
        # After rejection sampling, fewer tokens may count in the loss than were sampled.
        kept = masks if self.mask is None else self.mask.to("cpu")[:, : masks.shape[1]]
        return Turns.in_masks(masks[self.sessions.last], kept[self.sessions.last])

    @cached_property
    def by_turn(self) -> TurnDecomposition | None:
        """The decomposition of the turns, if each turn has its own advantage; else None.

        Raises:
          ValueError: a component does not have one number for each turn.
        """
        objective = self.rows.objective
        if not objective.credits_turns:
            return None
        turns, _ = self._turns
        whole = self.decomposition
        return decompose_by_turn(whole, self.turn_lists, objective, self._last_keys, turns)

    @property
    def trained(self) -> Decomposition | TurnDecomposition:
        """The decomposition whose advantages train the model: of the turns, or of the sessions."""
        return self.by_turn or self.decomposition

    def on_tokens(self, tokens: MaskedRows) -> Tensor:
        """Put the advantages on the response tokens of each row, and 0 elsewhere: shape (B, T)."""
        if self.by_turn is None:
            return tokens.scale_(self.sessions.to_rows(self.decomposition.advantage))
        _, turn_of_token = self._turns
        # Tokens outside of turns have the index -1, which selects the last number, the appended 0.
        values = torch.cat([self.by_turn.entries.advantage, torch.zeros(1)])[turn_of_token]
        table = torch.zeros_like(tokens.values)
        table[self.sessions.last, : values.shape[1]] = values.to(table)
        return table * tokens.values

    def score(self) -> Tensor:
        """Return the score of each row, sum_k w_k r_k without schedules: float64, shape (B,)."""
        return self.rows.objective.score(self.raw)

    def returned_score(self) -> Tensor:
        """Return the score without derived components, which the reward function cannot know."""
        objective = self.rows.objective
        return objective.score(torch.where(objective.is_derived, torch.nan, self.raw))


def _parse_error_code(value: Any) -> int | None:
    # A user's reward function may use the name `parse_error` for something else. This must not end
    # a run, so a value that is not a number is ignored.
    number = read_number(value)
    return int(number) if math.isfinite(number) else None
