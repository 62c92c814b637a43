"""The stored responses of a place: a run, verl's dumps, TRL's completions, or a table of others.

Dumps are read a step at a time; a file that may hold several steps is read at once.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from gdpo_verl.advantage.checks import is_number
from gdpo_verl.config.components import (
    ADVANTAGE,
    BY_CRITERION,
    BY_TURN,
    RESERVED,
    TOKENS,
    Component,
)
from gdpo_verl.lab.rundir import layout
from gdpo_verl.lab.rundir.dumps import (
    ADVANTAGES,
    SUFFIXES,
    TEXTS,
    Row,
    assistant_text,
    numbered_rows,
    reward_of,
    step_files,
    step_of,
)
from gdpo_verl.lab.rundir.metrics import RunError
from gdpo_verl.lab.rundir.responses import Batch, Response, responses_of
from gdpo_verl.lab.rundir.run import node_of, read_run
from gdpo_verl.lab.rundir.trust import check_no_foreign_code
from gdpo_verl.names import did_you_mean
from gdpo_verl.reward_dicts import unnested

TokenCounter: TypeAlias = Callable[[str], int]
# Rows that show the columns of a file where the components are named.
_PEEK = 1024
# Columns with numbers that no reward returned.
_NO_REWARD = {*RESERVED, "advantage", "parse_error", "prompt", "completion", "response"}


class Scorer(Protocol):
    """A reward function, with the components that it declares."""

    components: tuple[Component, ...]

    def __call__(self, row: Row, where: str) -> Mapping[str, Any]:
        """Return what the reward function returns; ValueError names `where`."""


@dataclass
class Source:
    """The files of one place; `notes` gets sentences on them.

    Attributes:
      path: a run, a folder of dumps or a file.
      group: the column that names the group; "" for verl's uid, else its prompt.
      text: the column of the response's text; "" for the usual names.
      named: the columns of the components, where the user names them.
      keys: the components that the settings name, for rows where nothing else names them.
      scorer: scores the responses anew; None uses the stored components.
      counter: counts the tokens of a text; None uses the stored counts.
      trust: the run's configuration may name code from outside this package.
      notes: sentences.
      files: by step; by None one that may hold several.
      run: the folder of the run, where its configuration and metrics are.
      first_place: the place of the first row.
      columns: the columns of the rows, and `numbers` those that hold a number in a row: of all
        files, or where the components are named, of the first rows.
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
    text: str = ""
    named: Sequence[str] = ()
    keys: Sequence[str] = ()
    scorer: Scorer | None = None
    counter: TokenCounter | None = None
    trust: bool = False
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.files = find_dumps(self.path)
        first = next(iter(self.files.values()))
        folder = first.parent
        inside = folder.name in (layout.ROLLOUTS, layout.VALIDATION)
        self.run = folder.parent if inside else folder
        self._note(*_missing(folder, [step for step in self.files if step is not None]))
        self.first_place = f"{first}, line 1"
        self.columns: list[str] = []
        self.numbers: list[str] = []
        self._read_columns()
        self._check_columns()
        self.is_ours = ADVANTAGES[0] in self.columns
        self.is_trls = "advantage" in self.columns and "completion" in self.columns
        self.counts_tokens = self.counter is not None or TOKENS in self.columns
        scores = [name for name in ("score", "reward") if name in self.columns]
        self.score_column = "" if self.is_ours or self.is_trls or not scores else scores[0]
        self._tables: dict[int, Path] = {}
        self._scored: dict[tuple[Path, int], dict[str, Any]] = {}

    def _note(self, *sentences: str) -> None:
        """Add sentences, each once, however often the files are read."""
        self.notes += [sentence for sentence in sentences if sentence not in self.notes]

    def _read_columns(self) -> None:
        rows = self._all_rows()
        if self.named or self.scorer or self.logged:
            rows = itertools.islice(rows, _PEEK)
        # Whether a row has a reward in the column.
        columns: dict[str, bool] = {}
        # The first place of a text that is a number.
        texts: dict[str, str] = {}
        for path, line, row in rows:
            for name, value in (row or {}).items():
                if columns.setdefault(name, False) or not self._may_be_reward(name):
                    continue
                columns[name] = reward_of(value) is not None
                if isinstance(value, str) and _is_number_text(value):
                    texts.setdefault(name, f"{path}, line {line}")
        if not columns:
            raise ValueError(
                f"{self.first_place}: expected rows, one JSON object a line, found none"
            )
        self.columns = list(columns)
        self.numbers = [name for name in columns if columns[name]]
        for name, place in texts.items():
            if not columns[name]:
                self._note(
                    f"{place}: the numbers of {name!r} are texts, so that it is no component; "
                    "write them as numbers"
                )

    def _may_be_reward(self, name: str) -> bool:
        return not (name in _NO_REWARD or name == self.group or name.endswith(ADVANTAGE))

    def _all_rows(self) -> Iterator[tuple[Path, int, Row | None]]:
        for path in self.files.values():
            for line, row in numbered_rows(path):
                yield path, line, row

    def _check_columns(self) -> None:
        """Raise ValueError where a name is not a column, or where no column has the groups."""
        names = [("--group", self.group), ("--response", self.text)]
        names += [("--components", name) for name in self.named]
        for option, name in names:
            if name and name not in self.columns:
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
        declared: dict[str, Component] = {}
        if self.scorer:
            declared = {component.name: component for component in self.scorer.components}
        names = self.named or list(declared) or self._names_of_rows()
        # `GDPOTrainer` writes the ranges that it was given.
        ranges = (self.algorithm or {}).get("ranges") or {}
        components = []
        for name in names:
            low, high = ranges.get(name, (None, None))
            by_turn = f"{name}{BY_TURN}" in self.columns
            by_criterion = f"{name}{BY_CRITERION}" in self.columns
            component = Component(name, low, high, by_turn=by_turn, by_criterion=by_criterion)
            components.append(declared.get(name, component))
        return components

    def _names_of_rows(self) -> Sequence[str]:
        """Return the components' names where neither the user nor a declaration gives them."""
        if self.scorer:
            is_scored: dict[str, bool] = {}
            for number, path in self.files.items():
                for response in self._responses(number, path):
                    for name, value in self._returned(response).items():
                        before = is_scored.get(name, False)
                        is_scored[name] = before or reward_of(value) is not None
            return [name for name in is_scored if is_scored[name] and self._may_be_reward(name)]
        named_by_settings = () if self.is_ours else self.keys
        return self.logged or named_by_settings or self.numbers

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
        algorithm = None
        # A run of verl's own command has what Hydra kept of it.
        for config in (self.run / ".hydra/config.yaml", self.run / layout.CONFIG):
            if config.is_file():
                algorithm = node_of(config, "algorithm")
                if not self.trust:
                    remedy = "add --trust; otherwise give a copy of only the folder of dumps"
                    check_no_foreign_code({"algorithm": algorithm}, str(config), remedy)
        return algorithm

    def batches(self) -> Iterator[Batch]:
        """Yield the batches in the order of their steps.

        Raises:
          ValueError: names file and line.
        """
        for number, path in self.files.items():
            yield from self.batches_of(number, path)

    def batches_of(self, number: int | None, path: Path) -> list[Batch]:
        """Return the batches of one of `files`; none where a row of a step is incomplete.

        Raises:
          ValueError: names file and line.
        """
        batches: dict[tuple[int, float], Batch] = {}
        for response in self._responses(number, path):
            step = int(response.row.get("step", number or 0))
            batch = batches.setdefault((step, response.mini_batch), Batch(step, [], []))
            batch.responses.append(response)
            batch.rewards.append(self._returned(response))
        returned = [rewards for batch in batches.values() for rewards in batch.rewards]
        # A reward that no response of the file has is not scored there.
        held = set().union(*returned)
        absent = [each.name for each in self.components if each.name not in held]
        if absent:
            for rewards in returned:
                rewards.update(dict.fromkeys(absent))
        for batch in batches.values():
            self._note(*self._odd_groups(batch))
        return [batches[place] for place in sorted(batches)]

    def _responses(self, number: int | None, path: Path) -> list[Response]:
        """Return a file's responses; none of a step with an incomplete row."""
        responses, incomplete = responses_of(numbered_rows(path), path, self.group)
        if incomplete and number is None:
            raise ValueError(
                f"{path}, line {incomplete[0]}: expected a JSON object, found an incomplete one. "
                "Correct or remove the line"
            )
        if incomplete:
            self._note(
                f"{path}, line {incomplete[0]}: the row is incomplete. Step {number} is left out"
            )
            return []
        if not responses:
            self._note(f"{path}, line 1: no rows. Step {number} is left out")
        for response in responses:
            self._check_step(response, number)
            if self.text:
                for row in response.outputs:
                    row["output"] = assistant_text(row.get(self.text))
            if self.counter:
                # As in a training, those of all outputs.
                texts = [self._text_of(row, response.place) for row in response.outputs]
                response.row[TOKENS] = sum(map(self.counter, texts))
        if self.is_trls and self._repeats(responses, path):
            self._note(
                f"{path}: the table holds the generation of an earlier table again "
                f"(steps_per_generation or num_iterations), so that step {number} is left out"
            )
            return []
        return responses

    def _check_step(self, response: Response, number: int | None) -> None:
        step = response.row.get("step", number or 0)
        if not is_number(step):
            raise ValueError(f"{response.place}: expected a number for 'step', found {step!r}")
        if number not in (None, step):
            raise ValueError(
                f"{response.place}: expected a row of step {number}, found one of step {step!r}. "
                "Are the dumps of two runs in one folder?"
            )

    def _repeats(self, responses: Sequence[Response], path: Path) -> bool:
        """Return whether another table has the same responses."""
        table = tuple((each.prompt, each.text, each.row.get("advantage")) for each in responses)
        return self._tables.setdefault(hash(table), path) != path

    def _returned(self, response: Response) -> dict[str, Any]:
        """Return what the reward function returned for a response: its row, or scored anew."""
        if self.scorer is None:
            return response.row
        place = (response.file, response.line)
        if place not in self._scored:
            self._text_of(response.row, response.place)
            self._scored[place] = dict(unnested(self.scorer(response.row, response.place)))
        return self._scored[place]

    def _text_of(self, row: Row, place: str) -> str:
        text = row.get("output")
        if not isinstance(text, str):
            columns = self.text or ", ".join(TEXTS)
            raise ValueError(
                f"{place}: expected the text of the response in the column {columns}, found the "
                f"columns {list(row)}. Name its column with --response"
            )
        return text

    def _odd_groups(self, batch: Batch) -> Iterator[str]:
        """Name groups of an unusual size: the same prompt may have been drawn twice."""
        sizes = Counter(batch.groups)
        common = Counter(sizes.values()).most_common(1)[0][0]
        odd = [group for group, size in sizes.items() if size != common]
        if odd:
            yield (
                f"{batch.places[batch.groups.index(odd[0])]}: its group has {sizes[odd[0]]} "
                f"responses, but most groups of step {batch.step} have {common} ({len(odd)} of "
                f"{len(sizes)} groups differ)"
            )
        if self.is_trls and not self.group and "uid" not in self.columns and len(sizes) == 1:
            yield (
                f"{batch.places[0]}: all responses of step {batch.step} have one prompt and count "
                "as one group. If several groups have this prompt, name a column that holds their "
                "numbers with --group"
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
    dumps: dict[Path, list[tuple[int, Path]]] = {}
    for folder in [path, *path.glob("*/"), *path.glob("*/*/")]:
        files = step_files(folder)
        if files and (folder == path or folder.name != layout.VALIDATION):
            dumps[folder] = files
    if not dumps:
        names = sorted(each.name for each in path.glob("*"))
        raise NoDumpsError(
            f"{path}: expected rollouts/<step>.jsonl of a run, verl's <step>.jsonl "
            "(trainer.rollout_data_dir), TRL's completions_<step>.parquet (log_completions), or a "
            f"file of rows, {' or '.join(SUFFIXES)}, found {names[:8] or 'nothing'}. Give the path "
            "of a file with another name."
        )
    if len(dumps) > 1:
        raise ValueError(
            f"{path}: expected the dumps of one run, found those of {len(dumps)}: "
            f"{', '.join(map(str, dumps))}. Give one of these folders."
        )
    (files,) = dumps.values()
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


def _is_number_text(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
