"""A prompt with its truth, and how the one is found that a dump's line answers."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Messages = Sequence[Mapping[str, Any]]
Call = tuple[str, dict[str, Any]]
"""A tool's name and its arguments."""


@dataclass(frozen=True)
class Example:
    """A prompt with its truth, as a task draws it or a file holds it.

    Attributes:
      question: the user's words, without the fixed texts of a prompt.
      messages: the prompt.
      ground_truth: as a text, which the task's reward reads.
      calls: of the right answer, where it calls tools.
      extra_info: what its row holds in addition to index and split.
      source: its data_source; "" of one that is drawn.
      place: file and row, for people; "" of one that is drawn.
    """

    question: str
    messages: Messages
    ground_truth: str
    calls: tuple[Call, ...] = ()
    extra_info: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""
    place: str = ""

    @property
    def key(self) -> str:
        """The same for the same row in any file."""
        return digest([self.source, self.messages, self.ground_truth])


def digest(value: Any) -> str:
    """A text that tells a JSON value from others."""
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def example_of(row: Mapping[str, Any], *, prompt: str = "prompt", place: str = "") -> Example:
    """A row that was read, with the prompt in this column; its question is the last message."""
    messages = list(row.get(prompt) or [])
    question = str(messages[-1].get("content") or "").strip() if messages else ""
    truth = truth_text((row.get("reward_model") or {}).get("ground_truth"))
    return Example(question, messages, truth, source=row.get("data_source", ""), place=place)


def truth_text(truth: Any) -> str:
    """A ground truth as a text, however the data hold it."""
    return truth if isinstance(truth, str) else json.dumps(truth, sort_keys=True, default=str)


class Finder:
    """Finds the example that a line of verl's dumps answers: by its truth, then by its words."""

    def __init__(self, examples: Sequence[Example]) -> None:
        self.examples = examples
        self.by_truth: dict[str, list[int]] = defaultdict(list)
        for number, example in enumerate(examples):
            self.by_truth[example.ground_truth].append(number)

    def __call__(self, line: Mapping[str, Any], *, by_truth_alone: bool = True) -> int | None:
        """The number of the example; None where there is none, the first of several.

        Args:
          line: of a dump; names no example.
          by_truth_alone: where no other has this truth, whatever the words of the prompt.
        """
        return next(iter(self.fitting(line, by_truth_alone=by_truth_alone)), None)

    def fitting(self, line: Mapping[str, Any], *, by_truth_alone: bool = True) -> list[int]:
        """The numbers of the examples with the truth and the question of a line, as above."""
        numbers = self.by_truth.get(truth_text(line["gts"]), [])
        if by_truth_alone and len(numbers) == 1:
            return numbers
        prompt = str(line["input"])  # a chat's text
        asked = [number for number in numbers if self.examples[number].question in prompt]
        # One question's words may begin another's.
        longest = max((len(self.examples[number].question) for number in asked), default=0)
        return [number for number in asked if len(self.examples[number].question) == longest]
