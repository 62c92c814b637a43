"""Find the columns of stored rows, and those whose numbers may be rewards."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from gdpo_verl.config.components import ADVANTAGE, RESERVED
from gdpo_verl.lab.rundir.dumps import ADVANTAGES, Row, reward_of

# Columns that contain numbers, but no rewards.
_NO_REWARD = {*RESERVED, "advantage", "parse_error", "prompt", "completion", "response"}


@dataclass
class Columns:
    """The columns of stored rows, in the order in which they first occur.

    Attributes:
      has_reward: for each column, True if it may be a component and a row has a number in it.
      number_texts: for each column that has numbers written as text, the place of the first one.
    """

    has_reward: dict[str, bool] = field(default_factory=dict)
    number_texts: dict[str, str] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """The names of all columns."""
        return list(self.has_reward)

    @property
    def rewards(self) -> list[str]:
        """The columns that may be components."""
        return [name for name, is_reward in self.has_reward.items() if is_reward]

    @property
    def is_ours(self) -> bool:
        """True if the plug-in has dumped the rows, with its advantages."""
        return ADVANTAGES[0] in self.has_reward

    @property
    def is_trls(self) -> bool:
        """True if TRL has logged the rows as completions."""
        return "advantage" in self.has_reward and "completion" in self.has_reward

    @property
    def score(self) -> str:
        """The column of the score that GRPO normalised; "" if it is the sum of the components."""
        if self.is_ours or self.is_trls:
            return ""
        return next((name for name in ("score", "reward") if name in self.has_reward), "")


def may_be_reward(name: str, group: str = "") -> bool:
    """Return whether a column may be a component.

    Args:
      name: the column.
      group: the column that names the groups; "" if there is none.
    """
    return not (name in _NO_REWARD or name == group or name.endswith(ADVANTAGE))


def read_columns(rows: Iterable[tuple[Path, int, Row | None]], group: str) -> Columns:
    """Read the columns of rows.

    Args:
      rows: the file, the line and the content of each row; None for an incomplete row.
      group: the column that names the groups; "" if there is none.
    """
    columns = Columns()
    has_reward = columns.has_reward
    for path, line, row in rows:
        for name, value in (row or {}).items():
            if has_reward.setdefault(name, False) or not may_be_reward(name, group):
                continue
            has_reward[name] = reward_of(value) is not None
            if isinstance(value, str) and _is_number(value):
                columns.number_texts.setdefault(name, f"{path}, line {line}")
    return columns


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
