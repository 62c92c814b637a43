"""Rows that are drawn and not read: no question twice, none in both splits.

A question belongs to training or to validation by its text alone (a hash), so no seed and no size
can let one slip into the other.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from gdpo_verl.lab.tasks.build import build
from gdpo_verl.lab.tasks.examples import Example
from gdpo_verl.lab.tasks.rows import make_row
from gdpo_verl.lab.tasks.source import Record, RecordSource

# When a small set of questions is used up, nothing else tells.
_MAX_DUPLICATES_IN_A_ROW = 10_000


Draw = Callable[[random.Random], Example]


def split_of_question(question: str) -> str:
    """Assign a question to its split: one in eight is validation."""
    digest = hashlib.sha256(question.encode()).digest()
    return "validation" if digest[0] % 8 == 0 else "train"


def draw_of(split: str, draw: Draw, rng: random.Random) -> Example:
    """Draw until the question belongs to ``split``."""
    while True:
        example = draw(rng)
        if split_of_question(example.question) == split:
            return example


def examples(name: str, split: str, draw: Draw, seed: int) -> Iterator[Example]:
    """Draw examples of a split, no question twice, until there are no new ones left."""
    # A text seeds alike in every process.
    rng = random.Random(f"{name}/{split}/{seed}")
    seen: set[str] = set()
    duplicates = 0
    while duplicates < _MAX_DUPLICATES_IN_A_ROW:
        example = draw_of(split, draw, rng)
        if example.question in seen:
            duplicates += 1
            continue
        duplicates = 0
        seen.add(example.question)
        yield example
    raise ValueError(
        f"{name}: no new {split} question after {len(seen)}; ask for fewer rows than that"
    )


def write(
    out_dir: Path,
    name: str,
    draw: Draw,
    *,
    ability: str,
    source: str,
    about: Mapping[str, Any],
    train: int = 2048,
    validation: int = 256,
    seed: int = 0,
    **options: Any,
) -> dict[str, Any]:
    """Write drawn examples to ``out_dir`` and return their provenance; see `build` for the rest.

    Args:
      name: the data source.
      draw: draws one example.
      ability: of each row, verl's word.
      source, about: for the provenance.
      train, validation: numbers of rows.
      seed: decides every row.

    Raises:
      ValueError: as `build`, or more rows than there are questions.
    """

    def records() -> Iterator[Record]:
        for split, size in (("train", train), ("validation", validation)):
            drawn = islice(examples(name, split, draw, seed), size)
            for number, example in enumerate(drawn):
                row = make_row(
                    name,
                    example.messages,
                    example.ground_truth,
                    ability=ability,
                    extra_info=example.extra_info,
                )
                yield Record(source, number, split, row)

    return build(
        out_dir,
        RecordSource(records(), {"generated": source}),
        lambda record: record.values,
        about={"data_source": name, "license": "Apache-2.0", **about},
        validation=validation,
        seed=seed,
        **options,
    )
