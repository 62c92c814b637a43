"""A batch of rollouts as the estimator needs it: each row's components and its session."""

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
    """Return the rewards of a row, verl's `reward_extra_info`, under the components' names.

    In a row without a reward (`failed_judgement`) all components are None.
    """
    return dict.fromkeys(objective.keys) if failed_judgement(info) else unnested(info)


@dataclass(frozen=True)
class RewardRows:
    """The rows of one advantage computation and their rewards, as the estimator gets them.

    Attributes:
      objective: components, weights and settings.
      infos: what the reward function returned for each row (verl's `reward_extra_info`).
      keys: verl's names of the rows.
      padding: which rows verl added to fill the batch; empty where there are none.
      masks: the response mask of each row as sampled, for all that needs lengths. verl's rollout
        correction may have emptied the mask that an estimator gets. Without `masks` no derived
        component is scored.
      global_step: the global step of the run, for scheduled weights.
    """

    objective: Objective
    infos: Sequence[Mapping[str, Any]]
    keys: Sequence[str]
    padding: Sequence[bool] = ()
    global_step: int = 0
    masks: Sequence[Tensor] | None = None


@dataclass(frozen=True, eq=False)
class Sessions:
    """The sessions that the rows of a batch are outputs of.

    verl names a row ``{uid}_{session}_{output}``. Rows that verl added to fill the batch belong to
    no session.

    Attributes:
      rows: their number, B.
      real: int64, the rows that are not padding; `of_real`: the session of each of them.
      last: int64, shape (S,), the row of each session's last output.
    """

    rows: int
    real: Tensor
    of_real: Tensor
    last: Tensor

    @classmethod
    def of(cls, keys: Sequence[str], padding: Sequence[bool]) -> Sessions:
        """Join the rows with these names to sessions; `padding` is empty where there is none."""
        real = [row for row, pad in enumerate(padding or [False] * len(keys)) if not pad]
        names = [RowKey.parse(keys[row]) for row in real]
        place: dict[tuple[str, int], int] = {}
        of_real = [place.setdefault(name[:2], len(place)) for name in names]
        # verl's balancing shuffles the rows. Here they are in the order of the outputs, so that the
        # last output of a session replaces the earlier ones.
        order = sorted(range(len(real)), key=lambda row: names[row].output)
        last = {of_real[row]: real[row] for row in order}
        return cls(
            rows=len(keys),
            real=torch.tensor(real, dtype=torch.int64),
            of_real=torch.tensor(of_real, dtype=torch.int64),
            last=torch.tensor([last[each] for each in range(len(place))], dtype=torch.int64),
        )

    def sums(self, of_rows: Tensor) -> Tensor:
        """Add up a number of each row per session: (B,) to (S,)."""
        sums = of_rows.new_zeros(len(self.last))
        return sums.index_add_(0, self.of_real, of_rows[self.real])

    def to_rows(self, of_sessions: Tensor) -> Tensor:
        """Give each row the number of its session, and padding 0: (S,) to (B,)."""
        rows = of_sessions.new_zeros(self.rows)
        rows[self.real] = of_sessions[self.of_real]
        return rows


@dataclass(frozen=True, eq=False)
class RewardBatch:
    """The rows of one advantage computation, joined to sessions, and their decomposition.

    A session with several outputs is one entry in every group statistic, with its last output; all
    of its outputs get its advantage. Padding gets 0.

    Attributes:
      rows: the rows.
      raw: float64, shape (B, K), in reward units, as the reward function returned them; NaN where
        not scored and in padding rows.
      token_counts: response tokens of each row, shape (B,); GDPO's advantage needs them.
      mask: the response mask of the loss, shape (B, T), for per-turn components.
      sessions: the sessions of the rows, S in total.
      group_ids: the group of each session.
      infos: the rewards of each session's last output (`judged`).
      graded: its components by criterion, as the reward function returned them.
      errors: why sessions have no reward (`failed_judgement`), one entry for each such session.
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
        """Read the components of the rows, and join the rows to sessions.

        Args:
          uids: the uid of each row; rows with equal uids share a prompt.
          token_counts, mask: as the attributes.

        Raises:
          ValueError: a component is missing or not a number; the error names key and row.
        """
        objective = rows.objective
        sessions = Sessions.of(rows.keys, rows.padding)
        last = sessions.last.tolist()
        group_ids = [uids[row] for row in last]
        infos = {row: judged(rows.infos[row], objective) for row in sessions.real.tolist()}
        last_infos = [infos[row] for row in last]
        raw = torch.full((len(rows.keys), len(objective.keys)), math.nan, dtype=torch.float64)
        keys = [rows.keys[row] for row in infos]
        own_infos = list(infos.values())
        graded = graded_criteria(own_infos, objective, keys)
        raw[sessions.real] = read_components(own_infos, objective, keys, graded)
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
        """The value of `parse_error` for each session; None where there is none."""
        return [_parse_error_code(info.get("parse_error")) for info in self.infos]

    @property
    def error_share(self) -> diagnostics.Weighted:
        """The share of the sessions without a reward."""
        return diagnostics.Weighted.of(len(self.errors), len(self.infos))

    def check_errors(self) -> None:
        """Raise RewardErrors where too many sessions have no reward, or no value of a component.

        The limits are `MOST_REWARD_ERRORS`, and the `most_unscored` of a component.
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
        """The turns of the sessions, and the turn of each of their tokens.

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
        # After rejection sampling, the loss may have fewer tokens than were sampled.
        kept = masks if self.mask is None else self.mask.to("cpu")[:, : masks.shape[1]]
        return Turns.in_masks(masks[self.sessions.last], kept[self.sessions.last])

    @cached_property
    def by_turn(self) -> TurnDecomposition | None:
        """The decomposition of the turns, where turns have advantages of their own; else None.

        Raises:
          ValueError: a component has no number for each turn.
        """
        objective = self.rows.objective
        if not objective.credits_turns:
            return None
        turns, _ = self._turns
        whole = self.decomposition
        return decompose_by_turn(whole, self.turn_lists, objective, self._last_keys, turns)

    @property
    def trained(self) -> Decomposition | TurnDecomposition:
        """The decomposition whose advantage trains: of the turns, else of the sessions."""
        return self.by_turn or self.decomposition

    def on_tokens(self, tokens: MaskedRows) -> Tensor:
        """Put the advantage on each row's response tokens, and 0 elsewhere: shape (B, T)."""
        if self.by_turn is None:
            return tokens.scale_(self.sessions.to_rows(self.decomposition.advantage))
        _, turn_of_token = self._turns
        # Tokens outside of turns have the index -1, which selects the last number, 0.
        values = torch.cat([self.by_turn.entries.advantage, torch.zeros(1)])[turn_of_token]
        table = torch.zeros_like(tokens.values)
        table[self.sessions.last, : values.shape[1]] = values.to(table)
        return table * tokens.values

    def score(self) -> Tensor:
        """Return sum_k w_k r_k of each row, without schedules: float64, shape (B,)."""
        return self.rows.objective.score(self.raw)

    def returned_score(self) -> Tensor:
        """Return the score without derived components, which the reward function cannot know."""
        objective = self.rows.objective
        return objective.score(torch.where(objective.is_derived, torch.nan, self.raw))


def _parse_error_code(value: Any) -> int | None:
    # A user's reward function may use this name for something else; that must not end a run.
    number = read_number(value)
    return int(number) if math.isfinite(number) else None
