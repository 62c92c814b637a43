"""Benchmarks: questions, the judge of an answer, and the default sampling."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from gdpo_verl.lab.files import sha256
from gdpo_verl.lab.tasks import catalog
from gdpo_verl.lab.tasks.rows import chat_text, check_messages, text_of
from gdpo_verl.names import did_you_mean

ACCURACY = "accuracy"

Averages = Mapping[str, Sequence[Sequence[str] | str]]


@dataclass(frozen=True)
class Sampling:
    """The settings with which answers are drawn."""

    temperature: float  # 0 is greedy
    top_p: float
    max_tokens: int  # of one answer
    samples: int = 1  # answers to each question
    seed: int = 0  # decides each draw, with the question's name

    def __post_init__(self) -> None:
        for name, valid, wanted, found in (
            ("--temperature", self.temperature >= 0, "0 or more", self.temperature),
            ("--top-p", 0 < self.top_p <= 1, "more than 0 and at most 1", self.top_p),
            ("--max-tokens", self.max_tokens >= 1, "at least 1", self.max_tokens),
            ("--samples", self.samples >= 1, "at least 1", self.samples),
            ("--seed", self.seed >= 0, "0 or more", self.seed),
        ):
            if not valid:
                raise ValueError(f"{name}: expected {wanted}, found {found}")
        if self.temperature == 0 and self.samples > 1:
            raise ValueError(
                f"--samples: expected 1 at temperature 0, where all answers are the same, found "
                f"{self.samples}; give --temperature too"
            )


@dataclass(frozen=True)
class Question:
    """A chat to ask and what its answer is judged by."""

    name: str  # unlike any other's
    category: str  # the row of the table it counts in
    messages: Sequence[Mapping[str, str]]  # the user's turn last
    truth: Any  # what an answer is judged by, as JSON can hold it

    @property
    def prompt(self) -> str:
        return chat_text(self.messages)


@dataclass(frozen=True)
class Questions:
    """Questions and where they come from, with a hash or a revision of it."""

    items: Sequence[Question]
    about: Mapping[str, Any]

    @classmethod
    def read(cls, file: str, parse: Callable[[str], Any]) -> Questions:
        """Read a prepared file: the category is the data source, the truth its text.

        ``parse`` is the reward's own parser, which has to read every ground truth.
        """
        path = Path(file).expanduser()
        items = []
        for number, row in enumerate(read_rows(path)):
            truth = row["reward_model"]["ground_truth"]
            try:
                parse(truth)
            except ValueError as error:
                raise ValueError(
                    f"--data: {path}, row {number}: {error}. Is it this benchmark's data?"
                ) from error
            items.append(Question(f"row {number}", row["data_source"], row["prompt"], truth))
        return cls(items, {"file": str(path), "sha256": sha256(path)})


@dataclass(frozen=True)
class Score:
    """The worth of an answer."""

    measures: Mapping[str, float]  # 0 to 1 each; `ACCURACY` is one
    error: IntEnum  # why it could not be read, `NONE` when it could
    reason: str = ""  # what the judge objects to, where it says so


@dataclass(frozen=True)
class ModelAnswer:
    """The model's answer."""

    text: str  # without special tokens
    tokens: int  # how many, the end token included
    finish: str  # 'stop', 'length' when cut off, or 'prompt too long' when it was not asked


Ask = Callable[[Sequence[Mapping[str, str]]], ModelAnswer]
Dialogue = Callable[[Ask], ModelAnswer]


class Stopped(RuntimeError):
    """The model failed, so that this dialogue gets no further answer."""


class Benchmark(ABC):
    """A benchmark; one file each.

    Args:
      name: as `catalog.TASKS` has it.
      allow_unprotected: run programs of the model even where nothing protects the machine.
      prompt_from: parquet files of training rows; what is fixed in their prompts is asked with,
        where a benchmark's questions can be put in several ways.
    """

    sampling: ClassVar[Sampling]
    """By default that of the validation in the recipe of the same task."""
    averages: ClassVar[Averages] = {}
    """Unweighted means of parts. A part pools the questions of several categories, or is an
    average that stands before it."""
    pass_at: ClassVar[tuple[int, ...]] = ()
    """The k > 1 whose pass@k is estimated, where there are as many answers."""
    not_covered: ClassVar[str] = ""
    context: ClassVar[int] = 0
    """Tokens that a dialogue may grow to, where the model allows as many."""

    def __init__(
        self, name: str, *, allow_unprotected: bool = False, prompt_from: Sequence[str] = ()
    ) -> None:
        self.name = name
        self.allow_unprotected = allow_unprotected
        self.prompt_from = prompt_from

    @abstractmethod
    def load(self, data: str | None) -> Questions:
        """The questions of a file or another source, by default of the benchmark's own."""

    def dialogue(self, question: Question) -> Dialogue | None:
        """The question in several steps, or None; a dialogue may be held several times at once."""
        return None

    @abstractmethod
    def score(self, question: Question, text: str, tokens: int) -> Score:
        """Judge an answer of ``tokens`` tokens; called from several threads, and never raises."""


def open_benchmark(
    name: str, *, allow_unprotected: bool = False, prompt_from: Sequence[str] = ()
) -> Benchmark:
    """Open the benchmark of this name; for the other arguments see `Benchmark`."""
    known = list(catalog.BENCHMARKS)
    if name not in known:
        raise ValueError(
            f"benchmark: expected one of {known}, found {name!r}.{did_you_mean(name, known)}"
        )
    # Imported now, because each benchmark needs other packages.
    module, _, kind = str(catalog.BENCHMARKS[name].benchmark).partition(":")
    found: type[Benchmark] = getattr(catalog.load_module(module), kind)
    return found(name, allow_unprotected=allow_unprotected, prompt_from=prompt_from)


def questions_digest(questions: Sequence[Question]) -> str:
    """The SHA-256 of what is asked and how it is judged, in order."""
    digest = hashlib.sha256()
    # With the truths: answers to the same words, judged by others, cannot be compared.
    for each in questions:
        asked = [each.name, each.category, list(each.messages), each.truth]
        digest.update(json.dumps(asked, sort_keys=True).encode() + b"\n")
    return digest.hexdigest()


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a prepared parquet file, none without verl's columns."""
    if not path.is_file():
        raise FileNotFoundError(
            f"--data: {path} does not exist (seen from {Path.cwd()}).{_advice(path)}"
        )
    try:
        rows = pq.read_table(path).to_pylist()
    except (pa.ArrowInvalid, OSError) as error:
        raise ValueError(f"--data: {path} is not a parquet file, or is damaged: {error}") from error
    if not rows:
        raise ValueError(f"--data: expected at least one row, found none in {path}")
    for number, row in enumerate(rows):
        try:
            text_of(row, "data_source")
            text_of(row, "reward_model", "ground_truth")
            check_messages(row.get("prompt"))
        except ValueError as error:
            raise ValueError(
                f"--data: {path}, row {number}: {error}. Did `gdpo-verl prepare` write it?"
            ) from error
    return list(rows)


def shared_by(
    files: Sequence[str], read: Callable[[Sequence[Mapping[str, str]]], Any], what: str
) -> tuple[Any, str] | None:
    """Find what ``read`` gives for all prompts of training rows, and the first file with it."""
    found: dict[Any, str] = {}
    for file in files:
        try:
            rows = pq.read_table(Path(file).expanduser(), columns=["prompt"]).to_pylist()
            for each in filter(None, (read(check_messages(row.get("prompt"))) for row in rows)):
                found.setdefault(each, file)
        except (OSError, ValueError) as error:  # Arrow's own are ValueErrors
            raise ValueError(
                f"--prompt-from: cannot read prompts from {file}: {error}.{_advice(file)}"
            ) from error
    if len(found) > 1:
        raise ValueError(
            f"--prompt-from: expected one {what} in all prompts of {list(files)}, "
            f"found {len(found)}. Give a file whose prompts are alike"
        )
    return next(iter(found.items()), None)


def _advice(path: str | Path) -> str:
    command = catalog.prepare_command_of(path)
    return f" Write it with: {command}" if command else ""
