"""Read rows from a source: a hub id, a file, or a folder of files.

The same source gives the same rows in the same order: files by name, and rows as in the file.
Files are read without the package `datasets`. This package would convert a value to text if another
row has another type, and would send requests to the hub even for a local file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from gdpo_verl.lab.files import sha256
from gdpo_verl.lab.text import first_line

_BATCH = 256  # rows read at a time; one programming task may contain megabytes of tests

_SPLITS = {
    "train": "train",
    "test": "test",
    **dict.fromkeys(("validation", "valid", "val", "dev", "eval"), "validation"),
}
# Matches train, gsm8k-train and train-00000-of-00002-ab12, but not train_socratic.
_SPLIT_NAME = re.compile(rf"(?:.*[-_.])?({'|'.join(_SPLITS)})(?:[-_.]\d.*)?")
_COMMIT = re.compile("[0-9a-f]{40}")
# Names of files that `datasets` and `gdpo-verl prepare` write next to the data.
_NO_DATA = ("dataset_info", "dataset_infos", "dataset_dict", "state", "provenance")


@dataclass(frozen=True)
class Record:
    """One row of a source."""

    file: str  # the path relative to the source, or the split on the hub
    row: int | str  # the number of the row in the file, from 0, or its name
    split: str | None  # 'train', 'validation' or 'test'; None if no name tells the split
    values: dict[str, Any]  # the columns of the row

    @property
    def place(self) -> dict[str, int | str]:
        """The file and the row, for ``extra_info`` and the provenance."""
        return {"file": self.file, "row": self.row}


@dataclass(frozen=True)
class RecordSource:
    """The rows of a source, to be read only once, and its revision or the SHA-256 of its files."""

    records: Iterable[Record]
    provenance: dict[str, Any]


def open_source(source: str, *, config: str | None = None) -> RecordSource:
    """Find the rows of ``source``; an existing path is never looked up on the hub.

    Args:
      source: a file or a folder (parquet, arrow, jsonl, json), or a hub id, with or without a
        revision: ``openai/gsm8k@main``.
      config: the configuration to read if a data set on the hub has several. In a folder, it is the
        subfolder to read, if there is one of this name.

    Raises:
      FileNotFoundError, ConnectionError: the source does not exist.
      ValueError: the source is ambiguous. While rows are read: a file is damaged.
    """
    path = Path(source).expanduser()
    if path.exists():
        return _open_path(path, source, config)
    if source.startswith((".", "/", "~")) or path.suffix in _READERS or source.count("/") > 1:
        raise FileNotFoundError(f"--from: {source!r} does not exist (seen from {Path.cwd()})")
    return _open_hub(source, config)


def split_of_file(path: Path) -> str | None:
    """Return the split that the name of a file tells, or else the name of a folder of its path."""
    for name in (path.stem, *reversed(path.parts[:-1])):
        match = _SPLIT_NAME.fullmatch(name.lower())
        if match:
            return _SPLITS[match[1]]
    return None


# ------------------------------------------------------------------ files


def _open_path(path: Path, source: str, config: str | None) -> RecordSource:
    left_out: list[Path] = []
    if path.is_dir():
        root = path / config if config and (path / config).is_dir() else path
        files, left_out = _choose(root)
    elif path.suffix in _READERS:
        root, files = path.parent, [path]
    else:
        raise ValueError(
            f"--from: expected a file that ends in one of {sorted(_READERS)}, found {source!r}"
        )
    digests = {file.relative_to(root).as_posix(): sha256(file) for file in files}
    provenance: dict[str, Any] = {"path": source, "files": digests}
    if left_out:
        provenance["files_left_out"] = [file.relative_to(root).as_posix() for file in left_out]
    # The name of a single file may be anything, so it tells no split.
    return RecordSource(_read_files(files, root, splits=path.is_dir()), provenance)


def _choose(root: Path) -> tuple[list[Path], list[Path]]:
    """Return the files to read, and the files that are left out.

    If some files are named after splits, all other files are left out.
    """
    paths = sorted(root.rglob("*"), key=lambda file: file.relative_to(root).as_posix())
    readable = [file for file in paths if _holds_rows(file.relative_to(root))]
    files = [file for file in readable if split_of_file(file.relative_to(root))] or readable
    kinds = sorted({file.suffix for file in files})
    if len(kinds) != 1:
        raise ValueError(
            f"--from: expected files of one kind in {str(root)!r} (one of {sorted(_READERS)}), "
            f"found {kinds or 'none'}. Give one file, or the folder that holds the data."
        )
    return files, [file for file in readable if file not in files]


def _holds_rows(place: Path) -> bool:
    """Return whether a file may contain rows, judging by its path in the folder of the source."""
    is_hidden = any(part.startswith((".", "_")) for part in place.parts)
    is_data = place.name.removesuffix(".json") not in _NO_DATA
    return place.suffix in _READERS and is_data and not is_hidden


def _read_files(files: list[Path], root: Path, *, splits: bool) -> Iterator[Record]:
    for file in files:
        place = file.relative_to(root)
        split = split_of_file(place) if splits else None
        row = 0
        try:
            for row, values in enumerate(_READERS[file.suffix](file)):
                if not isinstance(values, dict):
                    raise ValueError(f"expected an object, found {values!a:.100}")
                yield Record(place.as_posix(), row, split, values)
        except (pa.ArrowException, OSError, ValueError, RecursionError) as error:
            raise ValueError(
                f"--from: {str(file)!r} cannot be read as {file.suffix[1:]}, at or after row "
                f"{row}: {error}. Correct the file or remove the row"
            ) from error


def _read_parquet(file: Path) -> Iterator[Any]:
    for batch in pq.ParquetFile(file).iter_batches(batch_size=_BATCH):
        yield from batch.to_pylist()


def _read_arrow(file: Path) -> Iterator[Any]:
    with pa.memory_map(str(file)) as data:
        for batch in pa.ipc.open_stream(data):
            yield from batch.to_pylist()


def _read_json(file: Path) -> Iterator[Any]:
    """Read a list of objects, or one object per line."""
    with file.open(encoding="utf-8") as text:
        # The suffix does not decide, because many files with one object per line end in .json.
        is_list = text.read(100).lstrip().startswith("[")
        text.seek(0)
        if is_list:
            yield from _parse(text.read())
        else:
            yield from (_parse(line) for line in text if line.strip())


def _parse(text: str) -> Any:
    values = json.loads(text)
    # JSON can contain one half of a surrogate pair, which Parquet cannot. The encoding raises then.
    if "\\ud" in text.lower():
        json.dumps(values, ensure_ascii=False).encode()
    return values


_READERS: dict[str, Callable[[Path], Iterator[Any]]] = {
    ".parquet": _read_parquet,
    ".arrow": _read_arrow,  # the format in which `datasets` saves
    ".jsonl": _read_json,
    ".json": _read_json,
}


# ------------------------------------------------------------------ the hub


def _open_hub(source: str, config: str | None) -> RecordSource:
    """Load a data set from the hub, at the commit of its revision; offline from the cache."""
    from datasets import get_dataset_config_names, load_dataset
    from datasets.exceptions import DatasetsError
    from huggingface_hub import HfApi, errors

    hub_id, _, revision = source.partition("@")
    commit: str | None = revision or None
    try:
        with hub_errors("--from", source, "data set"):
            # Offline, `load_dataset` below uses whatever is in its cache.
            with suppress(errors.OfflineModeIsEnabled):
                commit = HfApi().dataset_info(hub_id, revision=commit).sha
                if config and config not in get_dataset_config_names(hub_id, revision=commit):
                    config = None
            splits = load_dataset(hub_id, config, revision=commit)
    except DatasetsError as error:
        raise ValueError(f"--from: cannot read {source!r}: {first_line(error)}") from error
    if not commit:  # the folder in the cache of `datasets` is named after the commit
        files = [Path(file["filename"]) for rows in splits.values() for file in rows.cache_files]
        folders = {file.parent.name for file in files}
        commits = [name for name in folders if _COMMIT.fullmatch(name)]
        commit = min(commits, default=None)
    records = (
        Record(f"{hub_id}:{name}", row, split_of_file(Path(str(name))), values)
        for name, rows in splits.items()
        for row, values in enumerate(rows)
    )
    return RecordSource(records, {"hub": hub_id, "revision": commit, "config": config})


@contextmanager
def hub_errors(option: str, source: str, kind: Literal["data set", "model"]) -> Iterator[None]:
    """Turn errors of the hub into a ConnectionError with a remedy.

    Args:
      option: the option that names the source, for the message.
      source: a hub id, with or without ``@`` and a revision.
      kind: the kind of repository.
    """
    import httpx
    from huggingface_hub import errors

    try:
        yield
    except (errors.HfHubHTTPError, errors.HFValidationError) as error:
        raise ConnectionError(
            f"{option}: the hub rejects {source!r}: {first_line(error)}. Is the id right? It is "
            f"not a path here either. For a private or gated {kind}, log in with `hf auth login` "
            "and accept its terms."
        ) from error
    except (OSError, httpx.HTTPError) as error:
        download = "hf download" + (" --repo-type dataset" if kind == "data set" else "")
        raise ConnectionError(
            f"{option}: cannot load {source!r} from the hub: {first_line(error)}. It is not a path "
            f"here either. Without a network: `{download} {source.partition('@')[0]} --local-dir "
            f"DIR` where there is one, copy DIR here, and give DIR."
        ) from error
