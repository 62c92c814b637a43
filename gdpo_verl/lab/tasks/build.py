"""Prepare a data set from the rows of a source: check each row, divide the splits, write the files.

No row disappears silently. A row that is not written is either rejected, with its file, its number
and the reason, or it belongs to another task and is counted.
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
"""The number of rows held out if the source has only a training split; at most a tenth of it."""
MOST_REJECTED = 0.5
"""With a larger share of rejected rows, the whole source is rejected."""

BySplit = dict[str | None, list[Row]]
"""The rows by the split that the name of their file tells; None if the name tells no split."""
Splits = dict[str, list[Row]]
"""The rows to write, by split."""


@dataclass
class Sifted:
    """The rows of a source after conversion."""

    read: int = 0  # the number of rows
    by_split: BySplit = field(default_factory=dict)  # the converted rows
    rejected: list[dict[str, Any]] = field(default_factory=list)  # place, kind and reason
    others: Counter[str] = field(default_factory=Counter)  # rows of other tasks, by kind

    @property
    def kinds(self) -> Counter[str]:
        """The number of rejected rows, by kind of reason."""
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
    """Convert the rows of a source, write them, and return the provenance.

    For a data set to train on, the validation split of the source is kept. If there is none, its
    test split becomes the validation split. If there is no test split either, rows of the training
    split are held out, chosen by the hash of their prompts. For a benchmark, only the test split is
    written; if the source has none, all rows are written as the test split.

    Args:
      out_dir: the folder for train.parquet and validation.parquet, or for test.parquet, and for
        provenance.json.
      source: the rows.
      convert: returns a row in verl's columns, with or without index and split in ``extra_info``.
        It raises `BadRow`, or the ValueError of a reward's parser, for a row that cannot be used,
        and `OtherTask` for a row of another task.
      about: entries of the provenance that describe the data set.
      length: the limit for prompts; None does not check their length.
      validation: the number of rows to hold out, at most a tenth.
      seed: determines which rows are held out.
      trained: False for a benchmark.

    Raises:
      ValueError: no row of a split can be used, or more than half of all rows cannot be used.
    """
    if validation < 1:
        raise ValueError(f"--validation: expected at least 1 row, found {validation}")
    records = tqdm(source.records, unit=" rows", desc=about["data_source"], disable=None)
    sifted = sift(records, convert, length)
    of_task = sifted.read - sifted.others.total()
    bad = len(sifted.rejected)
    if bad == of_task or bad > MOST_REJECTED * of_task or not all(sifted.by_split.values()):
        raise ValueError(_refusal(about["data_source"], source, sifted))
    if trained:
        splits, origin = _train_and_validation(sifted.by_split, validation, seed)
    else:
        splits, origin = _test_alone(sifted.by_split)
    for split, rows in splits.items():
        for index, row in enumerate(rows):  # the data set rlla keeps its own index and split
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
    """Convert the rows of a source; see `build` for the arguments."""
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
            # A split that stays empty, because all its rows are bad, rejects the source.
            sifted.by_split.setdefault(record.split, [])
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
    # The rows of a single file have the split None, and count as training rows.
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
    """Hold out ``size`` rows, at most a tenth; rows with the same prompt stay together.

    Only the seed and the texts of the prompts determine the held-out rows, not the order of the
    rows. Both parts keep this order.

    Returns:
      the rows to train on, and the held-out rows.
    """
    texts = [chat_text(row["prompt"]) for row in rows]
    if len(set(texts)) < 2:
        raise ValueError(
            "--from: expected at least 2 usable rows, one to train on and one to hold out, found "
            f"{len(set(texts))} different prompts"
        )
    remaining = max(1, min(size, len(rows) // 10))
    times = Counter(texts)

    def order(text: str) -> bytes:
        return hashlib.sha256(f"{seed}:{text}".encode()).digest()

    chosen: set[str] = set()
    # The last prompt is never held out, so that training keeps at least one prompt.
    for text in sorted(times, key=order)[:-1]:
        if remaining <= 0:
            break
        chosen.add(text)
        remaining -= times[text]
    train = []
    held_out = []
    for row, text in zip(rows, texts, strict=True):
        if text in chosen:
            held_out.append(row)
        else:
            train.append(row)
    return train, held_out
