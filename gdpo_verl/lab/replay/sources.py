"""Stored answers: of a run, of verl's dumps, of TRL's completions, of a file of anybody's rows.

Dumps are read a step at a time; a file that may hold several steps is read whole.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from torch import Tensor

from gdpo_verl.config.components import (
    ADVANTAGE,
    BY_TURN,
    MINI_BATCH,
    RESERVED,
    TOKENS,
    Component,
)
from gdpo_verl.config.parsing import plain
from gdpo_verl.lab.replay.scoring import StoredAnswerScorer, TokenCounter
from gdpo_verl.lab.rundir import layout
from gdpo_verl.lab.rundir.dumps import (
    ADVANTAGES,
    SUFFIXES,
    Row,
    group_of,
    is_number,
    is_padding,
    numbered_rows,
    reward_of,
    session_of,
    step_files,
    step_of,
)
from gdpo_verl.lab.rundir.metrics import RunError
from gdpo_verl.lab.rundir.run import read_run, read_settings
from gdpo_verl.lab.rundir.trust import check_no_foreign_code
from gdpo_verl.names import did_you_mean

# Rows that are looked at to know the columns: a component may be unscored in the first of them.
_PEEK = 1024
# Columns with numbers that no reward returned.
_NO_REWARD = (*RESERVED, "advantage", "parse_error", "prompt", "completion")


@dataclass(frozen=True)
class Answer:
    """One stored answer, and where it lies.

    Attributes:
      row: as it is stored.
      components: what the reward returned.
      turns: the lists of components by turn, by their columns.
    """

    file: Path
    line: int
    group: str
    row: Row
    components: dict[str, Any]
    turns: dict[str, Any]

    @property
    def place(self) -> str:
        """File and line, for people."""
        return f"{self.file}, line {self.line}"

    @property
    def entry(self) -> dict[str, Any]:
        """The answer for a program: where it stands, its texts and components."""
        return {
            "file": str(self.file),
            "line": self.line,
            "group": self.group,
            "prompt": str(self.row.get("input", "")),
            "output": str(self.row.get("output", "")),
            "components": self.components,
        }


@dataclass(frozen=True)
class Batch:
    """Answers of a step that were whitened together, one a session."""

    step: int
    answers: Sequence[Answer]

    @property
    def groups(self) -> list[str]:
        """The group of each answer."""
        return [each.group for each in self.answers]

    @property
    def places(self) -> list[str]:
        """File and line of each."""
        return [each.place for each in self.answers]

    @property
    def infos(self) -> list[dict[str, Any]]:
        """The components of each, those by turn with their lists."""
        return [each.components | each.turns for each in self.answers]

    def numbers(self, column: str) -> Tensor:
        """A column of the rows: float64, shape (B,), NaN where it is not there.

        Raises:
          ValueError: something else is there; names file and line.
        """
        values = [each.row.get(column) for each in self.answers]
        for answer, value in zip(self.answers, values, strict=True):
            if not (value is None or value != value or is_number(value)):
                raise ValueError(
                    f"{answer.place}: expected a finite number for {column!r}, found {value!r}"
                )
        numbers = [math.nan if value is None else float(value) for value in values]
        return torch.tensor(numbers, dtype=torch.float64)


@dataclass
class Source:
    """The files of one place; `notes` gets what there is to say of them.

    Attributes:
      path: a run, a folder of dumps or a file.
      group: the column that names the group; "" for verl's uid, else its prompt.
      named: the columns of the components, where the user names them.
      keys: those that are asked for, which are the components where nothing else tells.
      scorer: scores the answers anew; None takes the stored components.
      counter: counts an answer's tokens; None takes the stored counts.
      trust: the run's configuration may name code from outside of this package.
      notes: sentences.
      files: by step; by None one that may hold several.
      run: the folder of the run, where its configuration and metrics are.
      first_rows, first_place: of the first file, which tell the columns.
      columns: of the rows.
      is_ours: the plug-in has dumped its advantages.
      is_trls: TRL has logged the completions.
      counts_tokens: the tokens of each answer are known.
      score_column: that GRPO normalised; "" where it is the sum of the components.

    Raises:
      ValueError: there are no answers, or those of several runs, or what is named is no column;
        names the path.
    """

    path: Path
    group: str = ""
    named: Sequence[str] = ()
    keys: Sequence[str] = ()
    scorer: StoredAnswerScorer | None = None
    counter: TokenCounter | None = None
    trust: bool = False
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.files = find_dumps(self.path)
        first = next(iter(self.files.values()))
        folder = first.parent
        inside = folder.name in (layout.ROLLOUTS, layout.VALIDATION)
        self.run = folder.parent if inside else folder
        self.notes += _missing(folder, [step for step in self.files if step is not None])
        self.first_place = f"{first}, line 1"
        rows = [row for _, row in itertools.islice(numbered_rows(first), _PEEK) if row]
        if not rows:
            raise ValueError(
                f"{self.first_place}: expected rows, one JSON object a line, found none"
            )
        self.first_rows = rows
        self.columns = list(dict.fromkeys(key for row in rows for key in row))
        self._check_columns()
        self.is_ours = ADVANTAGES[0] in self.columns
        self.is_trls = "advantage" in self.columns and "completion" in self.columns
        self.counts_tokens = self.counter is not None or TOKENS in self.columns
        scores = [name for name in ("score", "reward") if name in self.columns]
        self.score_column = "" if self.is_ours or self.is_trls or not scores else scores[0]

    def _check_columns(self) -> None:
        """Raise ValueError where what the user names is no column, or nothing tells the groups."""
        names = [("--group", self.group)] if self.group else []
        names += [("--components", name) for name in self.named]
        for option, name in names:
            if name not in self.columns:
                raise ValueError(
                    f"{option}: {name!r} is no column of {self.first_place}; there are "
                    f"{self.columns}.{did_you_mean(name, self.columns)}"
                )
        if not self.group and "uid" not in self.columns and "input" not in self.columns:
            raise ValueError(
                f"{self.first_place}: the rows hold neither uid nor prompt. Name the column that "
                f"answers to one prompt share with replay's --group; there are {self.columns}"
            )

    @cached_property
    def components(self) -> list[Component]:
        """The components in order; empty where there are none."""
        declared = {each.name: each for each in self.scorer.components} if self.scorer else {}
        names = self.named or list(declared) or self._found()
        # `GDPOTrainer` writes the ranges that it was given.
        ranges = (self.algorithm or {}).get("ranges") or {}
        found = []
        for name in names:
            low, high = ranges.get(name, (None, None))
            by_turn = f"{name}{BY_TURN}" in self.columns
            found.append(declared.get(name, Component(name, low, high, by_turn=by_turn)))
        return found

    def _found(self) -> Sequence[str]:
        """The names of the components where neither the user nor a reward function says them."""
        if self.scorer:
            return _numbers([self.scorer(self.first_rows[0], self.first_place)])
        asked = () if self.is_ours else self.keys
        return self.logged or asked or _numbers(self.first_rows)

    @cached_property
    def logged(self) -> Sequence[str]:
        """The components in the metrics of the run, where there are any."""
        try:
            return read_run(self.run).components
        except RunError:
            return ()

    @cached_property
    def algorithm(self) -> dict[str, Any] | None:
        """verl's node of the run's configuration, where that was kept."""
        found = None
        # A run of verl's own command has what Hydra kept of it.
        for config in (self.run / ".hydra/config.yaml", self.run / layout.CONFIG):
            if not config.is_file():
                continue
            try:
                node = OmegaConf.select(read_settings(config), "algorithm")
                found = None if node is None else plain(node)
            except (OmegaConfBaseException, yaml.YAMLError, TypeError) as error:
                raise ValueError(
                    f"{config}: expected the run's configuration with `algorithm`, found: {error}. "
                    "Mend it, or give a copy of the folder of dumps alone"
                ) from error
            if not self.trust:
                remedy = "add --trust; otherwise give a copy of the folder of dumps alone"
                check_no_foreign_code({"algorithm": found}, str(config), remedy)
        return found

    def batches(self) -> Iterator[Batch]:
        """The batches in the order of their steps.

        Raises:
          ValueError: names file and line.
        """
        for number, path in self.files.items():
            found, cut = self._read(number, path)
            if cut:
                self.notes.append(
                    f"{path}, line {cut}: no whole row, perhaps cut. Step {number} is left out"
                )
                continue
            if not found:
                self.notes.append(f"{path}, line 1: no rows. Step {number} is left out")
            for (step, _), sessions in sorted(found.items()):
                batch = Batch(step, list(sessions.values()))
                self.notes += _odd_groups(batch)
                yield batch

    def _read(
        self, number: int | None, path: Path
    ) -> tuple[dict[tuple[int, float], dict[Any, Answer]], int]:
        """The answers of a file by step and mini-batch and by session, and the line that is cut."""
        found: dict[tuple[int, float], dict[Any, Answer]] = {}
        for line, row in numbered_rows(path):
            place = f"{path}, line {line}"
            if row is None and number is None:
                raise ValueError(
                    f"{place}: expected a row, one JSON object a line, found no whole one. Mend "
                    "or remove it"
                )
            if row is None:
                return found, line
            if is_padding(row):
                continue
            step = row.get("step", number or 0)
            if not is_number(step) or number not in (None, step):
                expected = "with a number" if number is None else number
                raise ValueError(
                    f"{place}: expected a row of step {expected}, found one of step {step!r}. Are "
                    "the dumps of two runs in one folder?"
                )
            batch = int(step), row.get(MINI_BATCH) or 0
            # Of several outputs of a session the last one, which comes last, stands for all.
            # One that verl has not named is its own.
            found.setdefault(batch, {})[session_of(row) or line] = self._answer(row, path, line)
        return found, 0

    def _answer(self, row: Row, path: Path, line: int) -> Answer:
        place = f"{path}, line {line}"
        group = row.get(self.group) if self.group else group_of(row)[1]
        if group is None:
            raise ValueError(f"{place}: expected a value of {self.group!r}, found none")
        if self.counter:
            row = row | {TOKENS: self.counter(row)}
        returned = self.scorer(row, place) if self.scorer else row
        names = [each.name for each in self.components]
        lists = [f"{name}{BY_TURN}" for name in names]
        return Answer(
            file=path,
            line=line,
            group=str(group),
            row=row,
            components={key: returned[key] for key in names if key in returned},
            turns={key: returned[key] for key in lists if returned.get(key) is not None},
        )


class NoDumpsError(ValueError):
    """There are no answers at a path."""


def find_dumps(path: Path) -> dict[int | None, Path]:
    """The files of answers at a path by step; by None one that may hold several steps.

    Raises:
      ValueError: there are none (`NoDumpsError`), or those of several runs.
    """
    if path.is_file() and path.suffix in SUFFIXES:
        return {step_of(path): path}
    inside = [*path.glob("*/"), *path.glob("*/*/")]
    folders = [path, *(each for each in inside if each.name != layout.VALIDATION)]
    found = {folder: files for folder in folders if (files := step_files(folder))}
    if not found:
        names = sorted(each.name for each in path.glob("*"))
        raise NoDumpsError(
            f"{path}: expected rollouts/<step>.jsonl of a run, verl's <step>.jsonl "
            "(trainer.rollout_data_dir), TRL's completions_<step>.parquet (log_completions), or a "
            f"file of rows, {' or '.join(SUFFIXES)}, found {names[:8] or 'nothing'}. A file of "
            "other rows is named itself."
        )
    if len(found) > 1:
        raise ValueError(
            f"{path}: expected the dumps of one run, found those of {len(found)}: "
            f"{', '.join(map(str, found))}. Give one of them."
        )
    (files,) = found.values()
    for (step, one), (next_step, other) in itertools.pairwise(files):
        if step == next_step:
            raise ValueError(
                f"{path}: expected the dumps of one run, found {one.name} and {other.name}, both "
                "of one step. Give a folder with one of them."
            )
    return dict(files)


def _missing(folder: Path, steps: Sequence[int]) -> Iterator[str]:
    # A run may dump every tenth step alone.
    strides = {after - before for before, after in itertools.pairwise(steps)}
    if len(strides) > 1:
        known = set(steps)
        # Not all of them at once: the last step may be any number.
        all_absent = (step for step in range(steps[0], steps[-1]) if step not in known)
        absent = list(itertools.islice(all_absent, 9))
        more = ", …" if len(absent) > 8 else ""
        yield (
            f"{folder}: of steps {steps[0]} to {steps[-1]} are missing "
            f"{', '.join(map(str, absent[:8]))}{more}"
        )


def _numbers(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The columns of a reward that hold a number in one of the rows."""
    columns = dict.fromkeys(key for row in rows for key in row)
    numbers = [key for key in columns if any(reward_of(row.get(key)) is not None for row in rows)]
    return [key for key in numbers if key not in _NO_REWARD and not key.endswith(ADVANTAGE)]


def _odd_groups(batch: Batch) -> Iterator[str]:
    """Name groups that may be two: the same prompt drawn twice, where nothing else tells."""
    sizes = Counter(batch.groups)
    common = Counter(sizes.values()).most_common(1)[0][0]
    odd = [group for group, size in sizes.items() if size != common]
    if odd:
        yield (
            f"{batch.places[batch.groups.index(odd[0])]}: its group has {sizes[odd[0]]} answers, "
            f"where most of step {batch.step} have {common} ({len(odd)} such groups of "
            f"{len(sizes)})"
        )
