"""Derived components, which a user's function computes from all responses of a group."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gdpo_verl.advantage.checks import LARGEST, read_number
from gdpo_verl.advantage.variants import load_function, random_state_kept


@dataclass(frozen=True)
class Derived:
    """One entry of `algorithm.gdpo.derived`.

    Attributes:
      key: the full key in the settings, for error messages.
      address: the address of the function, ``pkg://module:function`` or ``FILE.py:function``.
      options: the keyword arguments of the function.
      range: the lowest and the highest value, in reward units, if they are known.
    """

    key: str
    address: str
    options: Mapping[str, Any]
    range: tuple[float, float] | None = None

    @cached_property
    def function(self) -> Any:
        """The function; raises ValueError if it cannot be imported."""
        return load_function(self.address, self.key)

    def _of_group(
        self, infos: list[dict[str, Any]], lengths: list[int | None], group: str
    ) -> list[float]:
        """Call the function on the responses of one group; error messages name it `group`."""
        where = f"{self.key}: {self.address}"
        size = len(infos)
        function = self.function
        try:
            values = list(function(infos, lengths, **self.options))
        except Exception as error:  # a user's function may raise anything
            hint = ""
            if None in lengths:
                hint = " (the lengths are None: pass token_counts)"
            raise ValueError(
                f"{where} failed for {group}: {type(error).__name__}: {error}{hint}"
            ) from error
        if len(values) != size:
            raise ValueError(
                f"{where}: expected {size} values for {group}, one for each of its "
                f"responses, found {len(values)}"
            )
        numbers = [read_number(value) for value in values]
        for place, number in enumerate(numbers):
            if math.isinf(number):
                raise ValueError(
                    f"{where}: expected numbers of at most {LARGEST:g} in size, or None where "
                    f"not scored, found {values[place]!r} for {group}, response {place}"
                )
        return numbers

    @random_state_kept()
    def column(
        self,
        infos: Sequence[Mapping[str, Any]],
        lengths: Sequence[int | None],
        groups: Sequence[Hashable],
    ) -> list[float]:
        """Call the function on the responses of each group.

        Args:
          infos: the dict that the reward function returned for each response. The function gets
            copies of the dicts.
          lengths: the length of each response in tokens; None if it is not known.
          groups: the group of each response. Responses in the same group share a prompt.

        Returns:
          One number for each response; NaN if a response is not scored or is alone in its group.

        Raises:
          ValueError: the function raised an exception, or did not return a number or None for each
            response. The error names the function and the group.
        """
        rows_of: dict[Hashable, list[int]] = {}
        for row, group in enumerate(groups):
            rows_of.setdefault(group, []).append(row)
        column = [math.nan] * len(infos)
        for group, rows in rows_of.items():
            if len(rows) == 1:  # the function would have nothing to compare the response with
                continue
            copies = [dict(infos[row]) for row in rows]
            of_rows = [lengths[row] for row in rows]
            values = self._of_group(copies, of_rows, f"the group {group!r}")
            for row, value in zip(rows, values, strict=True):
                column[row] = value
        return column
