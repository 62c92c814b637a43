"""The outcome gate: groups whose outcome is constant get no advantage."""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

from torch import Tensor

from gdpo_verl.advantage.groups import Spread

When = Literal["constant", "failed"]


class Gate(NamedTuple):
    """The groups that get no advantage and take no part in the batch step.

    In a group whose outcome is constant, a secondary reward such as length still has normalised
    values of full size. A policy that fails everywhere would then learn to fail with few tokens.
    The gate sets the advantage to 0, and not the mask, which is the denominator of the loss.

    Attributes:
      column: of the outcome.
      when: "constant": the outcome does not vary in the group; "failed": it does not vary and is
        not above 0.
    """

    column: int
    when: When = "constant"

    def closed(self, spread: Spread) -> Tensor:
        """Return the rows of the groups that get no advantage: bool, shape (B,)."""
        # A group in which the outcome is not scored has no outcome that could be constant.
        varies = spread.group_varies[:, self.column]
        count = spread.count[:, self.column]
        closed = ~varies & (count > 0)
        return closed & (spread.mean[:, self.column] <= 0) if self.when == "failed" else closed


def check_gate(gate: Gate | int | None, components: int) -> Gate | None:
    """Return the gate on one of the components; `gate` may also be the column of the outcome.

    Raises:
      ValueError: there is no such column, or `when` is unknown.
    """
    if gate is None:
        return None
    found = gate if isinstance(gate, Gate) else Gate(gate)
    # True is an int in Python, and would mean the second column.
    if isinstance(found.column, bool) or not isinstance(found.column, int):
        raise ValueError(f"gate: expected the column of the outcome, found {gate!r}")
    if not 0 <= found.column < components:
        raise ValueError(f"gate: expected a column from 0 to {components - 1}, found {gate!r}")
    if found.when not in get_args(When):
        raise ValueError(f"gate: expected when to be one of {list(get_args(When))}, found {gate!r}")
    return found
