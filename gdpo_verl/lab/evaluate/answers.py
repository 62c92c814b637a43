"""Read the responses of verl's validation dump, and find the question of each response.

RUN/validation/<step>.jsonl   one line for each response: input, output, gts, score, and what the
                              reward function returned. Training runs write this file, too
                              (trainer.validation_data_dir)
RUN/config.yaml               names the files of questions and the reward function
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType

import pyarrow.parquet as pq
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from gdpo_verl.config.parsing import plain
from gdpo_verl.lab.run.composition import named
from gdpo_verl.lab.rundir.columns import may_be_reward
from gdpo_verl.lab.rundir.dumps import numbered_rows, step_files
from gdpo_verl.lab.rundir.layout import CONFIG, VALIDATION
from gdpo_verl.lab.rundir.responses import Response, responses_of
from gdpo_verl.lab.rundir.run import select, settings_with
from gdpo_verl.lab.rundir.trust import foreign_code
from gdpo_verl.lab.tasks.examples import Example, Finder, digest, example_of, truth_text
from gdpo_verl.plugin.checks.reward_function import declared_reward
from gdpo_verl.rewards.parse_error import ParseError

PARSE_ERROR = "parse_error"
# The columns that every line of verl's validation dump has.
_COLUMNS = {"input", "output", "gts", "score"}


@dataclass(frozen=True)
class Evaluation:
    """The responses of a dump, grouped by question.

    Attributes:
      dump: the file of the dump.
      config: the run's configuration; empty if none was stored.
      questions: the questions of data.val_files; empty if these files cannot be read.
      sources: the data_source of each question with a response, by the question's key.
      answers: the measures of each response, by the question's key. A measure is None if it is not
        scored.
      highest: the largest declared value of each component.
      errors: the number of responses with each `parse_error`.
    """

    dump: Path
    config: DictConfig
    questions: Sequence[Example]
    sources: Mapping[str, str]
    answers: Mapping[str, Sequence[Mapping[str, float | None]]]
    highest: Mapping[str, float | None]
    errors: Mapping[str, int]

    @property
    def samples(self) -> int:
        """The number of responses to each question; the smallest number if they differ."""
        return min(map(len, self.answers.values()))


def find_dump(path: Path) -> Path:
    """Find the validation dump of a path: the file itself, or the last dump of a run directory.

    Raises:
      FileNotFoundError: there is no dump.
    """
    if path.is_file():
        return path
    for folder in (path / VALIDATION, path):
        steps = step_files(folder)
        if steps:
            _, last = steps[-1]
            return last
    found = sorted(entry.name for entry in path.iterdir())[:8] if path.is_dir() else "nothing"
    raise FileNotFoundError(
        f"{path}: expected a validation dump, or a directory with validation/STEP.jsonl, which "
        f"`gdpo-verl evaluate` and training runs write, found {found}"
    )


def read(path: Path, *, by_text: bool = False, trust: bool = False) -> Evaluation:
    """Read the dump that `path` names.

    Args:
      path: see `find_dump`.
      by_text: distinguish questions only by their texts in the dump, without data.val_files.
      trust: load any reward function that the configuration names. Without it, a function from
        outside this package counts as unknown.

    Raises:
      FileNotFoundError, ValueError: there is no dump, or a line does not belong to a dump of verl.
    """
    dump = find_dump(path)
    file = dump.parent.parent / CONFIG
    config = DictConfig({})
    if file.is_file():
        config = settings_with(file, "algorithm", "data", "reward")
    questions = [] if by_text else questions_of(config)
    highest = _highest(config, trust=trust)
    finder = _Questions(questions)
    sources: dict[str, str] = {}
    answers: dict[str, list[dict[str, float | None]]] = defaultdict(list)
    errors: Counter[str] = Counter()
    responses, incomplete = responses_of(numbered_rows(dump), dump)
    others = [response.line for response in responses if not response.row.keys() >= _COLUMNS]
    if incomplete or others:
        raise ValueError(
            f"{dump}, line {min(incomplete + others)}: expected a response of verl's validation "
            "dump (input, output, gts, score), found something else. The file may be incomplete"
        )
    for response in responses:
        key, source = finder.of(response)
        sources[key] = source
        answers[key].append(_values(response, highest))
        code = response.row.get(PARSE_ERROR)
        if isinstance(code, int) and code:
            errors[ParseError(code).name if code in set(ParseError) else str(code)] += 1
    if not answers:
        raise ValueError(f"{dump}: expected a line for each response, found none")
    return Evaluation(dump, config, questions, sources, answers, highest or {}, errors)


class _Questions:
    """Finds the question that a response answers."""

    def __init__(self, questions: Sequence[Example]) -> None:
        self.questions = questions
        self.finder = Finder(questions)
        # Several rows may contain the same question. The first group of responses belongs to the
        # first of these rows, the second group to the second row, and so on. This maps the numbers
        # of the equal rows to their groups, in the order of the dump.
        self.groups: dict[tuple[int, ...], dict[str, int]] = defaultdict(dict)

    def of(self, response: Response) -> tuple[str, str]:
        """Return the key and the data source of a response's question.

        Without data.val_files the key comes from the dump, and the data source is "".
        """
        truth = response.row["gts"]
        numbers = self.finder.fitting(response.prompt, truth)
        source = response.row.get("data_source")
        same = [number for number in numbers if self.questions[number].source == source]
        numbers = same or numbers
        if not numbers:
            return digest([response.prompt, truth_text(truth)]), ""
        groups = self.groups[tuple(numbers)]
        place = groups.setdefault(response.group, len(groups))
        question = self.questions[numbers[place % len(numbers)]]
        return question.key, question.source


def questions_of(config: DictConfig, key: str = "data.val_files") -> list[Example]:
    """Return the rows of the files that a configuration names; none if a file cannot be read."""
    questions: list[Example] = []
    try:
        for file in named(config, key):
            rows = pq.read_table(
                Path(file).expanduser(), columns=["data_source", "prompt", "reward_model"]
            )
            for number, row in enumerate(rows.to_pylist()):
                questions.append(example_of(row, place=f"{file} row {number}"))
    # Arrow's own errors are ValueErrors.
    except (OSError, ValueError, TypeError, KeyError, OmegaConfBaseException):
        return []
    return questions


def _values(
    response: Response, highest: Mapping[str, float | None] | None
) -> dict[str, float | None]:
    """Return a response's measures: its components and the score.

    Without declared components, every number of the row that may be a reward counts.

    Raises:
      ValueError: a value is not a number; the message names file and line.
    """
    row = response.row
    if highest is not None:
        names = [name for name in highest if name in row]
    else:
        kinds = (int, float, list, NoneType)
        numbers = [name for name, value in row.items() if isinstance(value, kinds)]
        names = [name for name in numbers if may_be_reward(name)]
    values = {name: response.number(name) for name in names}
    return values | {"score": response.number("score")}


def _highest(config: DictConfig, *, trust: bool) -> dict[str, float | None] | None:
    """Return the largest declared value of each component; None for an unknown reward function.

    A per-turn component has no largest value, because its declared range is that of one turn, while
    its measure is the sum over the turns.
    """
    if "reward" not in config:
        return None
    declared: dict[str, float | None] = {}
    try:
        if trust or not foreign_code({"reward": plain(config.reward)}):
            for component in declared_reward(config):
                declared[component.name] = None if component.by_turn else component.high
    # The configuration may come from another machine or another program.
    except (ValueError, ModuleNotFoundError, AttributeError, OmegaConfBaseException):
        return None
    keys = select(config, "algorithm.gdpo_reward_keys")
    return declared or (dict.fromkeys(keys) if keys else None)
