"""DeepScaleR: about 40,000 competition problems with LaTeX answers.

    {"problem": "What is $1/4 + 1/4$?", "answer": "\\\\frac{1}{2}", "solution": "Add them. …"}

https://huggingface.co/datasets/agentica-org/DeepScaleR-Preview-Dataset (MIT). It has only a
training split, from which rows are held out. The rows are for the rewards of `rewards.math_length`.
A row is rejected if math-verify cannot compare its answer with itself, because then no response
could be correct.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from gdpo_verl.lab.tasks.build import build
from gdpo_verl.lab.tasks.rows import Row, make_row, text_of
from gdpo_verl.lab.tasks.source import Record, open_source
from gdpo_verl.rewards.math_length import parse_ground_truth

DATA_SOURCE = "deepscaler"
HUB_ID = "agentica-org/DeepScaleR-Preview-Dataset"
ABOUT = {"data_source": DATA_SOURCE, "published": f"{HUB_ID} on the hub; MIT"}

REQUEST = "Reason step by step and put the final answer in \\boxed{}."

# Many problems have the same answer, and each call of math-verify takes milliseconds.
_parse = cache(parse_ground_truth)


def convert(record: Record) -> Row:
    """Convert to verl's columns; raise `BadRow`, or the ValueError of the reward's parser."""
    values = record.values
    problem, answer = text_of(values, "problem").strip(), text_of(values, "answer").strip()
    _parse(answer)
    return make_row(
        DATA_SOURCE,
        [{"role": "user", "content": f"{problem}\n\n{REQUEST}"}],
        answer,
        ability="math",
        # With the question, the reward can reject a copy of the question's formulas as an answer.
        extra_info={**record.place, "question": problem},
    )


def prepare(out_dir: Path, *, source: str | None = None, **options: Any) -> dict[str, Any]:
    """Write DeepScaleR to ``out_dir`` and return its provenance; see `build` for the options."""
    return build(out_dir, open_source(source or HUB_ID), convert, about=ABOUT, **options)
