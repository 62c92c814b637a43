"""The numbers of stored answers, a step at a time: their texts are read and let go."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from gdpo_verl.config import Objective
from gdpo_verl.config.components import MINI_BATCH, TOKENS
from gdpo_verl.lab.replay.sources import Layout, Source
from gdpo_verl.lab.rundir.dumps import Row, group_of, is_padding, numbered_rows
from gdpo_verl.lab.rundir.metrics import is_number
from gdpo_verl.plugin.row_key import RowKey
from gdpo_verl.reward_dicts import read_components

Scorer = Callable[[Row, str], Mapping[str, Any]]
Counter_ = Callable[[Row], int]


@dataclass
class Step:
    """The answers of one step, one entry a session.

    Attributes:
      number: of the training.
      places: file and line of each.
      groups: the group of each.
      infos: the components of each.
      score, recorded, tokens: of each; NaN where not there.
      batches: the number of the mini-batch that each was whitened with.
    """

    number: int
    places: list[tuple[Path, int]] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)
    infos: list[dict[str, Any]] = field(default_factory=list)
    score: list[float] = field(default_factory=list)
    recorded: list[float] = field(default_factory=list)
    tokens: list[float] = field(default_factory=list)
    batches: list[float] = field(default_factory=list)
    sessions: dict[tuple[str, int], int] = field(default_factory=dict)

    def whitened_together(self) -> Iterator[list[int]]:
        """The rows of each mini-batch."""
        for batch in dict.fromkeys(self.batches):
            yield [row for row, other in enumerate(self.batches) if other == batch]

    def components(self, objective: Objective) -> Tensor:
        """Shape (B, K); ValueError names key, file and line of what is no number."""
        return read_components(self.infos, objective, [place_text(p) for p in self.places])


@dataclass(frozen=True)
class Reader:
    """Reads the steps of a source.

    Attributes:
      recorded: the column of the advantage that was trained; "" for none.
      score: scores an answer anew; None takes the stored components.
      count: counts an answer's tokens; None takes the stored counts.
    """

    source: Source
    layout: Layout
    recorded: str
    score: Scorer | None = None
    count: Counter_ | None = None

    def steps(self, notes: list[str]) -> Iterator[Step]:
        """The steps in order; `notes` gets a sentence for each that is left out.

        Raises:
          ValueError: names file and line.
        """
        for number, path in self.source.files.items():
            if number is None:
                yield from self._of_many(path)
                continue
            step = Step(number)
            broken = ""
            for line, row in numbered_rows(path):
                if row is None:
                    broken = place_text((path, line))
                    break
                self._add(step, path, line, row)
            if broken:
                notes.append(f"{broken}: no whole row, perhaps cut. Step {number} is left out")
            elif step.places:
                notes.extend(_odd_groups(step))
                yield step
            else:
                notes.append(f"{path}, line 1: no rows. Step {number} is left out")

    def _of_many(self, path: Path) -> Iterator[Step]:
        """The steps of one file of rows, which may lie in any order."""
        steps: dict[int, Step] = {}
        for line, row in numbered_rows(path):
            if row is None:
                raise ValueError(
                    f"{place_text((path, line))}: expected a row, one JSON object a line, found "
                    "no whole one. Mend or remove it"
                )
            number = row.get("step", 0)
            if not is_number(number):
                raise ValueError(
                    f"{place_text((path, line))}: expected a number of the step, found {number!r}"
                )
            self._add(steps.setdefault(int(number), Step(int(number))), path, line, row)
        yield from (steps[number] for number in sorted(steps))

    def _add(self, step: Step, path: Path, line: int, row: Row) -> None:
        if is_padding(row):
            return
        where = place_text((path, line))
        number = row.get("step", step.number)
        if number != step.number:
            raise ValueError(
                f"{where}: expected a row of step {step.number}, found one of step {number!r}. "
                "Are the dumps of two runs in one folder?"
            )
        group, key = self._group(row, where)
        info = self.score(row, where) if self.score else row
        entry = {
            "places": (path, line),
            "groups": group,
            "infos": {name: info[name] for name in self.layout.components if name in info},
            "score": _number(info, "score" if self.score else self.layout.score, where),
            "recorded": _number(row, self.recorded, where),
            "tokens": self.count(row) if self.count else _number(row, TOKENS, where),
            "batches": row.get(MINI_BATCH) or 0,
        }
        # Of several outputs of a session the last one, which comes last, stands for all.
        place = len(step.places) if key is None else step.sessions.setdefault(key, len(step.places))
        for name, value in entry.items():
            column = getattr(step, name)
            if place < len(column):
                column[place] = value
            else:
                column.append(value)

    def _group(self, row: Row, where: str) -> tuple[str, tuple[str, int] | None]:
        """The group, and the session where verl names one."""
        if self.layout.group:
            if row.get(self.layout.group) is None:
                raise ValueError(f"{where}: expected a value of {self.layout.group!r}, found none")
            return str(row[self.layout.group]), None
        group = group_of(row)[1]
        try:
            name = RowKey.parse(str(row.get("uid", "")))
        except ValueError:
            return group, None
        return group, (name.uid, name.session)


def place_text(place: tuple[Path, int]) -> str:
    """The file and the line of a row."""
    return f"{place[0]}, line {place[1]}"


def _number(row: Mapping[str, Any], key: str, where: str) -> float:
    value = row.get(key)
    if value is None or value != value:
        return math.nan
    if not is_number(value):
        raise ValueError(f"{where}: expected a finite number for {key!r}, found {value!r}")
    return float(value)


def _odd_groups(step: Step) -> Iterator[str]:
    """Name groups that may be two: the same prompt drawn twice, where nothing else tells."""
    sizes = Counter(step.groups)
    common = Counter(sizes.values()).most_common(1)[0][0]
    odd = [group for group, size in sizes.items() if size != common]
    if odd:
        file, line = step.places[step.groups.index(odd[0])]
        yield (
            f"{place_text((file, line))}: its group has {sizes[odd[0]]} answers, where most of "
            f"step {step.number} have {common} ({len(odd)} such groups of {len(sizes)})"
        )
