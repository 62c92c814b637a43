"""Credit by turn: each turn of a response is an entry, made ready for the decomposition.

Use it where a reward says in which of a response's turns it was earned.
Assumes: the policy may decide itself when it stops, so that responses have turns of any number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from typing import Literal

import torch
from torch import Tensor

from gdpo_verl.advantage.decomposition import Decomposition
from gdpo_verl.advantage.groups import Groups, Spread
from gdpo_verl.advantage.variant import Variant
from gdpo_verl.advantage.whitening import BatchStep

Credit = Literal["to_go", "turn", "answer"]


@dataclass(frozen=True, eq=False)
class Turns:
    """The turns of B responses, E in all, a response's one after the other.

    Attributes:
      counts: int64, shape (B,), the turns of each response.
      tokens: float64, shape (E,), each turn's tokens that count in the loss.
    """

    counts: Tensor
    tokens: Tensor

    @classmethod
    def of(cls, tokens: Sequence[Sequence[float]]) -> Turns:
        """Number the turns of responses, of each of which the tokens by turn are given."""
        counts = torch.tensor([len(each) for each in tokens], dtype=torch.int64)
        return cls(counts, torch.tensor([*chain(*tokens)], dtype=torch.float64))

    @classmethod
    def in_masks(cls, masks: Tensor, kept: Tensor) -> tuple[Turns, Tensor]:
        """Find the turns of responses: the runs of 1 in their masks.

        Args:
          masks: as they were sampled: shape (B, T), 0 or 1.
          kept: of the loss, likewise.

        Returns:
          The turns, and the turn of each token, -1 outside: int64, shape (B, T).
        """
        inside = masks.bool()
        before = torch.nn.functional.pad(inside, (1, 0))[:, :-1]
        starts = inside & ~before
        turn_of_token = torch.where(inside, starts.flatten().cumsum(0).view_as(starts) - 1, -1)
        counts = starts.sum(dim=1)
        tokens = turn_of_token[inside & kept.bool()].bincount(minlength=int(counts.sum()))
        return cls(counts, tokens.double()), turn_of_token

    @property
    def responses(self) -> Tensor:
        """The response of each turn: int64, shape (E,)."""
        return torch.arange(len(self.counts)).repeat_interleave(self.counts)

    @property
    def numbers(self) -> Tensor:
        """Each turn's number in its response, from 0: int64, shape (E,)."""
        first = self.counts.cumsum(0) - self.counts
        return torch.arange(len(self.tokens)) - first.repeat_interleave(self.counts)

    def sums(self, values: Tensor) -> Tensor:
        """Values of the turns added up by response: (E,) to (B,)."""
        return values.new_zeros(len(self.counts)).index_add_(0, self.responses, values)

    def lists(self, values: Tensor) -> list[list[float]]:
        """Values of the turns, shape (E,), as a list for each response."""
        return [part.tolist() for part in values.split(self.counts.tolist())]


@dataclass(frozen=True, eq=False)
class TurnDecomposition:
    """The decomposition of the turns of B responses, and what each response gets of it.

    Attributes:
      entries: the decomposition, of which each turn is an entry.
      turns: of the responses.
    """

    entries: Decomposition
    turns: Turns

    @property
    def lists(self) -> list[list[float]]:
        """The advantages of each response's turns."""
        return self.turns.lists(self.entries.advantage)

    @property
    def advantage(self) -> Tensor:
        """The mean over each response's tokens: shape (B,); 0 without tokens."""
        tokens = self.turns.tokens
        total = self.turns.sums(self.entries.advantage * tokens)
        return total / self.turns.sums(tokens).clamp(min=1.0)

    @property
    def batch_step(self) -> BatchStep:
        """The numbers of the turns around the batch step."""
        return self.entries.batch_step

    @property
    def has_signal(self) -> Tensor:
        """Responses with turns in a group to which something is given: bool, shape (B,)."""
        learns = torch.zeros(len(self.turns.counts), dtype=torch.bool)
        learns[self.turns.responses[self.entries.has_signal]] = True
        return learns


def to_go(own: Sequence[float]) -> list[float]:
    """The return to go of each turn of a response, G[t] = sum over s >= t of r[s].

    A turn that is not scored, NaN, adds nothing; NaN where none from there on is.

    >>> to_go([1.0, math.nan, 2.0, math.nan])
    [3.0, 2.0, 2.0, nan]
    """

    def with_turn(later: float, turn: float) -> float:
        if math.isnan(later) or math.isnan(turn):
            return turn if math.isnan(later) else later
        return later + turn

    return [*accumulate(reversed(own), with_turn)][::-1]


def decompose_turns(
    whole: Decomposition, turns: Turns, credit: Tensor, by_turn: Tensor
) -> TurnDecomposition:
    """The decomposition of which each turn of a response is an entry.

    A component by turn is normalised over the responses of the group that reached the turn:

    z[i, k, t] = (G[i, k, t] - mean of G[., k, t]) / (std of G[., k, t] + epsilon)

    One baseline for each turn does not depend on what the response does from there on, so that the
    gradient keeps its direction: with n responses that reached it, it is scaled by 1 - 1/n, as that
    of a whole response is, and divided by the deviation. (A sum of values that are normalised turn
    by turn depends on where the response stops.) A component without turns has its response's z, as
    in `whole`, at each turn. Whitening over tokens takes each turn's own.

    Args:
      whole: of the responses, by turn components with their sums; its gate closes groups here, too.
      turns: of the responses.
      credit: float64, shape (E, K), what each turn is credited with, after conditions; NaN where
        not scored, and in the columns of components without turns.
      by_turn: the columns of the others: bool, shape (K,).
    """
    responses = turns.responses
    codes, number = whole.groups
    most = max(turns.counts.tolist(), default=0)
    reached = Groups(codes[responses] * most + turns.numbers, number * most)
    spread = Spread(credit, reached).with_columns(~by_turn, whole.spread, responses)
    spread.scored &= ~whole.gated[responses][:, None]
    entries = replace(
        whole,
        raw=credit,
        rewards=credit,
        groups=Groups(codes[responses], number),
        gate=None,
        token_counts=turns.tokens,
        prepared=spread,
    )
    return TurnDecomposition(entries, turns)


def check_credit(variant: Variant, whiten: str, where: str) -> None:
    """Raise ValueError where credit by turn is not defined; `where` stands before the keys."""
    remedy = f"Or set {where}.credit=answer, which credits the whole response with the sum."
    if not variant.reads_only_z:
        raise ValueError(
            f"{where}.variant: {variant.name!r} looks at the rewards of whole responses, beside "
            "their normalised values, and a reward by turn has no value that is comparable from "
            f"turn to turn. Take gdpo. {remedy}"
        )
    if whiten == "sequence":
        raise ValueError(
            f"{where}.whiten: over sequences there is one value a response, and a reward by turn "
            f"gives it one a turn. Take token or none. {remedy}"
        )
