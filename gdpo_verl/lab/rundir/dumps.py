"""Read rows of stored responses: verl's <step>.jsonl, TRL's tables, JSON lines and Parquet."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from gdpo_verl.advantage.checks import is_number
from gdpo_verl.config.components import ADVANTAGE
from gdpo_verl.lab.rundir import layout
from gdpo_verl.reward_dicts import NESTED, unnested
from gdpo_verl.upstream.row_key import RowKey

Row = dict[str, Any]
ADVANTAGES = ("gdpo_advantage", "grpo_advantage")
# The usual names of the columns for the prompt and the response; the first name is verl's.
PROMPTS = ("input", "prompt")
TEXTS = ("output", "completion", "response")
SUFFIXES = (".jsonl", ".parquet")
_STEP = re.compile(r"(?:completions_)?(\d+)")
# verl's uid is a UUID; the uid of a padding row is `pad` and a UUID
# (verl/trainer/ppo/padding_utils.py).
_VERLS_UID = re.compile("(pad)?[0-9a-f]{8}-?([0-9a-f]{4}-?){3}[0-9a-f]{12}")
# A report reads at most this many bytes of one dump, and of all dumps of one kind. This amount fits
# into the memory of a laptop and is read in seconds.
DUMP_BYTES = 64 << 20
REPORT_BYTES = 1 << 30
# The number of rows of a Parquet table that are unpacked at once, and the largest accepted ratio of
# the unpacked rows to the file.
_ROWS_AT_ONCE = 16
_EXPANSION = 1000


def parse_json(line: bytes | str) -> Any:
    """Parse JSON; accept NaN and lone surrogates, which Python writes and orjson rejects."""
    try:
        return orjson.loads(line)
    except ValueError:
        text = line if isinstance(line, str) else line.decode(errors="replace")
        try:
            return json.loads(text)
        except RecursionError:
            raise ValueError("nested too deeply") from None


def reward_of(value: Any) -> float | None:
    """Return a dumped reward as a number, as training reads it; None if it is not scored.

    True counts as 1.

    >>> [reward_of(value) for value in (0.5, True, None, "0.5")]
    [0.5, 1.0, None, None]
    """
    if is_number(value) or isinstance(value, bool):
        return float(value)
    return None


def number_of(value: Any, name: str, place: str) -> float | None:
    """Return a dumped number; None if it is not scored.

    A list contains one number for each turn. It becomes their sum, or None if a turn is not scored.

    Raises:
      ValueError: the value is something else; the message names the place and the value.
    """
    if isinstance(value, list):
        turns = [number_of(turn, name, place) for turn in value]
        scored = [turn for turn in turns if turn is not None]
        return math.fsum(scored) if scored and len(scored) == len(turns) else None
    if value is None or value != value:
        return None
    number = reward_of(value)
    if number is None:
        raise ValueError(
            f"{place}: expected a finite number for {name!r}, found {shorten(repr(value), 40)}"
        )
    return number


def step_of(path: Path) -> int | None:
    """Return the step in the name <step>.jsonl or completions_<step>.parquet; None without one.

    >>> step_of(Path("completions_00012.parquet")), step_of(Path("metrics.jsonl"))
    (12, None)
    """
    step = _STEP.fullmatch(path.stem)
    return int(step[1]) if step and path.suffix in SUFFIXES else None


def step_files(folder: Path) -> list[tuple[int, Path]]:
    """Return the dumps and the tables of completions in a folder, sorted by step."""
    files = [(step_of(file), file) for file in folder.glob("*") if file.is_file()]
    return sorted((step, file) for step, file in files if step is not None)


class NoDumpsError(ValueError):
    """The error for a path without stored responses."""


def find_dumps(path: Path) -> dict[int | None, Path]:
    """Return the files of responses by step.

    The key None stands for a file that may contain several steps.

    Raises:
      ValueError: there are no files (`NoDumpsError`), or files of several runs.
    """
    if path.is_file() and path.suffix in SUFFIXES:
        return {step_of(path): path}
    dumps: dict[Path, list[tuple[int, Path]]] = {}
    for folder in [path, *path.glob("*/"), *path.glob("*/*/")]:
        files = step_files(folder)
        if files and (folder == path or folder.name != layout.VALIDATION):
            dumps[folder] = files
    if not dumps:
        names = sorted(entry.name for entry in path.glob("*"))
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
    return dict(files)


def numbered_rows(path: Path, most: int = sys.maxsize) -> Iterator[tuple[int, Row | None]]:
    """Yield the number of each line, from 1, and its row; None instead of an incomplete row.

    Empty lines are skipped. The prompt and the response get the names of verl's columns, `input`
    and `output`, whatever their names in the file are.

    Args:
      path: a file of JSON lines, or a table in Parquet.
      most: the largest number of bytes to read from JSON lines.
    """
    if path.suffix == ".parquet":
        for number, row in enumerate(_table_rows(path), start=1):
            yield number, _with_verls_names(row)
        return
    left = most
    number = 0
    with path.open("rb") as stream:
        while True:
            line = stream.readline(left)
            if not line:
                return
            left -= len(line)
            number += 1
            try:
                parsed = parse_json(line)
            except ValueError:
                parsed = None
            if isinstance(parsed, dict):
                yield number, _with_verls_names(parsed)
            elif line.strip():
                yield number, None


def _with_verls_names(row: Row) -> Row:
    if NESTED in row:
        row = dict(unnested(row))
    for names, text_of in ((PROMPTS, conversation_text), (TEXTS, assistant_text)):
        if names[0] not in row:
            for name in names[1:]:
                if name in row:
                    row[names[0]] = text_of(row[name])
                    break
    return row


def _table_rows(path: Path) -> Iterator[Row]:
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.ParquetFile(path)
        # A compressed file of a few bytes may contain any number of equal long texts.
        most = DUMP_BYTES + _EXPANSION * path.stat().st_size
        size = 0
        for batch in table.iter_batches(_ROWS_AT_ONCE):
            size += batch.nbytes
            if size > most:
                raise ValueError(
                    f"{path}: expected a table of at most {most >> 20} MiB, {_EXPANSION} times its "
                    f"file, found more. If you trust the file, write its rows as JSON lines"
                )
            yield from batch.to_pylist()
    except pyarrow.ArrowException as error:
        raise ValueError(f"{path}, line 1: expected a table in Parquet, found: {error}") from error


def conversation_text(value: Any) -> str:
    """Return a text, or the messages of a conversation, each with its role in front of it."""
    if not isinstance(value, list):
        return "" if value is None else str(value)
    messages = _messages(value)
    return "\n".join(f"{message.get('role')}: {message.get('content')}" for message in messages)


def assistant_text(value: Any) -> str | None:
    """Return a text, or the assistant's messages in a conversation; None if there is neither.

    >>> call = {"role": "assistant", "content": "<call>"}
    >>> assistant_text([call, {"role": "tool", "content": "3"}, {"role": "assistant"} | call])
    '<call>\\n<call>'
    """
    if isinstance(value, list):
        messages = [each for each in _messages(value) if each.get("role") == "assistant"]
        return "\n".join(str(message.get("content") or "") for message in messages)
    return None if value is None else str(value)


def _messages(conversation: list[Any]) -> list[Mapping[str, Any]]:
    return [message for message in conversation if isinstance(message, Mapping)]


def row_key(row: Mapping[str, Any]) -> RowKey | None:
    """Return verl's key of a row; None if the row's uid is not a key of verl.

    Any text that ends in two numbers can be parsed as a key. The text counts as a key only if its
    first part is a UUID, as in verl, or if the plug-in has dumped the row.

    >>> row_key({"uid": "math_12_3"})
    >>> row_key({"uid": "math_12_3", "gdpo_advantage": 0.5})
    RowKey(uid='math', session=12, output=3)
    """
    try:
        key = RowKey.parse(str(row.get("uid")))
    except ValueError:
        return None
    return key if ADVANTAGES[0] in row or _VERLS_UID.fullmatch(key.uid) else None


def is_padding(row: Mapping[str, Any], key: RowKey | None) -> bool:
    """Return whether a row is a padding row, which verl adds to fill a batch.

    The advantages of a padding row are null. Without the columns of advantages, the uid decides.
    """
    gdpo, grpo = ADVANTAGES
    if row.get(gdpo, 0.0) is None and row.get(grpo, 0.0) is None:
        return True
    return key is not None and key.uid.startswith("pad") and bool(_VERLS_UID.fullmatch(key.uid))


def variant_column(row: Mapping[str, Any]) -> str:
    """Return the name of the column with a variant's advantages; "" if the row has none.

    Such a column comes in addition to the columns of GDPO and GRPO.

    >>> variant_column({"gdpo_advantage": 0.5, "grpo_advantage": 0.5, "dvao_advantage": 0.7})
    'dvao_advantage'
    >>> variant_column({"gdpo_advantage": 0.5, "grpo_advantage": 0.5})
    ''
    """
    columns = [name for name in row if name.endswith(ADVANTAGE)]
    # The name of a component may have the same ending. The plug-in writes components before the
    # columns of GDPO and GRPO, and the variant after them.
    is_dumped = ADVANTAGES[0] in columns and columns[-1] not in ADVANTAGES
    return columns[-1] if is_dumped else ""


def scores_text(scores: Mapping[str, Any]) -> str:
    """Return the rewards of a response as text.

    >>> scores_text({"format": 1.0, "style": None})
    'format 1, style not scored'
    """
    texts = []
    for name, value in scores.items():
        reward = reward_of(value)
        texts.append(f"{name} not scored" if reward is None else f"{name} {reward:.4g}")
    return ", ".join(texts)


def short_prompt(prompt: str) -> str:
    """Return the last line of a prompt, which usually holds the question."""
    lines = [line.strip() for line in prompt.splitlines()]
    roles = {"", "user", "assistant", "system"}
    last = next((line for line in reversed(lines) if line.lower() not in roles), "")
    return last if len(last) <= 160 else last[:159] + "…"


def shorten(value: Any, most: int) -> str:
    """Return a text, or the beginning and the end of a text that is too long.

    Between them stands the number of omitted characters.

    >>> shorten("abcdefghij", 4)
    'ab\\n[… 6 characters left out …]\\nij'
    """
    text = "" if value is None else str(value)
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half} characters left out …]\n{text[-half:]}"


def evenly_spaced(items: Sequence[int], most: int) -> list[int]:
    """Return at most `most` items that are evenly spaced, with the first and the last.

    At least one item is returned.

    >>> evenly_spaced([1, 2, 3, 4, 5], 3), evenly_spaced([1, 2], 5), evenly_spaced([1, 2, 3], 1)
    ([1, 3, 5], [1, 2], [3])
    """
    if len(items) <= most:
        return list(items)
    if most < 2:
        return list(items[-1:])
    last = len(items) - 1
    return [items[round(i * last / (most - 1))] for i in range(most)]


def steps_within(dumps: dict[int, Path], limit: int) -> list[int]:
    """Return evenly spaced steps whose dumps have about `limit` bytes together."""
    steps = list(dumps)
    total = sum(min(path.stat().st_size, DUMP_BYTES) for path in dumps.values())
    if total <= limit:
        return steps
    return evenly_spaced(steps, max(1, int(len(steps) * limit / total)))
