"""The sets of problems on which published tables measure mathematics.

    {"problem": "What is $1/4 + 1/4$?", "answer": "\\\\frac{1}{2}"}        AIME, AMC, MATH-500
    {"question": "…", "context": "…", "final_answer": ["$1/2$"]}    OlympiadBench

These sets are not used for training, so each set is one file, ``test.parquet``. It contains the
rows of the test split if the source has one, else all rows. The prompt is the same as that of
`deepscaler`, with which the recipe trains.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gdpo_verl.recipes.math_length.rows import REQUEST

from gdpo_verl.lab.tasks.build import build
from gdpo_verl.lab.tasks.rows import BadRow, Row, make_row, text_of
from gdpo_verl.lab.tasks.source import Record, open_source
from gdpo_verl.rewards.math_length import parse_ground_truth

# The source of each set: its id on the hub, and its configuration if there are several.
SETS: dict[str, tuple[str, str | None]] = {
    # The American Invitational Mathematics Examinations of two years.
    "aime24": ("HuggingFaceH4/aime_2024", None),
    "aime25": ("math-ai/aime25", None),
    # The American Mathematics Competitions of 2022 and 2023, problems with whole numbers.
    "amc": ("AI-MO/aimo-validation-amc", None),
    # Five hundred test problems of MATH (https://arxiv.org/abs/2305.20050).
    "math500": ("HuggingFaceH4/MATH-500", None),
    # Problems of undergraduate courses (https://arxiv.org/abs/2206.14858).
    "minerva": ("math-ai/minervamath", None),
    # OlympiadBench's problems in English without images (https://arxiv.org/abs/2402.14008).
    "olympiad": ("Hothan/OlympiadBench", "OE_TO_maths_en_COMP"),
}

QUESTION_COLUMNS = ("problem", "question", "Problem", "Question")
ANSWER_COLUMNS = ("answer", "final_answer", "Answer", "solution")


def convert(name: str, record: Record) -> Row:
    """Convert to verl's columns; raise `BadRow`, or the ValueError of the reward's parser."""
    values = record.values
    question = text_of(values, _first(values, QUESTION_COLUMNS)).strip()
    if values.get("context"):
        question = f"{text_of(values, 'context').strip()}\n\n{question}"
    return make_row(
        name,
        [{"role": "user", "content": f"{question}\n\n{REQUEST}"}],
        parse_ground_truth(_answer(values)),
        ability="math",
        extra_info=record.place,
    )


def _first(values: Mapping[str, Any], columns: tuple[str, ...]) -> str:
    for column in columns:
        if values.get(column) is not None:
            return column
    raise BadRow("columns", f"expected one of the columns {columns}, found {sorted(values)}")


def _answer(values: Mapping[str, Any]) -> str:
    """Read an answer as LaTeX, without the signs around a formula.

    >>> _answer({"answer": 27.0}), _answer({"final_answer": ["$\\\\frac{1}{2}$"]})
    ('27', '\\\\frac{1}{2}')
    """
    column = _first(values, ANSWER_COLUMNS)
    value = values[column]
    if column == "solution":  # the reward's parser finds the answer in the last box
        return text_of(values, column)
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    return text_of({column: value}, column).replace("$", "").strip()


def prepare(
    out_dir: Path, *, name: str, source: str | None = None, **options: Any
) -> dict[str, Any]:
    """Write a set to ``out_dir`` and return its provenance; `build` explains the options."""
    hub, config = SETS[name]
    return build(
        out_dir,
        open_source(source or hub, config=config),
        lambda record: convert(name, record),
        about={"data_source": name, "published": f"{hub} on the hub"},
        trained=False,
        **options,
    )
