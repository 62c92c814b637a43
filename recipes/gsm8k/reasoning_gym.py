"""Sums and word problems of Reasoning Gym, for the three rewards of the gsm8k recipes.

    reasoning-gym   State the final answer to the following arithmetic problem: 9 + 8 - 7 =
    short-sums      9 + 28 + 7
    gsm-symbolic    a word problem like GSM8K's with other numbers

https://github.com/open-thought/reasoning-gym, Apache-2.0. The problems are those of ``chain_sum``
with numbers up to 30, and the short problems of ``gsm_symbolic``. Only problems whose result is a
whole number of at least 0 are kept, because the published rewards do not count -4 as an integer.
The system message is the same as for GSM8K.
"""

from __future__ import annotations

import importlib.metadata
import random
from functools import cache, partial
from pathlib import Path
from typing import Any

from gdpo_verl.recipes.gsm8k import rows as gsm8k

from gdpo_verl.lab.tasks import generated
from gdpo_verl.lab.tasks.examples import Example

DATA_SOURCE = "reasoning-gym"
SHORT, WORDS = "short-sums", "gsm-symbolic"
REQUIREMENT = "reasoning-gym==0.1.25"
GENERATORS: dict[str, tuple[str, dict[str, int | float]]] = {
    DATA_SOURCE: (
        "chain_sum",
        {"min_terms": 2, "max_terms": 4, "min_digits": 1, "max_digits": 1},
    ),
    SHORT: ("chain_sum", {"min_terms": 2, "max_terms": 3, "min_digits": 1, "max_digits": 2}),
    WORDS: ("gsm_symbolic", {"difficulty": 1.0}),
}
# The largest number of characters of a question, and the largest number in a sum.
LONGEST, LARGEST = 250, 30
QUESTION = "State the final answer to the following arithmetic problem: {} ="
# Worked examples. Each of them contains a number above `LARGEST`, so that no question is equal to
# an example.
WORKED = (("31 + 4", "35"), ("2 + 40 + 5", "47"), ("40 - 6 + 5", "39"), ("60 - 35 - 2", "23"))

# The generator uses seed + i as the seed of question i. So one data set with a fixed seed is used,
# whose entries are drawn at random: data sets with consecutive seeds would share questions.
_SEEDS = 2**31
_PROBLEMS = 2**16  # the generator of word problems first makes a list of all of them


@cache
def generator(name: str = DATA_SOURCE) -> Any:
    """Return a data set of Reasoning Gym, whose entry i depends only on i."""
    try:
        import reasoning_gym
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"reasoning-gym: expected the package {REQUIREMENT} with what it needs, found no "
            f"{error.name}. Install it with: pip install {REQUIREMENT}"
        ) from error
    kind, options = GENERATORS[name]
    size = _PROBLEMS if name == WORDS else _SEEDS
    return reasoning_gym.create_dataset(kind, seed=0, size=size, **options)


def draw_example(rng: random.Random, *, name: str = DATA_SOURCE, shots: int = 0) -> Example:
    """Draw a question whose result is a whole number of at least 0.

    For a sum, ``extra_info`` of the row contains the ``expression``, for example ``9 + 8 - 7``.

    Args:
      rng: draws the question.
      name: one of `GENERATORS`.
      shots: the number of worked examples in front of the question.
    """
    while True:
        entries = generator(name)
        entry = entries[rng.randrange(len(entries))]
        answer, expression = entry["answer"], entry["metadata"].get("expression", "")
        question = expression if name == SHORT else entry["question"]
        # The words of a sum are numbers and signs in turn.
        small = all(int(number) <= LARGEST for number in expression.split()[::2])
        is_kind = name != SHORT or "-" not in expression
        if answer.isdecimal() and len(question) <= LONGEST and small and is_kind:
            break
    worked = gsm8k.WORKED
    extra_info = {}
    if expression:
        extra_info = {"expression": expression}
        worked = [
            (question.replace(expression, other), f"{other} = {result}", result)
            for other, result in WORKED
        ]
    messages = [*gsm8k.turns(worked, shots), {"role": "user", "content": question}]
    return Example(question, messages, answer, extra_info=extra_info)


def prepare(
    out_dir: Path, *, name: str = DATA_SOURCE, shots: int = 0, **options: Any
) -> dict[str, Any]:
    """Write sums or word problems to ``out_dir``; `generated.write` explains the options."""
    # This call raises an error with a remedy if the package is missing, whose version is read next.
    generator(name)
    version = importlib.metadata.version("reasoning-gym")
    kind, chosen = GENERATORS[name]
    limits = {"results": "0 or more", "longest_question": LONGEST, "largest_number": LARGEST}
    return generated.write(
        out_dir,
        name,
        partial(draw_example, name=name, shots=shots),
        ability="math",
        source=f"reasoning-gym {version} from PyPI, https://github.com/open-thought/reasoning-gym",
        about={"shots": shots, "generator": {"name": kind, **chosen, **limits}},
        **options,
    )
