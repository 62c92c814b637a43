"""The rows of a dump, verl's rollouts/<step>.jsonl and validation/<step>.jsonl."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import dropwhile
from pathlib import Path
from typing import Any

import orjson

from gdpo_verl.config.components import ADVANTAGE
from gdpo_verl.plugin.row_key import RowKey, uid_of
from gdpo_verl.reward_dicts import unnested

Row = dict[str, Any]
ADVANTAGES = ("gdpo_advantage", "grpo_advantage")
SUFFIXES = (".jsonl", ".parquet")
_STEP = re.compile(r"(?:completions_)?(\d+)")
_LARGEST = sys.float_info.max
_PADDING = re.compile("pad[0-9a-f]{32}")
# The bytes that a report reads of one dump, and of all dumps of a kind: they fit into the memory of
# a laptop and are read in seconds.
DUMP_BYTES = 64 << 20
REPORT_BYTES = 1 << 30
# Of a table in Parquet: the rows that are unpacked at once, and how many times larger than the file
# all rows may be.
_ROWS_AT_ONCE = 16
_EXPANSION = 1000


def parse_json(line: bytes | str) -> Any:
    """Parse JSON, with the NaN and the lone surrogates that Python writes and orjson rejects."""
    try:
        return orjson.loads(line)
    except ValueError:
        text = line if isinstance(line, str) else line.decode(errors="replace")
        try:
            return json.loads(text)
        except RecursionError:
            raise ValueError("nested too deeply") from None


def is_number(value: Any) -> bool:
    """Return whether a value from JSON is a finite number.

    >>> [is_number(value) for value in (1, 0.5, float("nan"), 10**400, None, "1", True)]
    [True, True, False, False, False, False, False]
    """
    kind = type(value)  # True is an instance of int
    return (kind is float or kind is int) and -_LARGEST <= value <= _LARGEST


def reward_of(value: Any) -> float | None:
    """Return a dumped reward as a run reads it, true as 1; None where it is not scored.

    >>> [reward_of(value) for value in (0.5, True, None, "0.5")]
    [0.5, 1.0, None, None]
    """
    is_reward = is_number(value) or isinstance(value, bool)
    return float(value) if is_reward else None


def step_of(path: Path) -> int | None:
    """Return the step of verl's <step>.jsonl or TRL's completions_<step>.parquet, else None.

    >>> step_of(Path("completions_00012.parquet")), step_of(Path("metrics.jsonl"))
    (12, None)
    """
    step = _STEP.fullmatch(path.stem)
    return int(step[1]) if step and path.suffix in SUFFIXES else None


def step_files(folder: Path) -> list[tuple[int, Path]]:
    """Return the dumps and tables of completions in a folder with their steps, in order."""
    files = [(step_of(each), each) for each in folder.glob("*") if each.is_file()]
    return sorted((step, each) for step, each in files if step is not None)


def numbered_rows(path: Path, most: int = sys.maxsize) -> Iterator[tuple[int, Row | None]]:
    """Yield each line's number, from 1, with its row, None where it is incomplete; no empty lines.

    A table in Parquet has TRL's column names, or others.

    Args:
      most: the bytes to read of JSON lines.
    """
    if path.suffix == ".parquet":
        yield from enumerate(_table_rows(path), start=1)
        return
    left = most
    number = 0
    with path.open("rb") as stream:
        while line := stream.readline(left):
            left = left - len(line)
            number = number + 1
            try:
                row = parse_json(line)
            except ValueError:
                row = None
            if isinstance(row, dict):
                yield number, dict(unnested(row))
            elif line.strip():
                yield number, None


def _table_rows(path: Path) -> Iterator[Row]:
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.ParquetFile(path)
        # A few bytes may contain any number of equal long texts.
        most = DUMP_BYTES + _EXPANSION * path.stat().st_size
        size = 0
        for batch in table.iter_batches(_ROWS_AT_ONCE):
            size += batch.nbytes
            if size > most:
                raise ValueError(
                    f"{path}: expected a table of at most {most >> 20} MiB, {_EXPANSION} times its "
                    f"file, found more. If you trust the file, write its rows as JSON lines"
                )
            for row in batch.to_pylist():
                if "completion" in row:
                    row |= {"input": _message_text(row.get("prompt"))}
                    row |= {"output": _message_text(row["completion"])}
                yield row
    except pyarrow.ArrowException as error:
        raise ValueError(f"{path}, line 1: expected a table in Parquet, found: {error}") from error


def _message_text(value: Any) -> str:
    """Return a text, or the contents of a conversation's messages."""
    if not isinstance(value, list):
        return "" if value is None else str(value)
    return "\n".join(f"{each.get('role')}: {each.get('content')}" for each in value)


def is_padding(row: Mapping[str, Any]) -> bool:
    """Return whether verl added the row to fill the batch.

    Its advantages are null; without these columns its uid shows it
    (verl/trainer/ppo/padding_utils.py).
    """
    if all(row.get(key, 0.0) is None for key in ADVANTAGES):
        return True
    return _PADDING.fullmatch(uid_of(str(row.get("uid", "")))) is not None


def variant_of(row: Mapping[str, Any]) -> tuple[str, str]:
    """Return the variant whose advantages a row also holds, next to GDPO and GRPO, and its column.

    >>> variant_of({"gdpo_advantage": 0.5, "grpo_advantage": 0.5, "dvao_advantage": 0.7})
    ('dvao', 'dvao_advantage')
    >>> variant_of({"gdpo_advantage": 0.5, "grpo_advantage": 0.5})
    ('', '')
    """
    # A component may be named alike; the plug-in writes it before these two.
    after = list(dropwhile(lambda key: key not in ADVANTAGES, row))[len(ADVANTAGES) :]
    column = next((key for key in after if key.endswith(ADVANTAGE)), "")
    return column.removesuffix(ADVANTAGE), column


def group_of(row: Mapping[str, Any]) -> tuple[str, str]:
    """Return the group of a row: its prompt's uid, or without one the prompt."""
    if "uid" in row:
        return "uid", uid_of(str(row["uid"]))
    return "prompt", str(row.get("input", ""))


def session_of(row: Mapping[str, Any]) -> tuple[str, int] | None:
    """Return the session of a row's output; None where the trainer names none."""
    try:
        key = RowKey.parse(str(row.get("uid")))
    except ValueError:
        return None
    return key.uid, key.session


def scores_text(scores: Mapping[str, Any]) -> str:
    """Show the rewards of a response.

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
    """Return a text, or its beginning and its end with the number of omitted characters.

    >>> shorten("abcdefghij", 4)
    'ab\\n[… 6 characters left out …]\\nij'
    """
    text = "" if value is None else str(value)
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half} characters left out …]\n{text[-half:]}"


def evenly_spaced(items: Sequence[int], most: int) -> list[int]:
    """Return at most `most` items, at least one, evenly spaced, with the first and the last.

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
    """Return the steps to read, evenly spaced, so that about `limit` bytes are read."""
    steps = list(dumps)
    total = sum(min(path.stat().st_size, DUMP_BYTES) for path in dumps.values())
    if total <= limit:
        return steps
    return evenly_spaced(steps, max(1, int(len(steps) * limit / total)))
