"""Credit by turn: each turn of a response is an entry, made ready for the decomposition.

Use it where a reward says in which of a response's turns it was earned.
Assumes: the policy may decide itself when it stops, so that responses have turns of any number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from gdpo_verl.advantage.decomposition import Decomposition
from gdpo_verl.advantage.groups import Groups, Spread
from gdpo_verl.advantage.variant import Variant

Credit = Literal["to_go", "turn", "answer"]


@dataclass(frozen=True, eq=False)
class Turns:
    """The turns of B responses, E in all, a response's one after the other.

    Attributes:
      responses: int64, shape (E,), the response of each turn.
      numbers: int64, shape (E,), its number in the response, from 0.
      tokens: float64, shape (E,), its tokens that count in the loss.
      size: B.
    """

    responses: Tensor
    numbers: Tensor
    tokens: Tensor
    size: int

    @classmethod
    def of(cls, tokens: Sequence[Sequence[float]]) -> Turns:
        """Number the turns of responses, of each of which the tokens by turn are given."""
        counts = torch.tensor([len(each) for each in tokens], dtype=torch.int64)
        numbers = [number for each in tokens for number in range(len(each))]
        return cls(
            torch.arange(len(counts)).repeat_interleave(counts),
            torch.tensor(numbers, dtype=torch.int64),
            torch.tensor([count for each in tokens for count in each], dtype=torch.float64),
            len(counts),
        )

    def table(self, values: Tensor, fill: float = 0.0) -> Tensor:
        """Values of the turns by response and turn: (E, ...) to (B, T, ...)."""
        most = int(self.numbers.max()) + 1 if len(self.numbers) else 0
        table = values.new_full((self.size, most, *values.shape[1:]), fill)
        table[self.responses, self.numbers] = values
        return table

    def lists(self, values: Tensor) -> list[list[float]]:
        """Values of the turns as a list for each response."""
        counts = self.responses.bincount(minlength=self.size).tolist()
        return [part.tolist() for part in values.split(counts)]

    def token_means(self, values: Tensor) -> Tensor:
        """The mean over each response's tokens: (E,) to (B,); 0 without tokens."""
        sums = values.new_zeros(2, self.size)
        sums[0].index_add_(0, self.responses, values * self.tokens)
        sums[1].index_add_(0, self.responses, self.tokens)
        return sums[0] / sums[1].clamp(min=1.0)


def turn_numbers(masks: Tensor) -> Tensor:
    """Each token's turn, a run of 1 in the response mask, from 0; -1 outside: (B, T) to (B, T)."""
    inside = masks.bool()
    before = torch.nn.functional.pad(inside, (1, 0))[:, :-1]
    started = (inside & ~before).cumsum(dim=1)
    return torch.where(inside, started - 1, -1)


def to_go(own: Tensor, turns: Turns) -> Tensor:
    """The return to go of each turn, G[i, k, t] = sum over s >= t of r[i, k, s]: shape (E, K).

    A turn that is not scored adds nothing; NaN where none from there on is.
    """
    table = turns.table(own, torch.nan)
    scored = ~table.isnan()
    sums = table.nan_to_num(0.0).flip(1).cumsum(dim=1).flip(1)
    any_left = scored.flip(1).cumsum(dim=1).flip(1) > 0
    return torch.where(any_left, sums, torch.nan)[turns.responses, turns.numbers]


def decompose_turns(
    whole: Decomposition, turns: Turns, credit: Tensor, by_turn: Tensor
) -> Decomposition:
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
        not scored. Only the components by turn are read.
      by_turn: the columns of these components: bool, shape (K,).
    """
    rows = turns.responses
    closed = whole.gated[rows][:, None]
    values = torch.where(by_turn, credit, whole.rewards[rows])
    values = torch.where(closed, torch.nan, values)
    most = int(turns.numbers.max()) + 1 if len(turns.numbers) else 1
    codes, number = whole.groups
    reached = Groups(codes[rows] * most + turns.numbers, number * most)
    spread = Spread(values, reached).with_columns(~by_turn, whole.spread.rows(rows))
    spread.scored = spread.scored & ~closed
    spread.varies = spread.varies & ~closed
    return replace(
        whole,
        raw=values,
        rewards=values,
        groups=Groups(codes[rows], number),
        gate=None,
        token_counts=turns.tokens,
        prepared=spread,
    )


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
