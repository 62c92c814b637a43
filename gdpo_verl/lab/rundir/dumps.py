"""The rows of stored responses: verl's <step>.jsonl, TRL's tables, JSON lines and Parquet."""

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
# The names of the columns of a prompt and of a response; the first ones are verl's.
PROMPTS = ("input", "prompt")
TEXTS = ("output", "completion", "response")
SUFFIXES = (".jsonl", ".parquet")
_STEP = re.compile(r"(?:completions_)?(\d+)")
# verl's uid is a UUID, and that of padding `pad` with one (verl/trainer/ppo/padding_utils.py).
_VERLS_UID = re.compile("(pad)?[0-9a-f]{8}-?([0-9a-f]{4}-?){3}[0-9a-f]{12}")
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


def reward_of(value: Any) -> float | None:
    """Return a dumped reward as a run reads it, true as 1; None where it is not scored.

    >>> [reward_of(value) for value in (0.5, True, None, "0.5")]
    [0.5, 1.0, None, None]
    """
    if is_number(value) or isinstance(value, bool):
        return float(value)
    return None


def number_of(value: Any, name: str, place: str) -> float | None:
    """Return a dumped number; None where it is not scored.

    A list has a number for each turn, and stands for their sum.

    Raises:
      ValueError: the value is something else; says what is at which place.
    """
    if isinstance(value, list):
        turns = [number_of(each, name, place) for each in value]
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


class NoDumpsError(ValueError):
    """There are no responses at a path."""


def find_dumps(path: Path) -> dict[int | None, Path]:
    """Return the files of responses by step; by None a file that may hold several steps.

    Raises:
      ValueError: there are none (`NoDumpsError`), or those of several runs.
    """
    if path.is_file() and path.suffix in SUFFIXES:
        return {step_of(path): path}
    dumps: dict[Path, list[tuple[int, Path]]] = {}
    for folder in [path, *path.glob("*/"), *path.glob("*/*/")]:
        files = step_files(folder)
        if files and (folder == path or folder.name != layout.VALIDATION):
            dumps[folder] = files
    if not dumps:
        names = sorted(each.name for each in path.glob("*"))
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
    """Yield each line's number, from 1, with its row, None where it is incomplete; no empty lines.

    Prompt and response have verl's names of columns, `input` and `output`, whatever the file's are.

    Args:
      most: the bytes to read of JSON lines.
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
            yield from batch.to_pylist()
    except pyarrow.ArrowException as error:
        raise ValueError(f"{path}, line 1: expected a table in Parquet, found: {error}") from error


def conversation_text(value: Any) -> str:
    """Return a text, or the messages of a conversation, each after its role."""
    if not isinstance(value, list):
        return "" if value is None else str(value)
    return "\n".join(f"{each.get('role')}: {each.get('content')}" for each in _messages(value))


def assistant_text(value: Any) -> str | None:
    """Return a text, or what the assistant says in a conversation; None where there is neither.

    >>> call = {"role": "assistant", "content": "<call>"}
    >>> assistant_text([call, {"role": "tool", "content": "3"}, {"role": "assistant"} | call])
    '<call>\\n<call>'
    """
    if isinstance(value, list):
        spoken = [each for each in _messages(value) if each.get("role") == "assistant"]
        return "\n".join(str(each.get("content") or "") for each in spoken)
    return None if value is None else str(value)


def _messages(conversation: list[Any]) -> list[Mapping[str, Any]]:
    return [each for each in conversation if isinstance(each, Mapping)]


def row_key(row: Mapping[str, Any]) -> RowKey | None:
    """Return verl's key of a row; None where its uid is not a key of verl's.

    Any text that ends in two numbers reads like a key. It is one where its uid is a UUID, as verl's
    are, or where the plug-in has dumped the row.

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
    """Return whether verl added the row with this key to fill the batch.

    Its advantages are null; without these columns its uid shows it.
    """
    gdpo, grpo = ADVANTAGES
    if row.get(gdpo, 0.0) is None and row.get(grpo, 0.0) is None:
        return True
    return key is not None and key.uid.startswith("pad") and bool(_VERLS_UID.fullmatch(key.uid))


def variant_column(row: Mapping[str, Any]) -> str:
    """Return the column of a variant's advantages, which a row may hold next to GDPO's and GRPO's.

    >>> variant_column({"gdpo_advantage": 0.5, "grpo_advantage": 0.5, "dvao_advantage": 0.7})
    'dvao_advantage'
    >>> variant_column({"gdpo_advantage": 0.5, "grpo_advantage": 0.5})
    ''
    """
    columns = [name for name in row if name.endswith(ADVANTAGE)]
    # A component may be named alike. The plug-in writes it before GDPO and GRPO, the variant after.
    is_dumped = ADVANTAGES[0] in columns and columns[-1] not in ADVANTAGES
    return columns[-1] if is_dumped else ""


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
