"""Draw rows at random, such that no question occurs twice or in both splits.

A hash of its text decides whether a question belongs to training or to validation. Therefore no
seed and no size can put the same question into both splits.
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

# After this many known questions in a row, the set of questions counts as used up. Its size is not
# known otherwise.
_MAX_DUPLICATES_IN_A_ROW = 10_000


Draw = Callable[[random.Random], Example]


def split_of_question(question: str) -> str:
    """Return the split of a question: one question in eight belongs to validation."""
    digest = hashlib.sha256(question.encode()).digest()
    return "validation" if digest[0] % 8 == 0 else "train"


def draw_of(split: str, draw: Draw, rng: random.Random) -> Example:
    """Draw examples until one belongs to ``split``, and return it."""
    while True:
        example = draw(rng)
        if split_of_question(example.question) == split:
            return example


def examples(name: str, split: str, draw: Draw, seed: int) -> Iterator[Example]:
    """Draw examples of a split, no question twice.

    Raises:
      ValueError: there are no new questions.
    """
    # A text as seed gives the same numbers in every process.
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
    """Write drawn examples to ``out_dir`` and return their provenance.

    Args:
      out_dir: the folder of the data set.
      name: the data source.
      draw: draws one example.
      ability: the value of verl's column `ability`.
      source, about: entries of the provenance.
      train, validation: the numbers of rows.
      seed: determines every row.
      options: further arguments of `build`.

    Raises:
      ValueError: `build` raises it, or there are fewer questions than rows.
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
