"""The outcome gate: groups whose outcome is constant get no advantage."""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

from torch import Tensor

from gdpo_verl.advantage.groups import Spread

When = Literal["constant", "failed"]


class Gate(NamedTuple):
    """A rule by which a group gets no advantage, and takes no part in the whitening.

    The outcome is the component that says whether the task is solved. In a group whose outcome is
    constant, a secondary reward such as length still has normalised values of full size. A policy
    that always fails would then learn to fail with few tokens.

    The gate sets the advantages to 0. It does not change the mask, because the loss is divided by
    the number of tokens in the mask.

    Attributes:
      column: the column of the outcome.
      when: "constant" applies the rule if the outcome is constant in the group. "failed" applies
        it if the outcome is constant and not above 0.
    """

    column: int
    when: When = "constant"

    def closed(self, spread: Spread) -> Tensor:
        """Return the rows of the groups that get no advantage: bool, shape (B,)."""
        # A group in which the outcome is not scored at all is not gated.
        varies = spread.group_varies[:, self.column]
        count = spread.count[:, self.column]
        closed = ~varies & (count > 0)
        return closed & (spread.mean[:, self.column] <= 0) if self.when == "failed" else closed


def check_gate(gate: Gate | int | None, components: int) -> Gate | None:
    """Return the gate; the argument may also be the column of the outcome alone.

    Raises:
      ValueError: there is no such column, or `when` is unknown.
    """
    if gate is None:
        return None
    checked = gate if isinstance(gate, Gate) else Gate(gate)
    # True is an int in Python, and would otherwise be accepted as the column 1.
    if isinstance(checked.column, bool) or not isinstance(checked.column, int):
        raise ValueError(f"gate: expected the column of the outcome, found {gate!r}")
    if not 0 <= checked.column < components:
        raise ValueError(f"gate: expected a column from 0 to {components - 1}, found {gate!r}")
    if checked.when not in get_args(When):
        raise ValueError(f"gate: expected when to be one of {list(get_args(When))}, found {gate!r}")
    return checked
