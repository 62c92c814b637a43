"""Stored responses: of a run, verl's dumps, TRL's completions, or a table with other names.

Dumps are read a step at a time; a file that may hold several steps is read at once.
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

# Rows that are read to know the columns: a component may be unscored in the first of them.
_PEEK = 1024
# Columns with numbers that no reward returned.
_NO_REWARD = (*RESERVED, "advantage", "parse_error", "prompt", "completion")


@dataclass(frozen=True)
class Answer:
    """One stored response, and its place.

    Attributes:
      row: as it is stored.
      components: what the reward function returned.
      turns: the lists of the components per turn, by their columns.
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
        """The response as JSON holds it: its place, texts and components."""
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
    """Responses of a step that were whitened together, one per rollout."""

    step: int
    answers: Sequence[Answer]

    @property
    def groups(self) -> list[str]:
        """The group of each response."""
        return [each.group for each in self.answers]

    @property
    def places(self) -> list[str]:
        """File and line of each."""
        return [each.place for each in self.answers]

    @property
    def infos(self) -> list[dict[str, Any]]:
        """The components of each response, with the lists of those per turn."""
        return [each.components | each.turns for each in self.answers]

    def numbers(self, column: str) -> Tensor:
        """Return a column of the rows: float64, shape (B,), NaN where it is absent.

        Raises:
          ValueError: a value is not a number; names file and line.
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
    """The files of one place; `notes` gets sentences on them.

    Attributes:
      path: a run, a folder of dumps or a file.
      group: the column that names the group; "" for verl's uid, else its prompt.
      named: the columns of the components, where the user names them.
      keys: the components that the settings name, for rows where nothing else names them.
      scorer: scores the responses anew; None uses the stored components.
      counter: counts the tokens of a response; None uses the stored counts.
      trust: the run's configuration may name code from outside this package.
      notes: sentences.
      files: by step; by None one that may hold several.
      run: the folder of the run, where its configuration and metrics are.
      first_rows, first_place: the first rows of the first file, and the place of the first one.
      columns: the columns of the first rows.
      is_ours: the plug-in has dumped its advantages.
      is_trls: TRL has logged the completions.
      counts_tokens: the token counts of the responses are known.
      score_column: the score that GRPO normalised; "" where it is the sum of the components.

    Raises:
      ValueError: there are no responses, or those of several runs, or a name is not a column;
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
        """Raise ValueError where a name is not a column, or where no column has the groups."""
        names = [("--group", self.group)] if self.group else []
        names += [("--components", name) for name in self.named]
        for option, name in names:
            if name not in self.columns:
                raise ValueError(
                    f"{option}: expected a column of {self.first_place}, one of {self.columns}, "
                    f"found {name!r}.{did_you_mean(name, self.columns)}"
                )
        if not self.group and "uid" not in self.columns and "input" not in self.columns:
            raise ValueError(
                f"{self.first_place}: expected the column uid or prompt, found {self.columns}. "
                "Name the column whose value the responses to one prompt share with --group"
            )

    @cached_property
    def components(self) -> list[Component]:
        """The components in order; empty where the rows have none."""
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
        """Return the components' names where neither the user nor a reward function gives them."""
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
                    "Correct it, or give a copy of only the folder of dumps"
                ) from error
            if not self.trust:
                remedy = "add --trust; otherwise give a copy of only the folder of dumps"
                check_no_foreign_code({"algorithm": found}, str(config), remedy)
        return found

    def batches(self) -> Iterator[Batch]:
        """Yield the batches in the order of their steps.

        Raises:
          ValueError: names file and line.
        """
        for number, path in self.files.items():
            found, cut = self._read(number, path)
            if cut:
                self.notes.append(
                    f"{path}, line {cut}: the row is incomplete. Step {number} is left out"
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
        """Return a file's responses by step and mini-batch and by session, and an incomplete line.

        Of a session with several outputs the last one counts. The line is 0 without such a line.
        """
        found: dict[tuple[int, float], dict[Any, Answer]] = {}
        for line, row in numbered_rows(path):
            place = f"{path}, line {line}"
            if row is None and number is None:
                raise ValueError(
                    f"{place}: expected a JSON object, found an incomplete one. Correct or remove "
                    "the line"
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
            # A row without a session is a session of its own.
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
    """There are no responses at a path."""


def find_dumps(path: Path) -> dict[int | None, Path]:
    """Return the files of responses by step; by None a file that may hold several steps.

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
            f"file of rows, {' or '.join(SUFFIXES)}, found {names[:8] or 'nothing'}. Give the path "
            "of a file with another name."
        )
    if len(found) > 1:
        raise ValueError(
            f"{path}: expected the dumps of one run, found those of {len(found)}: "
            f"{', '.join(map(str, found))}. Give one of these folders."
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
    # A run may dump only every tenth step.
    pairs = list(itertools.pairwise(steps))
    usual = min((after - before for before, after in pairs), default=0)
    gaps = [f"{before} and {after}" for before, after in pairs if after - before > usual]
    if gaps:
        yield f"{folder}: steps are missing between {', '.join(gaps)}"


def _numbers(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the columns that hold a number in one of the rows and may be components."""
    columns = dict.fromkeys(key for row in rows for key in row)
    numbers = [key for key in columns if any(reward_of(row.get(key)) is not None for row in rows)]
    return [key for key in numbers if key not in _NO_REWARD and not key.endswith(ADVANTAGE)]


def _odd_groups(batch: Batch) -> Iterator[str]:
    """Name groups of an unusual size: the same prompt may have been drawn twice."""
    sizes = Counter(batch.groups)
    common = Counter(sizes.values()).most_common(1)[0][0]
    odd = [group for group, size in sizes.items() if size != common]
    if odd:
        yield (
            f"{batch.places[batch.groups.index(odd[0])]}: its group has {sizes[odd[0]]} responses, "
            f"but most groups of step {batch.step} have {common} ({len(odd)} of {len(sizes)} "
            "groups differ)"
        )
