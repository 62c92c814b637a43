"""Stored responses of a run, of verl's dumps, of TRL's completions or of another table.

Dumps are read one step at a time. A file that may contain several steps is read in one piece.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from gdpo_verl.advantage.checks import is_number
from gdpo_verl.config.components import BY_CRITERION, BY_TURN, TOKENS, Component
from gdpo_verl.lab.rundir import layout
from gdpo_verl.lab.rundir.columns import read_columns
from gdpo_verl.lab.rundir.dumps import (
    TEXTS,
    Row,
    assistant_text,
    find_dumps,
    numbered_rows,
)
from gdpo_verl.lab.rundir.metrics import RunError
from gdpo_verl.lab.rundir.responses import Batch, Response, responses_of
from gdpo_verl.lab.rundir.run import node_of, read_run
from gdpo_verl.lab.rundir.scoring import StoredAnswerScorer, TokenCounter
from gdpo_verl.lab.rundir.trust import check_no_foreign_code
from gdpo_verl.names import did_you_mean

# The number of rows from which the columns are read where the names of the components are known.
_PEEK = 1024


@dataclass
class Source:
    """The stored responses at one path, with the settings of their run.

    Attributes:
      path: a run, a folder of dumps or a file.
      group: the column that names the group; "" uses verl's uid, or the prompt where there is no
        uid.
      text: the column with the response's text; "" tries the usual names.
      named: the columns of the components; empty where the user does not name them.
      scorer: scores the responses again; None uses the stored components.
      counter: counts the tokens of a text; None uses the stored counts.
      trust: True if the run's configuration may name code from outside this package.
      notes: sentences about the files, for the user.
      files: the files by step. The key None stands for a file that may contain several steps.
      run: the folder of the run, which contains its configuration and metrics.
      columns: the columns of all rows; only of the first rows where the names of the components
        are known.
      first_place: the file and the line of the first row.

    Raises:
      ValueError: there are no responses, or responses of several runs, or a name is not a column.
        The message names the path.
    """

    path: Path
    group: str = ""
    text: str = ""
    named: Sequence[str] = ()
    scorer: StoredAnswerScorer | None = None
    counter: TokenCounter | None = None
    trust: bool = False
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.files = find_dumps(self.path)
        first = next(iter(self.files.values()))
        self.first_place = f"{first}, line 1"
        is_inside = first.parent.name in (layout.ROLLOUTS, layout.VALIDATION)
        self.run = first.parent.parent if is_inside else first.parent
        rows = self._all_rows()
        if self.named or self.scorer or self.logged:
            rows = itertools.islice(rows, _PEEK)
        self.columns = read_columns(rows, self.group)
        self._check_columns()
        self._tables: dict[int, Path] = {}
        self._scored: dict[tuple[Path, int], dict[str, Any]] = {}

    @property
    def counts_tokens(self) -> bool:
        """True if the token counts of the responses are known."""
        return self.counter is not None or TOKENS in self.columns.names

    def _note(self, sentence: str) -> None:
        """Add a sentence to the notes, unless an earlier read of the files has added it."""
        if sentence not in self.notes:
            self.notes.append(sentence)

    def _all_rows(self) -> Iterator[tuple[Path, int, Row | None]]:
        for path in self.files.values():
            for line, row in numbered_rows(path):
                yield path, line, row

    def _check_columns(self) -> None:
        """Raise ValueError if a name is not a column, or if no column identifies the groups."""
        columns = self.columns.names
        if not columns:
            raise ValueError(
                f"{self.first_place}: expected rows, one JSON object a line, found none"
            )
        names = [("--group", self.group), ("--response", self.text)]
        names += [("--components", name) for name in self.named]
        for option, name in names:
            if name and name not in columns:
                raise ValueError(
                    f"{option}: expected a column of {self.first_place}, one of {columns}, "
                    f"found {name!r}.{did_you_mean(name, columns)}"
                )
        if not self.group and "uid" not in columns and "input" not in columns:
            raise ValueError(
                f"{self.first_place}: expected the column uid or prompt, found {columns}. "
                "Name the column whose value the responses to one prompt share with --group"
            )
        for name, place in self.columns.number_texts.items():
            if name not in self.columns.rewards:
                self._note(
                    f"{place}: the numbers of {name!r} are texts, so that it is no component; "
                    "write them as numbers"
                )

    @cached_property
    def components(self) -> list[Component]:
        """The components in order; empty if the rows have none."""
        declared: dict[str, Component] = {}
        if self.scorer:
            declared = {component.name: component for component in self.scorer.components}
        names = self.named or list(declared) or self._names_of_rows()
        # TRL's `GDPOTrainer` stores the ranges that its user declared.
        ranges = (self.algorithm or {}).get("ranges") or {}
        components = []
        for name in names:
            low, high = ranges.get(name, (None, None))
            by_turn = f"{name}{BY_TURN}" in self.columns.names
            by_criterion = f"{name}{BY_CRITERION}" in self.columns.names
            component = Component(name, low, high, by_turn=by_turn, by_criterion=by_criterion)
            components.append(declared.get(name, component))
        return components

    def _names_of_rows(self) -> Sequence[str]:
        """Return the components' names if neither the user nor a declaration gives them."""
        if not self.scorer:
            return self.logged or self.columns.rewards
        returned = []
        for number, path in self.files.items():
            for response in self._responses(number, path):
                returned.append((path, response.line, self._returned(response)))
        return read_columns(returned, self.group).rewards

    @cached_property
    def logged(self) -> Sequence[str]:
        """The components in the metrics of the run; empty if there are no metrics."""
        try:
            return read_run(self.run).components
        except RunError:
            return ()

    @cached_property
    def algorithm(self) -> dict[str, Any] | None:
        """The node `algorithm` of the run's configuration; None if no configuration was stored."""
        algorithm = None
        # For a run that verl's own command started, Hydra stored the configuration in .hydra/.
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
          ValueError: a row cannot be used; the message names file and line.
        """
        for number, path in self.files.items():
            yield from self.batches_of(number, path)

    def batches_of(self, number: int | None, path: Path) -> list[Batch]:
        """Return the batches of one of `files`; none if a row of the step is incomplete.

        Raises:
          ValueError: a row cannot be used; the message names file and line.
        """
        batches: dict[tuple[int, float], Batch] = {}
        for response in self._responses(number, path):
            step = int(response.row.get("step", number or 0))
            batch = batches.setdefault((step, response.mini_batch), Batch(step, [], []))
            batch.responses.append(response)
            batch.rewards.append(self._returned(response))
        returned = [rewards for batch in batches.values() for rewards in batch.rewards]
        # A component that no response of the file has counts as not scored.
        present = set().union(*returned)
        absent = [component.name for component in self.components if component.name not in present]
        if absent:
            for rewards in returned:
                rewards.update(dict.fromkeys(absent))
        for batch in batches.values():
            self._note_equal_prompts(batch)
        return [batches[place] for place in sorted(batches)]

    def _responses(self, number: int | None, path: Path) -> list[Response]:
        """Return a file's responses; none if a row of its step is incomplete."""
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
        for response in responses:
            self._check_step(response, number)
            self._read_texts(response)
        if self.columns.is_trls and self._repeats(responses, path):
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

    def _read_texts(self, response: Response) -> None:
        """Read the texts from the column that the user named, and count their tokens."""
        if self.text:
            for row in response.outputs:
                row["output"] = assistant_text(row.get(self.text))
        if self.counter:
            # As in training, a response's tokens are those of all its outputs.
            texts = [self._text_of(row, response.place) for row in response.outputs]
            response.row[TOKENS] = sum(map(self.counter, texts))

    def _repeats(self, responses: Sequence[Response], path: Path) -> bool:
        """Return whether a table at another path has the same responses."""
        table = tuple((each.prompt, each.text, each.row.get("advantage")) for each in responses)
        return self._tables.setdefault(hash(table), path) != path

    def _returned(self, response: Response) -> dict[str, Any]:
        """Return a response's rewards: those of its row, or those that the scorer returns."""
        if self.scorer is None:
            return response.row
        place = (response.file, response.line)
        if place not in self._scored:
            self._text_of(response.row, response.place)
            self._scored[place] = self.scorer(response.row, response.place)
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

    def _note_equal_prompts(self, batch: Batch) -> None:
        """Note that groups of TRL with equal prompts may have been read as one group."""
        has_ids = bool(self.group) or "uid" in self.columns.names
        if self.columns.is_trls and not has_ids and len(set(batch.groups)) == 1:
            self._note(
                f"{batch.places[0]}: all responses of step {batch.step} have one prompt and count "
                "as one group. If several groups have this prompt, name a column that holds their "
                "numbers with --group"
            )
