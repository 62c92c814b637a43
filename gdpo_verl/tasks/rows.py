"""Checks of a row: its columns, its prompt, the prompt's length in tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from gdpo_verl.text import first_line

Row = dict[str, Any]
Messages = Sequence[Mapping[str, Any]]


class BadRow(ValueError):
    """A row that cannot be used; ``kind`` is the word under which it is counted."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


class OtherTask(Exception):
    """A sound row that belongs to another task; its text is the word it is counted under."""


def tokenizer_of(
    model: str | Path, where: str, load: Callable[..., Any] | None = None, **options: Any
) -> Any:
    """Load the tokenizer of a model.

    Args:
      model: a directory or a hub id.
      where: the option or key that names it.
      load: takes the place of `AutoTokenizer.from_pretrained`.
      options: go to `load`.

    Raises:
      ValueError: there is none.
    """
    from transformers import AutoTokenizer

    try:
        return (load or AutoTokenizer.from_pretrained)(model, **options)
    except (OSError, ValueError, ImportError, KeyError) as error:
        raise ValueError(
            f"{where}: cannot load a tokenizer from {str(model)!r}: {first_line(error)}. Give the "
            "directory or the hub id of the model that is trained."
        ) from error


@dataclass(frozen=True)
class PromptLength:
    """The longest prompt that fits, in tokens of a model's chat template.

    Attributes:
      model: where the tokenizer comes from.
      most: ``data.max_prompt_length`` of the run.
      tokenizer: it.
    """

    model: str
    most: int
    tokenizer: Any

    @classmethod
    def load(cls, model: str, most: int) -> PromptLength:
        """Load the tokenizer of ``model``, a directory or a hub id.

        Raises:
          ValueError: there is none, or it has no chat template, or ``most`` is below 1.
        """
        if most < 1:
            raise ValueError(f"--max-prompt-length: expected at least 1 token, found {most}")
        tokenizer = tokenizer_of(model, "--model")
        if not tokenizer.chat_template:
            raise ValueError(f"--model: the tokenizer of {model!r} has no chat template")
        return cls(model, most, tokenizer)

    def check(self, messages: Messages) -> None:
        """Count as verl does, with the generation prompt.

        Raises:
          BadRow: the prompt is longer than `most` tokens, or not one that the template takes.
        """
        try:
            tokens = self.tokenizer.apply_chat_template(
                list(messages), add_generation_prompt=True, tokenize=True, return_dict=False
            )
        except TemplateError as error:
            raise BadRow("prompt", f"the chat template refuses the prompt: {error}") from error
        if len(tokens) > self.most:
            raise BadRow("prompt_too_long", f"the prompt has {len(tokens)} tokens, {self.most} fit")


def text_of(values: Mapping[str, Any], *path: str) -> str:
    """The text under ``path``, as in ``text_of(values, "reward_model", "ground_truth")``.

    Raises:
      BadRow: it is absent, empty, or no text.
    """
    value: Any = values
    for depth, key in enumerate(path):
        if not isinstance(value, Mapping) or key not in value:
            keys = sorted(map(str, value)) if isinstance(value, Mapping) else type(value).__name__
            raise BadRow(
                "columns", f"expected the column {'.'.join(path[: depth + 1])}, found {keys}"
            )
        value = value[key]
    if not isinstance(value, str) or not value.strip():
        raise BadRow("columns", f"{'.'.join(path)}: expected text, found {value!a:.100}")
    return value


def check_messages(messages: Any) -> list[dict[str, str]]:
    """A prompt as a list of role and content.

    Raises:
      BadRow: it is none, or ends in something else than the user's turn.
    """
    sound = isinstance(messages, list) and all(
        isinstance(message, dict)
        and isinstance(message.get("role"), str)
        and isinstance(message.get("content"), str)
        and message["content"].strip()
        for message in messages
    )
    if not sound or not messages or messages[-1]["role"] != "user":
        raise BadRow(
            "prompt",
            "prompt: expected a list of {role, content} with text, the user's turn last, found "
            f"{messages!a:.200}",
        )
    return list(messages)
