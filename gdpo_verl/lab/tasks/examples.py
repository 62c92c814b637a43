"""Prompts with their ground truths, and a search for the prompt of a dumped response."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Messages = Sequence[Mapping[str, Any]]
Call = tuple[str, dict[str, Any]]
"""The name of a tool, and its arguments."""


@dataclass(frozen=True)
class Example:
    """A prompt with its ground truth, which a task has drawn or a file contains.

    Attributes:
      question: the user's question, without the fixed texts of the prompt.
      messages: the prompt.
      ground_truth: the ground truth as a text, which the task's reward function parses.
      calls: the tool calls of the right answer.
      extra_info: the content of the row's extra_info, without index and split.
      source: the row's data_source; "" if the example was drawn.
      place: file and row, for messages; "" if the example was drawn.
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
        """A digest by which the same row is recognised in any file."""
        return digest([self.source, self.messages, self.ground_truth])


def digest(value: Any) -> str:
    """Return a digest of a JSON value."""
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def example_of(row: Mapping[str, Any], *, prompt: str = "prompt", place: str = "") -> Example:
    """Return the example of a row that was read; its question is the last message of the prompt.

    Args:
      row: the row, in verl's columns.
      prompt: the column of the prompt.
      place: file and row, for messages.
    """
    messages = list(row.get(prompt) or [])
    question = str(messages[-1].get("content") or "").strip() if messages else ""
    truth = truth_text((row.get("reward_model") or {}).get("ground_truth"))
    return Example(question, messages, truth, source=row.get("data_source", ""), place=place)


def truth_text(truth: Any) -> str:
    """Return a ground truth as a text; a value that is no text is written as JSON."""
    return truth if isinstance(truth, str) else json.dumps(truth, sort_keys=True, default=str)


class Finder:
    """Finds the example of a dumped response, by its ground truth and then by its question."""

    def __init__(self, examples: Sequence[Example]) -> None:
        self.examples = examples
        self.by_truth: dict[str, list[int]] = defaultdict(list)
        for number, example in enumerate(examples):
            self.by_truth[example.ground_truth].append(number)

    def fitting(self, prompt: str, truth: Any, *, by_truth_alone: bool = True) -> list[int]:
        """Return the numbers of all examples with the ground truth and the question of a response.

        Args:
          prompt: the text of the whole chat.
          truth: the ground truth in the dump.
          by_truth_alone: do not compare the question if only one example has this ground truth.
        """
        numbers = self.by_truth.get(truth_text(truth), [])
        if by_truth_alone and len(numbers) == 1:
            return numbers
        matching = [number for number in numbers if self.examples[number].question in prompt]
        # One question may be a part of another one, so the longest match counts.
        longest = max((len(self.examples[number].question) for number in matching), default=0)
        return [number for number in matching if len(self.examples[number].question) == longest]
