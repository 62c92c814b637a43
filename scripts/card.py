"""A reward card: answers known to be right or wrong, and how many of them each rule pays."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple


class Answer(NamedTuple):
    """An answer, what it is judged by, and the question, empty where no rule looks at it."""

    text: str
    truth: str
    question: str = ""


@dataclass
class Card:
    """The tables of one reward.

    Attributes:
      title: the reward.
      paid: what counts as paid in full.
      rules: each rule's name, and whether it pays an answer.
      sources: corpora with version and number of rows.
      notes: how answers were written, and other things to know.
      tables: lines of Markdown by what they count.
    """

    title: str
    paid: str
    rules: dict[str, Callable[[Answer], bool]]
    sources: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    tables: dict[str, list[str]] = field(default_factory=dict)

    def right(self, name: str, answers: Iterable[Answer]) -> None:
        """Count the answers that are right, and that a rule does not pay."""
        self._count("right answers refused", name, list(answers), wanted=True)

    def wrong(self, name: str, answers: Iterable[Answer]) -> None:
        """Count the answers that are wrong, and that a rule pays."""
        self._count("wrong answers paid", name, list(answers), wanted=False)

    def _count(self, table: str, name: str, answers: list[Answer], *, wanted: bool) -> None:
        if not answers:
            return
        with ThreadPoolExecutor(4) as threads:  # of rules that ask other processes
            faults = [
                sum(paid != wanted for paid in threads.map(rule, answers))
                for rule in self.rules.values()
            ]
        head = [
            f"| {table} | of | {' | '.join(self.rules)} |",
            "|---|--:" + "|--:" * len(faults) + "|",
        ]
        cells = " | ".join(f"{count:,}" for count in faults)
        self.tables.setdefault(table, head).append(f"| {name} | {len(answers):,} | {cells} |")

    def markdown(self) -> str:
        """The card as a section of a page."""
        parts = [f"## {self.title}", f"Paid means {self.paid}."]
        parts += ["\n".join(lines) for lines in self.tables.values()]
        parts += ["\n".join(f"- {line}" for line in [*self.sources, *self.notes])]
        return "\n\n".join(parts) + "\n"


def read_lines(path: str) -> list[dict[str, Any]]:
    """The rows of a file of JSON lines."""
    with Path(path).expanduser().open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def others(values: Sequence[Any], shift: int = 7) -> list[Any]:
    """Another row's value for each row."""
    return [values[(i + shift) % len(values)] for i in range(len(values))]
