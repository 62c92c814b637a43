"""Short sums: Reasoning Gym's ``chain_sum``, for the three rewards of the gsm8k recipes.

https://github.com/open-thought/reasoning-gym, Apache-2.0. Two to four digits, added and
subtracted. Kept are those with a result of 0 or more: to the rewards as published, -4 is no
integer. The system message is GSM8K's.
"""

from __future__ import annotations

import importlib.metadata
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from gdpo_verl.tasks import generated, gsm8k

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
    """Examples of a split, as `generated.examples` draws them.

    Raises:
      ModuleNotFoundError: the package is not installed.
    """
    return generated.examples(DATA_SOURCE, split, draw_example, seed=seed)


def prepare(out_dir: Path, **options: Any) -> dict[str, Any]:
    """Write the sums to ``out_dir`` and return their provenance; see `generated.write`.

    Raises:
      ModuleNotFoundError: the package is not installed.
    """
    generator()  # says how to install the package, whose version is asked for below
    return generated.write(
        out_dir,
        DATA_SOURCE,
        draw_example,
        ability="math",
        extra=lambda example: {"expression": example.expression},
        source=f"reasoning-gym {importlib.metadata.version('reasoning-gym')} from PyPI, "
        "https://github.com/open-thought/reasoning-gym",
        about={"generator": {"name": GENERATOR, **OPTIONS, "results": "0 or more"}},
        **options,
    )
