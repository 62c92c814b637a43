"""Short sums: Reasoning Gym's ``chain_sum``, for the three rewards of the gsm8k recipes.

https://github.com/open-thought/reasoning-gym, Apache-2.0. Two to four digits, added and
subtracted. Kept are those with a result of 0 or more: to the rewards as published, -4 is no
integer. The system message is GSM8K's.

Whether a question belongs to training or to validation is a property of its text alone, as in
`toolbox`, so no seed and no size can let one slip into the other.
"""

from __future__ import annotations

import importlib.metadata
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

from gdpo_verl.tasks import gsm8k, parquet
from gdpo_verl.tasks.rows import PromptLength
from gdpo_verl.tasks.toolbox import SPLITS, split_of

DATA_SOURCE = "reasoning-gym"
REQUIREMENT = "reasoning-gym==0.1.25"
INSTALL = f"pip install {REQUIREMENT}"
GENERATOR = "chain_sum"
OPTIONS = {"min_terms": 2, "max_terms": 4, "min_digits": 1, "max_digits": 1}
QUESTION = "State the final answer to the following arithmetic problem: {} ="

# The generator seeds question i with seed + i; consecutive numbers would share questions.
_SEEDS = 2**31


@dataclass(frozen=True)
class Example:
    """One sum and its result.

    Attributes:
      question: as Reasoning Gym words it.
      expression: the sum alone, as in ``9 + 8 - 7``.
      ground_truth: the result.
      entry: what Reasoning Gym's own scoring takes.
    """

    question: str
    expression: str
    ground_truth: str
    entry: dict[str, Any]

    @property
    def messages(self) -> list[dict[str, str]]:
        return [
            {"role": "system", "content": gsm8k.SYSTEM},
            {"role": "user", "content": self.question},
        ]


@cache
def generator() -> Any:
    """Reasoning Gym's data set; entry i is a function of i.

    Raises:
      ModuleNotFoundError: the package is not installed.
    """
    try:
        import reasoning_gym
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"reasoning-gym: expected the package {REQUIREMENT} with what it needs, found no "
            f"{error.name}. Install it with: {INSTALL}"
        ) from error
    return reasoning_gym.create_dataset(GENERATOR, seed=0, size=_SEEDS, **OPTIONS)


def draw_example(rng: random.Random) -> Example:
    """Draw one sum whose result is 0 or more."""
    while True:
        entry = generator()[rng.randrange(_SEEDS)]
        if int(entry["answer"]) >= 0:
            expression = entry["metadata"]["expression"]
            return Example(entry["question"], expression, entry["answer"], entry)


def examples(split: str, *, seed: int) -> Iterator[Example]:
    """Examples of a split with no question twice, in an order that follows from the seed.

    Raises:
      ValueError: ``split`` is unknown.
      ModuleNotFoundError: the package is not installed.
    """
    if split not in SPLITS:
        raise ValueError(f"split: expected one of {list(SPLITS)}, found {split!r}")
    rng = random.Random(f"{DATA_SOURCE}/{split}/{seed}")
    seen: set[str] = set()
    while True:
        example = draw_example(rng)
        if split_of(example.question) == split and example.question not in seen:
            seen.add(example.question)
            yield example


def prepare(
    out_dir: Path,
    *,
    train: int = 2048,
    validation: int = 256,
    seed: int = 0,
    length: PromptLength | None = None,
) -> dict[str, Any]:
    """Write the sums to ``out_dir`` and return their provenance.

    Args:
      out_dir: gets train.parquet, validation.parquet and provenance.json.
      train: number of training rows.
      validation: number of held-out rows.
      seed: decides every row.
      length: the longest prompt, unchecked without it.

    Raises:
      ModuleNotFoundError: the package is not installed.
      ValueError: a split without rows, or a prompt too long.
    """
    splits = {
        split: [
            parquet.row(
                DATA_SOURCE,
                example.messages,
                example.ground_truth,
                ability="math",
                extra_info={"index": index, "split": split, "expression": example.expression},
            )
            for index, example in enumerate(islice(examples(split, seed=seed), size))
        ]
        for split, size in {"train": train, "validation": validation}.items()
    }
    if length:
        for row in splits["train"] + splits["validation"]:
            length.check(row["prompt"])
    provenance = {
        "data_source": DATA_SOURCE,
        "source": f"reasoning-gym {importlib.metadata.version('reasoning-gym')} from PyPI, "
        "https://github.com/open-thought/reasoning-gym",
        "license": "Apache-2.0",
        "settings": {"train": train, "validation": validation, "seed": seed},
        "generator": {"name": GENERATOR, **OPTIONS, "results": "0 or more"},
    }
    return parquet.write(out_dir, splits, provenance)
