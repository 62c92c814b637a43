"""GSM8K: grade-school mathematics with whole numbers for answers.

https://huggingface.co/datasets/openai/gsm8k (MIT), configuration ``main``; the files of
https://github.com/openai/grade-school-math have the same columns, question and answer. The
ground truth is what stands behind #### in the answer, commas included, as in the published
example of GDPO (https://arxiv.org/abs/2601.05242).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gdpo_verl.data import parquet
from gdpo_verl.data.build import build
from gdpo_verl.data.rows import Row, text_of
from gdpo_verl.data.source import Record, open_source
from gdpo_verl.rewards.gsm8k import HASHES, parse_ground_truth

DATA_SOURCE = "gsm8k"
HUB_ID = "openai/gsm8k"
ABOUT = {"data_source": DATA_SOURCE, "published": f"{HUB_ID} on the hub; MIT"}

SYSTEM = """\
Solve the problem that the user gives you. Think first, then answer with one whole number, in \
exactly this form and with nothing else around it:
<think>your thoughts</think>
<answer>the number</answer>"""


def convert(record: Record) -> Row:
    """The row in verl's columns; raises `BadRow`, or the ValueError of the reward's parser."""
    values = record.values or {}
    question, answer = text_of(values, "question"), text_of(values, "answer")
    parse_ground_truth(answer)
    return parquet.row(
        DATA_SOURCE,
        [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question.strip()}],
        answer.rpartition(HASHES)[2].strip(),
        ability="math",
        extra_info={"file": record.file, "row": record.row},
    )


def prepare(out_dir: Path, *, source: str | None = None, **options: Any) -> dict[str, Any]:
    """Write GSM8K to ``out_dir`` and return its provenance; see `build` for the options."""
    return build(
        out_dir, open_source(source or HUB_ID, config="main"), convert, about=ABOUT, **options
    )
