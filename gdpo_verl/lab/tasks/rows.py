"""Rows in verl's columns: make and check a row, and write a data set with its provenance."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from jinja2 import TemplateError

import gdpo_verl
from gdpo_verl.lab.files import replacing, sha256
from gdpo_verl.lab.tasks.examples import Messages
from gdpo_verl.lab.text import first_line

PROVENANCE = "provenance.json"
_BATCH = 1000  # rows written at a time, because an Arrow array of text is limited to 2 GiB

Row = dict[str, Any]


class BadRow(ValueError):
    """The error for a row that cannot be used; ``kind`` is the word under which it is counted."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


class OtherTask(Exception):
    """Raised for a usable row of another task; its text is the word under which it is counted."""


def tokenizer_of(
    model: str | Path, where: str, load: Callable[..., Any] | None = None, **options: Any
) -> Any:
    """Load the tokenizer of a model.

    Args:
      model: a directory or a hub id.
      where: the option or the configuration key that names the model, for messages.
      load: the function that loads the tokenizer; by default `AutoTokenizer.from_pretrained`.
      options: further arguments of this function.

    Raises:
      ValueError: there is no tokenizer.
      ModuleNotFoundError: transformers is not installed.
    """
    try:
        from transformers import AutoTokenizer
    except ModuleNotFoundError as error:
        if error.name != "transformers":
            raise
        raise ModuleNotFoundError(
            f"{where}: expected the package transformers, found none. Run: pip install transformers"
        ) from error

    try:
        return (load or AutoTokenizer.from_pretrained)(model, **options)
    except (OSError, ValueError, ImportError, KeyError) as error:
        raise ValueError(
            f"{where}: cannot load a tokenizer from {str(model)!r}: {first_line(error)}. Give the "
            "directory or the hub id of the model that is trained."
        ) from error


class PromptLength:
    """The limit for the length of prompts: ``most`` tokens, with the tokenizer of ``model``."""

    def __init__(self, model: str, most: int) -> None:
        if most < 1:
            raise ValueError(f"--max-prompt-length: expected at least 1 token, found {most}")
        self.model = model
        self.most = most
        self.tokenizer = tokenizer_of(model, "--model")
        if not self.tokenizer.chat_template:
            raise ValueError(f"--model: the tokenizer of {model!r} has no chat template")

    def check(self, messages: Messages) -> None:
        """Raise `BadRow` if a prompt is too long, or if the chat template rejects it.

        The prompt is encoded as in verl.
        """
        try:
            tokens = len(
                self.tokenizer.apply_chat_template(
                    list(messages), add_generation_prompt=True, tokenize=True, return_dict=False
                )
            )
        except TemplateError as error:
            raise BadRow("prompt", f"the chat template rejects the prompt: {error}") from error
        if tokens > self.most:
            raise BadRow("prompt_too_long", f"the prompt has {tokens} tokens, {self.most} fit")


def chat_text(messages: Messages) -> str:
    """Join the messages of a chat."""
    return "\n".join(str(message["content"]) for message in messages)


def text_of(values: Mapping[str, Any], *path: str) -> str:
    """Return the text under ``path``, such as ``"reward_model", "ground_truth"``.

    Raises:
      BadRow: there is no such column, or it contains no text.
    """
    value: Any = values
    for depth, key in enumerate(path, start=1):
        if not isinstance(value, Mapping) or key not in value:
            keys = sorted(map(str, value)) if isinstance(value, Mapping) else type(value).__name__
            raise BadRow("columns", f"expected the column {'.'.join(path[:depth])}, found {keys}")
        value = value[key]
    if not isinstance(value, str) or not value.strip():
        raise BadRow("columns", f"{'.'.join(path)}: expected text, found {value!a:.100}")
    return value


def check_messages(messages: Any) -> list[dict[str, str]]:
    """Return the messages of a prompt.

    Raises:
      BadRow: the prompt is no list of {role, content} whose last message is the user's.
    """
    valid = isinstance(messages, list) and all(
        isinstance(message, dict)
        and isinstance(message.get("role"), str)
        and isinstance(message.get("content"), str)
        and message["content"].strip()
        for message in messages
    )
    if not valid or not messages or messages[-1]["role"] != "user":
        raise BadRow(
            "prompt",
            "prompt: expected a list of {role, content} with text, the user's turn last, found "
            f"{messages!a:.200}",
        )
    return list(messages)


def make_row(
    data_source: str,
    prompt: Messages,
    ground_truth: str,
    *,
    ability: str,
    extra_info: Mapping[str, Any],
) -> Row:
    """Return a row in verl's columns; `build` adds index and split to ``extra_info``."""
    return {
        "data_source": data_source,
        "prompt": prompt,
        "ability": ability,
        "reward_model": {"style": "rule", "ground_truth": ground_truth},
        "extra_info": dict(extra_info),
    }


def write_dataset(
    out_dir: Path,
    splits: Mapping[str, Sequence[Mapping[str, Any]]],
    provenance: Mapping[str, Any],
) -> dict[str, Any]:
    """Write ``<split>.parquet`` for each split, then ``provenance.json``.

    The provenance is written last and contains the SHA-256 of each file. A folder whose files agree
    with its provenance is therefore complete. The same rows give the same bytes.

    Returns:
      the provenance as written, with the package version, and the number of rows and the SHA-256 of
      each file.
    """
    out_dir.mkdir(parents=True, exist_ok=True)
    files: dict[str, dict[str, Any]] = {}
    with ExitStack() as pending:
        # The provenance is entered first, so that it gets its final name last.
        record = pending.enter_context(replacing(out_dir / PROVENANCE))
        for split, rows in splits.items():
            path = pending.enter_context(replacing(out_dir / f"{split}.parquet"))
            _write_rows(rows, path)
            files[f"{split}.parquet"] = {"rows": len(rows), "sha256": sha256(path)}
        written = {**provenance, "gdpo_verl": gdpo_verl.__version__, "files": files}
        text = json.dumps(written, indent=2, ensure_ascii=False) + "\n"
        record.write_text(text, encoding="utf-8")
    return written


def _write_rows(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    batches = [rows[start : start + _BATCH] for start in range(0, len(rows), _BATCH)]
    # A column may be empty in one batch, and contain text in another.
    schema = pa.unify_schemas(
        [pa.Table.from_pylist(list(batch)).schema for batch in batches],
        promote_options="permissive",
    )
    with pq.ParquetWriter(path, schema) as writer:
        for batch in batches:
            writer.write_table(pa.Table.from_pylist(list(batch), schema=schema))
