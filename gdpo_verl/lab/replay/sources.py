"""Stored answers: of a run, of verl's dumps, of TRL's completions, of a file of anybody's rows.

Dumps are read a step at a time; a file that may hold several steps is read whole.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from gdpo_verl.config.components import ADVANTAGE, BY_TURN, MINI_BATCH, RESERVED, TOKENS
from gdpo_verl.config.parsing import plain
from gdpo_verl.lab.rundir import layout
from gdpo_verl.lab.rundir.dumps import (
    ADVANTAGES,
    SUFFIXES,
    Row,
    group_of,
    is_padding,
    numbered_rows,
    step_files,
    step_of,
)
from gdpo_verl.lab.rundir.metrics import RunError, is_number
from gdpo_verl.lab.rundir.run import read_run
from gdpo_verl.names import did_you_mean
from gdpo_verl.plugin.row_key import RowKey

# Rows that are looked at to know the columns: a component may be unscored in the first of them.
_PEEK = 1024
# Columns with numbers that no reward returned.
_NO_REWARD = (*RESERVED, "advantage", "parse_error", "prompt", "completion")


@dataclass(frozen=True)
class Answer:
    """One stored answer, and where it lies.

    Attributes:
      components: what the reward returned.
      turns: the lists of components by turn, and of the tokens, by their columns.
      score, recorded, tokens: NaN where not there.
    """

    file: Path
    line: int
    group: str
    prompt: str
    output: str
    components: dict[str, Any]
    turns: dict[str, list[Any]]
    score: float
    recorded: float
    tokens: float

    @property
    def place(self) -> str:
        """File and line, for people."""
        return f"{self.file}, line {self.line}"

    @property
    def entry(self) -> dict[str, Any]:
        """The answer for a program: where it stands, its texts and components."""
        names = ("line", "group", "prompt", "output", "components")
        return {"file": str(self.file)} | {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class Batch:
    """Answers of a step that were whitened together, one a session."""

    step: int
    answers: Sequence[Answer]

    @property
    def groups(self) -> list[str]:
        """The group of each answer."""
        return [each.group for each in self.answers]


@dataclass
class Source:
    """The files of one place; `notes` gets what there is to say of them.

    Attributes:
      path: a run, a folder of dumps or a file.
      group: the column that names the group; "" for verl's uid, else its prompt.
      named: the components, where the user or a setting names them.
      score: scores an answer anew; None takes the stored components.
      count: counts an answer's tokens; None takes the stored counts.
      recorded: the column of the advantage that was trained; "" for none.
      notes: sentences.

    Raises:
      ValueError: there are no answers, or those of several runs; names the path.
    """

    path: Path
    group: str = ""
    named: Sequence[str] = ()
    score: Callable[[Row, str], Mapping[str, Any]] | None = None
    count: Callable[[Row], int] | None = None
    recorded: str = ""
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.files = find_dumps(self.path)
        folder = next(iter(self.files.values())).parent
        inside = folder.name in (layout.ROLLOUTS, layout.VALIDATION)
        self.run = folder.parent if inside else folder
        self.notes += _missing(folder, [step for step in self.files if step is not None])

    @cached_property
    def first_rows(self) -> list[Row]:
        """The first rows, which tell the columns."""
        first = next(iter(self.files.values()))
        rows = [row for _, row in itertools.islice(numbered_rows(first), _PEEK) if row]
        if not rows:
            raise ValueError(f"{first}, line 1: expected rows, one JSON object a line, found none")
        return rows

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The columns of the rows."""
        columns = tuple(dict.fromkeys(key for row in self.first_rows for key in row))
        if not self.group and "uid" not in columns and "input" not in columns:
            raise ValueError(
                f"{self.first_place}: the rows hold neither uid nor prompt. Name the column that "
                f"answers to one prompt share with --group; there are {list(columns)}"
            )
        return columns

    @property
    def first_place(self) -> str:
        """File and line of the first row."""
        return f"{next(iter(self.files.values()))}, line 1"

    @property
    def is_ours(self) -> bool:
        """The plug-in has dumped its advantages."""
        return ADVANTAGES[0] in self.columns

    @property
    def is_trls(self) -> bool:
        """TRL has logged the completions."""
        return {"advantage", "completion"} <= set(self.columns)

    @property
    def counts_tokens(self) -> bool:
        """The tokens of each answer are known."""
        return self.count is not None or TOKENS in self.columns

    @property
    def score_column(self) -> str:
        """The column that GRPO normalised; "" where it is the sum of the components."""
        if self.is_ours or self.is_trls:
            return ""
        return next((name for name in ("score", "reward") if name in self.columns), "")

    @cached_property
    def components(self) -> tuple[str, ...]:
        """The components in order; empty where there are none."""
        if self.named:
            return tuple(self.named)
        if self.score:
            returned = self.score(self.first_rows[0], self.first_place)
            return _numbers([dict(returned)])
        try:
            logged = read_run(self.run).components
        except RunError:
            logged = []
        return tuple(logged) or _numbers(self.first_rows)

    @cached_property
    def algorithm(self) -> dict[str, Any] | None:
        """verl's node of the run's configuration, where that was kept."""
        found = None
        # A run of verl's own command has what Hydra kept of it.
        for config in (self.run / ".hydra/config.yaml", self.run / layout.CONFIG):
            if config.is_file():
                found = _algorithm_of(config)
        return found

    @cached_property
    def _lists(self) -> list[str]:
        return [f"{name}{BY_TURN}" for name in (*self.components, TOKENS)]

    def check_columns(self, option: str, names: Sequence[str]) -> None:
        """Raise ValueError where a name is no column."""
        for name in names:
            if name not in self.columns:
                raise ValueError(
                    f"{option}: {name!r} is no column of {self.first_place}; there are "
                    f"{list(self.columns)}.{did_you_mean(name, self.columns)}"
                )

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
            found.setdefault(batch, {})[_session_of(row, line)] = self._answer(row, path, line)
        return found, 0

    def _answer(self, row: Row, path: Path, line: int) -> Answer:
        place = f"{path}, line {line}"
        group = row.get(self.group) if self.group else group_of(row)[1]
        if group is None:
            raise ValueError(f"{place}: expected a value of {self.group!r}, found none")
        returned = self.score(row, place) if self.score else row
        return Answer(
            file=path,
            line=line,
            group=str(group),
            prompt=str(row.get("input", "")),
            output=str(row.get("output", "")),
            components={key: returned[key] for key in self.components if key in returned},
            turns={key: row[key] for key in self._lists if row.get(key) is not None},
            score=_number(row, self.score_column, place),
            recorded=_number(row, self.recorded, place),
            tokens=self.count(row) if self.count else _number(row, TOKENS, place),
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
    for one, other in itertools.pairwise(files):
        if step_of(one) == step_of(other):
            raise ValueError(
                f"{path}: expected the dumps of one run, found {one.name} and {other.name}, both "
                "of one step. Give a folder with one of them."
            )
    return {step_of(each): each for each in files}


def _algorithm_of(config: Path) -> dict[str, Any] | None:
    try:
        node = OmegaConf.select(OmegaConf.load(config), "algorithm")
        return None if node is None else plain(node)
    except (OmegaConfBaseException, yaml.YAMLError, TypeError) as error:
        raise ValueError(
            f"{config}: expected the run's configuration with `algorithm`, found: {error}. "
            "Mend it, or give a copy of the folder of dumps alone"
        ) from error


def _missing(folder: Path, steps: Sequence[int]) -> Iterator[str]:
    # A run may dump every tenth step alone.
    strides = {after - before for before, after in itertools.pairwise(steps)}
    if len(strides) > 1:
        absent = sorted(set(range(steps[0], steps[-1])) - set(steps))
        more = ", …" if len(absent) > 8 else ""
        yield (
            f"{folder}: of steps {steps[0]} to {steps[-1]} are missing "
            f"{', '.join(map(str, absent[:8]))}{more}"
        )


def _numbers(rows: Sequence[Row]) -> tuple[str, ...]:
    """The columns of a reward that hold a number in one of the rows."""
    columns = dict.fromkeys(key for row in rows for key in row)
    numbers = {
        key for row in rows for key, value in row.items() if is_number(value) or value is True
    }
    own = [name for name in columns if name not in _NO_REWARD and not name.endswith(ADVANTAGE)]
    return tuple(name for name in own if name in numbers)


def _session_of(row: Row, line: int) -> Any:
    """The session of a row; the line where verl has named none."""
    try:
        name = RowKey.parse(str(row.get("uid", "")))
    except ValueError:
        return line
    return name.uid, name.session


def _number(row: Row, key: str, place: str) -> float:
    value = row.get(key)
    if value is None or value != value:
        return math.nan
    if not is_number(value):
        raise ValueError(f"{place}: expected a finite number for {key!r}, found {value!r}")
    return float(value)


def _odd_groups(batch: Batch) -> Iterator[str]:
    """Name groups that may be two: the same prompt drawn twice, where nothing else tells."""
    sizes = Counter(batch.groups)
    common = Counter(sizes.values()).most_common(1)[0][0]
    odd = [group for group, size in sizes.items() if size != common]
    if odd:
        first = batch.answers[batch.groups.index(odd[0])]
        yield (
            f"{first.place}: its group has {sizes[odd[0]]} answers, where most of step "
            f"{batch.step} have {common} ({len(odd)} such groups of {len(sizes)})"
        )
