"""From the rows of a source to a prepared data set: check each, cut the splits, write.

No row disappears in silence: what is not written is rejected with its file, row and reason, or
belongs to another task and is counted.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tqdm import tqdm

from gdpo_verl.lab.tasks.rows import (
    BadRow,
    OtherTask,
    PromptLength,
    Row,
    chat_text,
    check_messages,
    write_dataset,
)
from gdpo_verl.lab.tasks.source import Record, RecordSource

VALIDATION_ROWS = 512
"""Rows held out where the source has a training split alone; at most a tenth of it."""
MOST_REJECTED = 0.5
"""The share of rejected rows above which it is the source that is wrong."""

Splits = dict[str, list[Row]]
SplitRows = Callable[[dict[str | None, list[Row]], int, int], tuple[Splits, dict[str, str]]]
"""From the rows of each split to those to be written, and where each of these comes from."""


def build(
    out_dir: Path,
    source: RecordSource,
    convert: Callable[[Record], Row],
    *,
    about: Mapping[str, Any],
    length: PromptLength | None = None,
    validation: int = VALIDATION_ROWS,
    seed: int = 0,
    split_rows: SplitRows | None = None,
) -> dict[str, Any]:
    """Write what ``convert`` makes of the rows of ``source`` and return the provenance.

    Args:
      out_dir: gets train.parquet, validation.parquet and provenance.json.
      source: the rows.
      convert: gives the row in verl's columns; raises `BadRow`, or the ValueError of a
        reward's parser, for a row that cannot be used, and `OtherTask` for one that is not
        meant. ``extra_info`` gets index and split where it has none.
      about: what the data set says of itself, for the provenance.
      length: the longest prompt, unchecked without it.
      validation: rows to hold out, at most a tenth.
      seed: decides which.
      split_rows: gets the rows of each split of the source, ``validation`` and ``seed``, and
        leaves what is not written. By default the source's validation split is kept, else its
        test split takes that place, else rows are held out by the hash of their prompts.

    Raises:
      ValueError: no row of a split can be used, or more than half of all rows cannot.
    """
    if validation < 1:
        raise ValueError(f"--validation: expected at least 1 row, found {validation}")
    by_split: dict[str | None, list[Row]] = {}
    rejected: list[dict[str, Any]] = []
    others: Counter[str] = Counter()
    read = 0
    for record in tqdm(source.records, unit=" rows", desc=about["data_source"], disable=None):
        read += 1
        try:
            row = _checked(convert(record), length)
        except OtherTask as other:
            others[str(other)] += 1
        except ValueError as error:
            kind = error.kind if isinstance(error, BadRow) else "ground_truth"
            reason = {"kind": kind, "reason": str(error)}
            rejected.append({"file": record.file, "row": record.row, **reason})
            by_split.setdefault(record.split, [])  # a split without one good row is refused below
        else:
            by_split.setdefault(record.split, []).append(row)
    meant = read - others.total()
    kinds = Counter(row["kind"] for row in rejected)
    most_are_bad = len(rejected) == meant or len(rejected) > MOST_REJECTED * meant
    if most_are_bad or not all(by_split.values()):
        raise ValueError(_refusal(source, read, rejected, kinds, others))
    splits, origin = (split_rows or _train_and_validation)(by_split, validation, seed)
    for split, rows in splits.items():
        for index, row in enumerate(rows):  # rlla has its own index and split, which stay
            row["extra_info"] = {"index": index, "split": split} | row["extra_info"]
    provenance = {
        **about,
        "source": source.provenance,
        "splits": origin,
        "settings": {
            "seed": seed,
            "validation": validation,
            "model": length.model if length else None,
            "max_prompt_length": length.most if length else None,
        },
        "counts": {
            "read": read,
            "kept": sum(map(len, splits.values())),
            "rejected": dict(sorted(kinds.items())),
            "of_unused_splits": {str(split): len(rows) for split, rows in by_split.items()},
            "other_tasks": dict(sorted(others.items())),
        },
        "rejected": rejected,
    }
    return write_dataset(out_dir, splits, provenance)


def _checked(row: Row, length: PromptLength | None) -> Row:
    check_messages(row["prompt"])
    if length:
        length.check(row["prompt"])
    return row


def _refusal(
    source: RecordSource,
    read: int,
    rejected: list[dict[str, Any]],
    kinds: Counter[str],
    others: Counter[str],
) -> str:
    where = source.provenance.get("path") or source.provenance.get("hub")
    how = ", ".join(f"{count} {kind}" for kind, count in kinds.items()) or "none"
    elsewhere = f" and {others.total()} belong to another task" if others else ""
    shown = [f"\n  {row['file']} row {row['row']}: {row['reason']}" for row in rejected[:3]]
    return (
        f"--from: {where!r}: of {read} rows {len(rejected)} cannot be used ({how}){elsewhere}; "
        "more than half, or a whole split. Is it the right data? Nothing was written."
        + "".join(shown)
    )


def _train_and_validation(
    by_split: dict[str | None, list[Row]], validation: int, seed: int
) -> tuple[Splits, dict[str, str]]:
    # A single file's name says no split; all of its rows may be trained on.
    training = "train" if "train" in by_split else None
    if training not in by_split:
        raise ValueError(
            f"--from: expected rows of a training split, found {sorted(map(str, by_split))} "
            "alone. Give the folder that holds train and test, or one file, which is cut in two."
        )
    train = by_split.pop(training)
    for name in ("validation", "test"):
        if name in by_split:
            held_out = by_split.pop(name)
            return {"train": train, "validation": held_out}, {"train": "train", "validation": name}
    train, held_out = hold_out(train, validation, seed)
    how = f"{len(held_out)} rows held out of train by the hash of their prompts, seed {seed}"
    return {"train": train, "validation": held_out}, {"train": "train", "validation": how}


def hold_out(rows: list[Row], size: int, seed: int) -> tuple[list[Row], list[Row]]:
    """Cut off ``size`` rows, at most a tenth; rows of one prompt stay together.

    Which ones follows from the seed and the text of each prompt alone, in whatever order
    they come. Both parts keep the order.
    """
    texts = [chat_text(row["prompt"]) for row in rows]
    if len(set(texts)) < 2:
        raise ValueError(
            "--from: expected at least 2 usable rows, one to train on and one to hold out, found "
            f"{len(set(texts))} different prompts"
        )
    wanted = max(1, min(size, len(rows) // 10))
    times = Counter(texts)

    def order(text: str) -> bytes:
        return hashlib.sha256(f"{seed}:{text}".encode()).digest()

    chosen: set[str] = set()
    # Without the last, so that training keeps a prompt however many rows each has.
    for text in sorted(times, key=order)[:-1]:
        if wanted <= 0:
            break
        chosen.add(text)
        wanted -= times[text]
    parts: tuple[list[Row], list[Row]] = [], []
    for row, text in zip(rows, texts, strict=True):
        parts[text in chosen].append(row)
    return parts
