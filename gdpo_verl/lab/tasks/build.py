"""Prepare a data set from the rows of a source: check each row, cut the splits, and write them.

No row disappears in silence: what is not written is rejected with its file, row and reason, or
belongs to another task and is counted.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
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
"""Rows held out where the source has only a training split; at most a tenth of it."""
MOST_REJECTED = 0.5
"""The share of rejected rows above which it is the source that is wrong."""

BySplit = dict[str | None, list[Row]]
"""The rows of each split that a file's name says, in their order; None where none does."""
Splits = dict[str, list[Row]]
"""The rows to be written."""


@dataclass
class Sifted:
    """The rows of a source, converted or rejected."""

    read: int = 0
    by_split: BySplit = field(default_factory=dict)
    rejected: list[dict[str, Any]] = field(default_factory=list)
    others: Counter[str] = field(default_factory=Counter)  # rows of other tasks

    @property
    def kinds(self) -> Counter[str]:
        """The number of rejected rows by kind of reason."""
        return Counter(row["kind"] for row in self.rejected)


def build(
    out_dir: Path,
    source: RecordSource,
    convert: Callable[[Record], Row],
    *,
    about: Mapping[str, Any],
    length: PromptLength | None = None,
    validation: int = VALIDATION_ROWS,
    seed: int = 0,
    trained: bool = True,
) -> dict[str, Any]:
    """Write what ``convert`` makes of the rows of ``source`` and return the provenance.

    Args:
      out_dir: gets train.parquet and validation.parquet, or test.parquet, and provenance.json.
      source: the rows.
      convert: gives the row in verl's columns; raises `BadRow`, or the ValueError of a
        reward's parser, for a row that cannot be used, and `OtherTask` for one that is not
        meant. ``extra_info`` gets index and split where it has none.
      about: what the data set says of itself, for the provenance.
      length: the longest prompt, unchecked without it.
      validation: rows to hold out, at most a tenth.
      seed: decides which.
      trained: the source's validation split is kept, else its test split takes that place, else
        rows are held out by the hash of their prompts. Otherwise its test split is all that is
        written, or all rows where it has none.

    Raises:
      ValueError: no row of a split can be used, or more than half of all rows cannot.
    """
    if validation < 1:
        raise ValueError(f"--validation: expected at least 1 row, found {validation}")
    records = tqdm(source.records, unit=" rows", desc=about["data_source"], disable=None)
    sifted = sift(records, convert, length)
    meant = sifted.read - sifted.others.total()
    bad = len(sifted.rejected)
    if bad == meant or bad > MOST_REJECTED * meant or not all(sifted.by_split.values()):
        raise ValueError(_refusal(about["data_source"], source, sifted))
    if trained:
        splits, origin = _train_and_validation(sifted.by_split, validation, seed)
    else:
        splits, origin = _test_alone(sifted.by_split)
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
            "read": sifted.read,
            "kept": sum(map(len, splits.values())),
            "rejected": dict(sorted(sifted.kinds.items())),
            "of_unused_splits": {str(split): len(rows) for split, rows in sifted.by_split.items()},
            "other_tasks": dict(sorted(sifted.others.items())),
        },
        "rejected": sifted.rejected,
    }
    return write_dataset(out_dir, splits, provenance)


def sift(
    records: Iterable[Record], convert: Callable[[Record], Row], length: PromptLength | None = None
) -> Sifted:
    """Convert the rows of a source; see `build`."""
    sifted = Sifted()
    for record in records:
        sifted.read += 1
        try:
            row = convert(record)
            check_messages(row["prompt"])
            if length:
                length.check(row["prompt"])
        except OtherTask as other:
            sifted.others[str(other)] += 1
        except ValueError as error:
            kind = error.kind if isinstance(error, BadRow) else "ground_truth"
            sifted.rejected.append({**record.place, "kind": kind, "reason": str(error)})
            sifted.by_split.setdefault(record.split, [])  # without one good row it is rejected
        else:
            sifted.by_split.setdefault(record.split, []).append(row)
    return sifted


def _refusal(name: str, source: RecordSource, sifted: Sifted) -> str:
    origin = source.provenance.get("path") or source.provenance.get("hub")
    where = f"--from: {origin!r}" if origin else name
    how = ", ".join(f"{count} {kind}" for kind, count in sifted.kinds.items()) or "none"
    elsewhere = f" and {sifted.others.total()} belong to another task" if sifted.others else ""
    shown = [f"\n  {row['file']} row {row['row']}: {row['reason']}" for row in sifted.rejected[:3]]
    return (
        f"{where}: of {sifted.read} rows {len(sifted.rejected)} cannot be used ({how})"
        f"{elsewhere}. That is more than half of the rows, or a complete split. Is it the right "
        f"data? Nothing was written.{''.join(shown)}"
    )


def _test_alone(by_split: BySplit) -> tuple[Splits, dict[str, str]]:
    if "test" in by_split:
        return {"test": by_split.pop("test")}, {"test": "test"}
    rows = [row for split in by_split.values() for row in split]
    origin = " and ".join(split or "no split" for split in by_split)
    by_split.clear()
    return {"test": rows}, {"test": f"all rows, of {origin}"}


def _train_and_validation(
    by_split: BySplit, validation: int, seed: int
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
    train = []
    held_out = []
    for row, text in zip(rows, texts, strict=True):
        if text in chosen:
            held_out.append(row)
        else:
            train.append(row)
    return train, held_out
