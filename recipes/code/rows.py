"""Eurus-2's programming tasks: competition problems with tests.

    {"data_source": "taco", "prompt": [{"role": "system", …}, {"role": "user", …}],
     "reward_model": {"ground_truth": '{"inputs": ["2\\\\n"], "outputs": ["4\\\\n"]}'}}

https://huggingface.co/datasets/PRIME-RL/Eurus-2-RL-Data (MIT). The rows are for the rewards of
`rewards.code`. Rows of the four programming sources are used, and rows of mathematics are counted
as another task. The system message is removed, because it asks for the format of Eurus's own
models.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gdpo_verl.lab.tasks.build import build
from gdpo_verl.lab.tasks.rows import BadRow, OtherTask, Row, check_messages, make_row, text_of
from gdpo_verl.lab.tasks.source import Record, open_source
from gdpo_verl.rewards.code import parse_ground_truth

DATA_SOURCE = "eurus2-code"
HUB_ID = "PRIME-RL/Eurus-2-RL-Data"
ABOUT = {"data_source": DATA_SOURCE, "published": f"{HUB_ID} on the hub; MIT"}
CODE_SOURCES = ("taco", "apps", "codecontests", "codeforces")
MATH_PREFIX = "numina_"

FENCE = "```python"
REQUEST = f"Write a Python program that solves it, as the last block fenced with {FENCE} and ```."


def convert(record: Record) -> Row:
    """Convert to verl's columns.

    Raises:
      OtherTask: the row belongs to mathematics.
      BadRow, ValueError: the row cannot be used.
    """
    values = record.values
    data_source = text_of(values, "data_source")
    if data_source.startswith(MATH_PREFIX):
        raise OtherTask(data_source)
    if data_source not in CODE_SOURCES:
        raise BadRow(
            "data_source",
            f"data_source: expected one of {list(CODE_SOURCES)}, or {MATH_PREFIX}* for "
            f"mathematics, found {data_source!a:.100}",
        )
    truth = text_of(values, "reward_model", "ground_truth")
    tests = parse_ground_truth(truth)
    return make_row(
        data_source,
        [{"role": "user", "content": _question(values, tests.name)}],
        truth,
        ability="code",
        extra_info=record.place,
    )


def _question(values: dict[str, Any], function: str) -> str:
    """Return the user's message, with the format of the answer and the name of the function."""
    text = check_messages(values.get("prompt"))[-1]["content"].strip()
    if FENCE not in text:  # some problems ask for a fenced block themselves
        text += f"\n\n{REQUEST}"
    if function and function not in text:
        text += f"\n\nThe tests call the function `{function}`."
    return text


def prepare(out_dir: Path, *, source: str | None = None, **options: Any) -> dict[str, Any]:
    """Write the programming tasks to ``out_dir`` and return their provenance; see `build`."""
    return build(out_dir, open_source(source or HUB_ID), convert, about=ABOUT, **options)
