"""The answers in verl's validation dump, each with the question of the data that it belongs to.

RUN/validation/<step>.jsonl   a line for each answer: input, output, gts, score, and what the reward
                              returned; a training writes it too (trainer.validation_data_dir)
RUN/config.yaml               where it is there, the questions and the reward are known
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from omegaconf import DictConfig, OmegaConf

from gdpo_verl.config.components import RESERVED
from gdpo_verl.lab.run.composition import named
from gdpo_verl.lab.rundir.dumps import parse_json
from gdpo_verl.lab.rundir.layout import CONFIG, VALIDATION
from gdpo_verl.plugin.reward_function import declared_reward
from gdpo_verl.plugin.row_key import RowKey
from gdpo_verl.rewards.parse_error import ParseError

PARSE_ERROR = "parse_error"


@dataclass(frozen=True)
class Question:
    """A row of data.val_files."""

    place: str  # file and row, for people
    source: str  # its data_source
    messages: Sequence[Mapping[str, Any]]
    truth: str

    @property
    def key(self) -> str:
        """The same for the same question in any file."""
        return _digest([self.source, [dict(each) for each in self.messages], self.truth])


@dataclass(frozen=True)
class Answer:
    """One answer to a question."""

    question: str  # the key of its question
    source: str
    values: Mapping[str, float | None]  # each measure; None where it is not scored


@dataclass(frozen=True)
class Evaluation:
    """The answers in a dump, and what is known of how they came about."""

    dump: Path
    config: DictConfig  # empty where it was not kept
    questions: Sequence[Question]  # of data.val_files; none where these cannot be read
    answers: Sequence[Answer]
    highest: Mapping[str, float | None]  # the largest value of each component, as it is declared
    errors: Mapping[str, int]  # how often each `parse_error`

    @property
    def sources(self) -> dict[str, str]:
        """The source of each question that was answered."""
        return {answer.question: answer.source for answer in self.answers}

    @property
    def samples(self) -> int:
        """The answers to a question; the smallest number where they differ."""
        return min(Counter(answer.question for answer in self.answers).values())


def find_dump(path: Path) -> Path:
    """Find the validation dump that a path names: itself, or the last one of a run's directory.

    Raises:
      FileNotFoundError: there is none.
    """
    if path.is_file():
        return path
    for folder in (path / VALIDATION, path):
        steps = [file for file in folder.glob("*.jsonl") if file.stem.isdecimal()]
        if steps:
            return max(steps, key=lambda file: int(file.stem))
    found = sorted(entry.name for entry in path.iterdir())[:8] if path.is_dir() else "nothing"
    raise FileNotFoundError(
        f"{path}: expected a validation dump, or a directory with validation/STEP.jsonl, which "
        f"`gdpo-verl evaluate` and trainings write, found {found}"
    )


def read(path: Path, *, by_text: bool = False) -> Evaluation:
    """Read the dump that `path` names.

    Args:
      path: see `find_dump`.
      by_text: tell questions apart by the text of the dump alone, whatever the data say.

    Raises:
      FileNotFoundError, ValueError: there is no dump, or a line is none of verl's.
    """
    dump = find_dump(path)
    file = dump.parent.parent / CONFIG
    loaded = OmegaConf.load(file) if file.is_file() else OmegaConf.create({})
    assert isinstance(loaded, DictConfig)
    questions = [] if by_text else questions_of(loaded)
    highest = _highest(loaded)
    find = _Finder(questions)
    answers: list[Answer] = []
    errors: Counter[str] = Counter()
    sessions: set[tuple[str, int]] = set()
    for line in _lines(dump):
        # A session may have several outputs: the first begins with the question, and what the
        # session is worth stands beside each.
        session = _session(line)
        if session in sessions:
            continue
        if session is not None:
            sessions.add(session)
        question = find(line)
        key = question.key if question else _digest([line["input"], truth_text(line["gts"])])
        answers.append(Answer(key, question.source if question else "", _values(line, highest)))
        if isinstance(code := line.get(PARSE_ERROR), int) and code:
            errors[_name_of(code)] += 1
    if not answers:
        raise ValueError(f"{dump}: expected a line for each answer, found none")
    return Evaluation(dump, loaded, questions, answers, highest or {}, errors)


def questions_of(config: DictConfig, key: str = "data.val_files") -> list[Question]:
    """The rows of the parquet files that a configuration names; none where one cannot be read."""
    questions: list[Question] = []
    try:
        for file in named(config, key):
            rows = pq.read_table(
                Path(file).expanduser(), columns=["data_source", "prompt", "reward_model"]
            )
            for number, row in enumerate(rows.to_pylist()):
                truth = truth_text((row["reward_model"] or {}).get("ground_truth"))
                place = f"{file} row {number}"
                questions.append(Question(place, row["data_source"], row["prompt"], truth))
    except (OSError, ValueError, TypeError, KeyError):  # Arrow's own are ValueErrors
        return []
    return questions


def truth_text(truth: Any) -> str:
    """A ground truth as a text, however the data hold it."""
    return truth if isinstance(truth, str) else json.dumps(truth, sort_keys=True, default=str)


class _Finder:
    """Finds the question of a dump's line, which names none: by its truth, then by its words."""

    def __init__(self, questions: Sequence[Question]) -> None:
        self.by_truth: dict[str, list[tuple[str, Question]]] = defaultdict(list)
        for question in questions:
            words = str(question.messages[-1].get("content") or "").strip()
            self.by_truth[question.truth].append((words, question))

    def __call__(self, line: Mapping[str, Any]) -> Question | None:
        candidates = self.by_truth.get(truth_text(line["gts"]), [])
        if len(candidates) == 1:
            return candidates[0][1]
        fitting = [pair for pair in candidates if pair[0] in str(line["input"])]
        # One question's words may begin another's.
        return max(fitting, key=lambda pair: len(pair[0]))[1] if fitting else None


def _lines(dump: Path) -> Iterator[dict[str, Any]]:
    with dump.open("rb") as stream:
        for number, text in enumerate(stream, start=1):
            try:
                line = parse_json(text)
            except ValueError:
                line = None
            if not isinstance(line, dict) or not {"input", "output", "gts", "score"} <= line.keys():
                raise ValueError(
                    f"{dump}, line {number}: expected an answer of verl's validation dump (input, "
                    "output, gts, score), found something else. Was the file cut short?"
                )
            yield line


def _session(line: Mapping[str, Any]) -> tuple[str, int] | None:
    """The session that a line's output belongs to; None where the trainer names none."""
    try:
        key = RowKey.parse(str(line.get("uid")))
    except ValueError:
        return None
    return key.uid, key.session


def _values(
    line: Mapping[str, Any], highest: Mapping[str, float | None] | None
) -> dict[str, float | None]:
    """The measures of a line: the components that are declared, else every number; the score."""
    if highest is None:
        names = [name for name, value in line.items() if _is_measure(name, value)]
    else:
        names = [name for name in highest if name in line]
    return {name: _number(line[name]) for name in [*names, "score"]}


def _is_measure(name: str, value: Any) -> bool:
    if name in (*RESERVED, PARSE_ERROR):
        return False
    return value is None or isinstance(value, (int, float, list))


def _number(value: Any) -> float | None:
    """A measure's value; the sum of a list, which has a number for each turn; else None."""
    if isinstance(value, list) and value:
        parts = [_number(part) for part in value]
        return None if None in parts else math.fsum(part for part in parts if part is not None)
    if not isinstance(value, (int, float)) or math.isnan(value):
        return None
    return float(value)


def _highest(config: DictConfig) -> dict[str, float | None] | None:
    """The largest value of each component, None where it has none; None of an unknown reward."""
    if "reward" not in config:
        return None
    try:
        declared = {each.name: each.high for each in declared_reward(config)}
    except (ValueError, ModuleNotFoundError):  # it was written elsewhere
        return None
    keys = OmegaConf.select(config, "algorithm.gdpo_reward_keys", default=None)
    return declared or (dict.fromkeys(keys) if keys else None)


def _name_of(code: int) -> str:
    return ParseError(code).name if code in set(ParseError) else str(code)


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
