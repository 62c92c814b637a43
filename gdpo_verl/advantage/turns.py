"""Per-turn credit: each turn of a response becomes a row of the decomposition.

A turn is a stretch of the model's own tokens between two results of tools. Use per-turn credit
where a reward has a value for each turn of a response.
Assumes: the policy decides when it stops, so that responses may have any number of turns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain

import torch
from torch import Tensor

from gdpo_verl.advantage.decomposition import Decomposition
from gdpo_verl.advantage.groups import Groups, Spread
from gdpo_verl.advantage.variant import Variant
from gdpo_verl.advantage.whitening import BatchStep


@dataclass(frozen=True, eq=False)
class Turns:
    """The turns of B responses, E turns in total, in the order of the responses.

    Attributes:
      counts: the number of turns of each response: int64, shape (B,).
      tokens: the number of tokens of each turn that count in the loss: float64, shape (E,).
    """

    counts: Tensor
    tokens: Tensor

    @classmethod
    def of(cls, tokens: Sequence[Sequence[float]]) -> Turns:
        """Create the turns from a list for each response, with the number of tokens per turn."""
        counts = torch.tensor([len(of_response) for of_response in tokens], dtype=torch.int64)
        return cls(counts, torch.tensor([*chain(*tokens)], dtype=torch.float64))

    @classmethod
    def in_masks(cls, masks: Tensor, kept: Tensor) -> tuple[Turns, Tensor]:
        """Find the turns of responses. A turn is a run of ones in the mask of its response.

        Args:
          masks: the response masks as they were sampled: shape (B, T), 0 or 1.
          kept: the masks of the tokens that count in the loss: shape (B, T), 0 or 1.

        Returns:
          The turns, and the turn of each token: int64, shape (B, T), -1 outside of turns.
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
        """The number of each turn in its response, from 0: int64, shape (E,)."""
        first = self.counts.cumsum(0) - self.counts
        return torch.arange(len(self.tokens)) - first.repeat_interleave(self.counts)

    def sums(self, values: Tensor) -> Tensor:
        """Add up the values of the turns for each response: shape (E,) to (B,)."""
        return values.new_zeros(len(self.counts)).index_add_(0, self.responses, values)

    def lists(self, values: Tensor) -> list[list[float]]:
        """Return the values of the turns, shape (E,), as a list for each response."""
        return [part.tolist() for part in values.split(self.counts.tolist())]


@dataclass(frozen=True, eq=False)
class TurnDecomposition:
    """The decomposition of the turns of B responses, and the results for each response.

    Attributes:
      entries: the decomposition, in which each row is a turn.
      turns: the turns of the responses.
    """

    entries: Decomposition
    turns: Turns

    @property
    def lists(self) -> list[list[float]]:
        """The advantages of the turns, as a list for each response."""
        return self.turns.lists(self.entries.advantage)

    @property
    def advantage(self) -> Tensor:
        """The mean advantage over the tokens of each response: shape (B,); 0 without tokens."""
        tokens = self.turns.tokens
        total = self.turns.sums(self.entries.advantage * tokens)
        return total / self.turns.sums(tokens).clamp(min=1.0)

    @property
    def batch_step(self) -> BatchStep:
        """The values of the turns before and after the batch step."""
        return self.entries.batch_step

    @property
    def has_signal(self) -> Tensor:
        """The responses with turns in a group that gets an advantage: bool, shape (B,)."""
        learns = torch.zeros(len(self.turns.counts), dtype=torch.bool)
        learns[self.turns.responses[self.entries.has_signal]] = True
        return learns


def to_go(own: Sequence[float]) -> list[float]:
    """Return the reward-to-go of each turn of a response, G[t] = sum over s >= t of r[s].

    A turn that is not scored (NaN) adds nothing. The result is NaN if neither the turn nor a later
    turn is scored.

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
    """Return the decomposition in which each row is a turn of a response.

    A per-turn component is normalised over the responses of the group that reached the turn:

    z[i, k, t] = (G[i, k, t] - mean of G[., k, t]) / (std of G[., k, t] + epsilon)

    G is the credit of a turn, such as its reward-to-go. The mean over all responses that reached a
    turn does not depend on what one response does after that turn. Therefore subtracting the mean
    keeps the direction of the gradient. If n responses reached the turn, the gradient is scaled by
    1 - 1/n, as for a complete response, and divided by the deviation. Normalising the reward of
    each turn, and adding the results up, would be wrong: the sum would depend on where the response
    stops.

    A component without turns has the z of its response, as in `whole`, at each turn. Whitening over
    tokens uses the tokens of each turn.

    Args:
      whole: the decomposition of the responses, with the sums of per-turn components. Its gate
        applies here as well.
      turns: the turns of the responses.
      credit: the credit of each turn after conditions: float64, shape (E, K). It is NaN where a
        turn is not scored, and in the columns of components without turns.
      by_turn: the columns of per-turn components: bool, shape (K,).
    """
    responses = turns.responses
    codes, number = whole.groups
    most = max(turns.counts.tolist(), default=0)
    reached = Groups(codes[responses] * most + turns.numbers, number * most)
    spread = Spread(credit, reached).with_columns(~by_turn, whole.spread, responses)
    spread.scored &= ~whole.gated[responses][:, None]
    entries = replace(
        whole,
        settings=replace(whole.settings, gate=None),
        raw=credit,
        rewards=credit,
        groups=Groups(codes[responses], number),
        token_counts=turns.tokens,
        criteria=(),
        prepared=spread,
    )
    return TurnDecomposition(entries, turns)


def check_credit(variant: Variant, whiten: str, where: str) -> None:
    """Raise ValueError if per-turn credit is not defined for the variant or the whitening.

    `where` is the key of the section in error messages.
    """
    remedy = f"Or set {where}.credit=answer, which credits the complete response with the sum."
    if not variant.reads_only_z:
        raise ValueError(
            f"{where}.variant: {variant.name!r} uses the raw rewards of complete responses in "
            "addition to their normalised values, and the values of a per-turn reward cannot be "
            f"compared between turns. Use gdpo. {remedy}"
        )
    if whiten == "sequence":
        raise ValueError(
            f"{where}.whiten: whitening over sequences needs one value per response, and a "
            f"per-turn reward has one value per turn. Use token or none. {remedy}"
        )
