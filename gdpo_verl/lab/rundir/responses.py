"""Stored responses, their batches, and a table of the rewards that vary in each group.

A rollout (verl calls it a session) may have several outputs, and a dump has one row for each
output. As in training, the rollout is one response, and its last output has the rewards
(`gdpo_verl.plugin.step.batch.Sessions`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gdpo_verl.advantage.groups import GroupIds, Spread, factorize_groups, groups_with_any
from gdpo_verl.config.components import MINI_BATCH
from gdpo_verl.lab.rundir.dumps import Row, is_padding, number_of, reward_of, row_key


@dataclass(frozen=True, slots=True)
class Response:
    """One stored response.

    Attributes:
      file, line: the place of the row of its last output.
      group: the uid of its prompt; the prompt itself if there is no uid.
      mini_batch: the number of the mini-batch, within its step, in which it was whitened.
      row: the row of its last output, from which the rewards are read.
      earlier: the rows of its earlier outputs, in their order.
    """

    file: Path
    line: int
    group: str
    mini_batch: float
    row: Row
    earlier: Sequence[Row] = ()

    @property
    def outputs(self) -> list[Row]:
        """The rows of all outputs, in their order."""
        return [*self.earlier, self.row]

    @property
    def prompt(self) -> str:
        """The prompt of the first output; later outputs have longer prompts."""
        first = self.earlier[0] if self.earlier else self.row
        return str(first.get("input", ""))

    @property
    def text(self) -> Any:
        """The text of the last output; None if the row has no text."""
        return self.row.get("output")

    @property
    def place(self) -> str:
        """The file and the line of the row, for messages."""
        return f"{self.file}, line {self.line}"

    def number(self, column: str) -> float | None:
        """Return a number of the row, as `number_of` reads it; a ValueError names file and line."""
        return number_of(self.row.get(column), column, self.place)


def responses_of(
    rows: Iterable[tuple[int, Row | None]], file: Path, group: str = ""
) -> tuple[list[Response], list[int]]:
    """Return the responses of numbered rows, without padding rows, and the incomplete lines.

    Args:
      rows: line numbers and rows, as `numbered_rows` yields them.
      file: the file of the rows, for messages.
      group: the column that names the group; "" uses verl's uid, or the prompt if there is no uid.

    Raises:
      ValueError: a row has no value in the column of the group; the message names file and line.
    """
    responses: dict[Any, Response] = {}
    incomplete = []
    for line, row in rows:
        if row is None:
            incomplete.append(line)
            continue
        key = row_key(row)
        if is_padding(row, key):
            continue
        if group:
            name = row.get(group)
            if name is None:
                raise ValueError(f"{file}, line {line}: expected a value of {group!r}, found none")
        elif key is not None:
            name = key.uid
        else:
            name = row.get("uid", row.get("input", ""))
        mini_batch = reward_of(row.get(MINI_BATCH)) or 0.0
        response = Response(file, line, str(name), mini_batch, row)
        # A row without a key is a rollout with a single output.
        session = line if key is None else (key.uid, key.session)
        if session in responses:
            response = _joined(responses[session], response)
        responses[session] = response
    return list(responses.values()), incomplete


def places_by_group(group_ids: Iterable[Hashable]) -> list[list[int]]:
    """Return the places of each group's responses; groups in the order of their first response.

    >>> places_by_group(["a", "b", "a"])
    [[0, 2], [1]]
    """
    places: dict[Hashable, list[int]] = defaultdict(list)
    for place, group in enumerate(group_ids):
        places[group].append(place)
    return list(places.values())


def _joined(one: Response, other: Response) -> Response:
    """Join outputs of one rollout; verl's balancing may have shuffled their rows."""
    outputs = sorted([*one.outputs, *other.outputs], key=_output_of)
    last = one if outputs[-1] is one.row else other
    return replace(last, earlier=outputs[:-1])


def _output_of(row: Row) -> int:
    key = row_key(row)
    return 0 if key is None else key.output


@dataclass(frozen=True)
class Batch:
    """Responses of one step that were whitened together.

    Attributes:
      step: the training step.
      responses: the B responses.
      rewards: the dict that the reward function returned for each response; it contains the
        components.
    """

    step: int
    responses: list[Response]
    rewards: list[dict[str, Any]]

    @property
    def groups(self) -> list[str]:
        """The group of each response."""
        return [response.group for response in self.responses]

    @cached_property
    def places(self) -> list[str]:
        """The file and the line of each response."""
        return [response.place for response in self.responses]

    def numbers(self, column: str) -> Tensor:
        """Return a column of the rows: float64, shape (B,), NaN for a missing value.

        Raises:
          ValueError: a value is not a number; the message names file and line.
        """
        numbers = [response.number(column) for response in self.responses]
        # NumPy converts None to NaN.
        return torch.from_numpy(np.array(numbers, dtype=np.float64))


@dataclass(frozen=True)
class GroupTable:
    """A table that says for each of G groups which of the K components vary.

    The training metrics use the same definition (`gdpo_verl.diagnostics.component_metrics`).

    Attributes:
      size: int64, shape (G,); the number of responses in each group.
      scored: bool, shape (G, K); True if the component is scored for a response of the group.
      varies: bool, shape (G, K); True if the component is not constant in the group.
    """

    size: Tensor
    scored: Tensor
    varies: Tensor

    @classmethod
    def of(cls, rewards: Tensor, group_ids: GroupIds) -> GroupTable:
        """Return the table for rewards before conditions: float64, shape (B, K)."""
        groups = factorize_groups(group_ids, rewards)
        spread = Spread(rewards, groups)
        return cls(
            groups.codes.bincount(minlength=groups.number),
            groups_with_any(spread.scored, groups),
            groups_with_any(spread.varies, groups),
        )

    @property
    def constant(self) -> Tensor:
        """True where a component is scored in a group, and constant: bool, shape (G, K)."""
        return self.scored & ~self.varies

    @property
    def dead(self) -> Tensor:
        """True for groups of several responses whose components are all constant: shape (G,)."""
        return (self.size > 1) & self.scored.any(dim=1) & ~self.varies.any(dim=1)
