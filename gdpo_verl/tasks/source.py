"""Sources of rows: a hub id, a file, or a folder of files.

Every row keeps its origin, the file and its place in it counted from 0, so that a row that
cannot be used can be found again. Files are read in the order of their names and rows in the
order of the file: the same source gives the same rows in the same order.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from gdpo_verl.files import sha256

_BATCH = 256  # rows held at a time; one programming task may carry megabytes of tests

_SPLITS = {
    "train": "train",
    "test": "test",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "dev": "validation",
    "eval": "validation",
}
# train, gsm8k-train, train-00000-of-00002-ab12: but not train_socratic.
_SPLIT_NAME = re.compile(rf"(?:.*[-_.])?({'|'.join(_SPLITS)})(?:[-_.]\d.*)?")
# What `datasets` and `prepare` write beside the data.
_NO_DATA = {
    "dataset_info.json",
    "dataset_infos.json",
    "dataset_dict.json",
    "state.json",
    "provenance.json",
}


@dataclass(frozen=True)
class Record:
    """One row of a source.

    Attributes:
      file: its file, relative to the source, or the hub's split.
      row: its place there, from 0; a blank line counts.
      split: 'train', 'validation', 'test', or None where no name says so.
      values: its columns; None where it cannot be read.
      problem: why it cannot be read.
    """

    file: str
    row: int
    split: str | None
    values: dict[str, Any] | None
    problem: str = ""


@dataclass(frozen=True)
class Source:
    """The rows of a source, to be read once.

    Attributes:
      records: the rows, in a fixed order.
      total: how many, where that is known without reading them.
      provenance: where they come from, with the revision or every file's SHA-256.
    """

    records: Iterable[Record]
    total: int | None
    provenance: dict[str, Any]


def open_source(source: str, *, config: str | None = None) -> Source:
    """Find the rows of ``source``; what exists as a path is never looked up on the hub.

    Args:
      source: a file or a folder (parquet, arrow, jsonl, json), or a hub id, if need be with a
        revision: ``openai/gsm8k@main``.
      config: the configuration of a hub data set that has several; in a folder, the folder of
        that name, if there is one.

    Raises:
      FileNotFoundError: it is a path, and nothing is there.
      ValueError: it cannot be told what to read, or a file is damaged.
      ConnectionError: the hub cannot be reached, or does not have it.
    """
    path = Path(source).expanduser()
    if path.exists():
        return _open_path(path, source, config)
    if source.startswith((".", "/", "~")) or path.suffix in _READERS or source.count("/") > 1:
        raise FileNotFoundError(f"--from: {source!r} does not exist (seen from {Path.cwd()})")
    from gdpo_verl.tasks.hub import open_hub

    return open_hub(source, config)


def _open_path(path: Path, given: str, config: str | None) -> Source:
    """A single file has no split: its name was the user's choice."""
    left_out: list[str] = []
    if path.is_dir():
        root = path / config if config and (path / config).is_dir() else path
        files, left_out = _choose(root)
        splits = [split_of(file.relative_to(root)) for file in files]
    else:
        root, files, splits = path.parent, [path], [None]
        if path.suffix not in _READERS:
            raise ValueError(
                f"--from: expected a file that ends in one of {sorted(_READERS)}, found {given!r}"
            )
    names = [file.relative_to(root).as_posix() for file in files]
    provenance: dict[str, Any] = {
        "path": given,
        "files": {name: sha256(file) for name, file in zip(names, files, strict=True)},
    }
    if left_out:
        provenance["files_left_out"] = left_out
    total = None
    if all(file.suffix == ".parquet" for file in files):
        total = sum(_guarded(file, lambda f: pq.read_metadata(f).num_rows) for file in files)
    return Source(_records(files, names, splits), total, provenance)


def _choose(root: Path) -> tuple[list[Path], list[str]]:
    """The files to read, and the names of those left out since others are named after splits."""
    found = sorted(
        (
            file
            for file in root.rglob("*")
            if file.suffix in _READERS
            and file.name not in _NO_DATA
            and not any(part.startswith((".", "_")) for part in file.relative_to(root).parts)
        ),
        key=lambda file: file.relative_to(root).as_posix(),
    )
    named = [file for file in found if split_of(file.relative_to(root))]
    files = named or found
    kinds = sorted({file.suffix for file in files})
    if len(kinds) != 1:
        raise ValueError(
            f"--from: expected files of one kind in {str(root)!r} (one of {sorted(_READERS)}), "
            f"found {kinds or 'none'}. Give one file, or the folder that holds the data."
        )
    return files, [f.relative_to(root).as_posix() for f in found if f not in files]


def split_of(path: Path) -> str | None:
    """The split that a file's name says, else its folder's."""
    for name in (path.stem, *reversed(path.parts[:-1])):
        if match := _SPLIT_NAME.fullmatch(name.lower()):
            return _SPLITS[match[1]]
    return None


def _records(files: list[Path], names: list[str], splits: list[str | None]) -> Iterator[Record]:
    for file, name, split in zip(files, names, splits, strict=True):
        try:
            for row, values in enumerate(_READERS[file.suffix](file)):
                if isinstance(values, dict):
                    yield Record(name, row, split, values)
                elif values is not _BLANK:
                    fault = values if isinstance(values, _Unreadable) else f"found {values!a:.100}"
                    yield Record(name, row, split, None, f"expected an object, {fault}")
        except (pa.ArrowException, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise _damaged(file, error) from error


def _guarded(file: Path, read: Callable[[Path], int]) -> int:
    try:
        return read(file)
    except pa.ArrowException as error:
        raise _damaged(file, error) from error


def _damaged(file: Path, error: Exception) -> ValueError:
    return ValueError(f"--from: {str(file)!r} cannot be read as {file.suffix[1:]}: {error}")


class _Unreadable(str):
    """The fault of a line that cannot be read."""


_BLANK = object()


def _read_parquet(file: Path) -> Iterator[Any]:
    for batch in pq.ParquetFile(file).iter_batches(batch_size=_BATCH):
        yield from batch.to_pylist()


def _read_arrow(file: Path) -> Iterator[Any]:
    """Arrow's stream format, which `datasets` writes, or its file format."""
    with pa.memory_map(str(file)) as data:
        try:
            batches: Iterable[pa.RecordBatch] = pa.ipc.open_stream(data)
        except pa.ArrowInvalid:
            reader = pa.ipc.open_file(data)
            batches = (reader.get_batch(index) for index in range(reader.num_record_batches))
        for batch in batches:
            yield from batch.to_pylist()


def _read_jsonl(file: Path) -> Iterator[Any]:
    with file.open(encoding="utf-8") as lines:
        for line in lines:
            if not line.strip():
                yield _BLANK
                continue
            try:
                yield _checked(json.loads(line))
            except (ValueError, RecursionError) as error:
                yield _Unreadable(f"found no JSON: {error}")


def _read_json(file: Path) -> Iterator[Any]:
    """A list of objects, or one object a line."""
    try:
        rows = json.loads(file.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        if error.msg != "Extra data":
            raise
        yield from _read_jsonl(file)
    else:
        yield from map(_checked, rows if isinstance(rows, list) else [rows])


def _checked(values: Any) -> Any:
    """JSON can hold halves of characters, which no other file can."""
    try:
        json.dumps(values, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        return _Unreadable(f"found text that is not Unicode: {error.reason}")
    return values


_READERS: dict[str, Callable[[Path], Iterator[Any]]] = {
    ".parquet": _read_parquet,
    ".arrow": _read_arrow,
    ".jsonl": _read_jsonl,
    ".json": _read_json,
}
