"""ToolRL's tool-calling data, ``rlla``, on which the paper of GDPO trains.

    {"instruction": "Tools: 1. Name: add …", "input": "<user> Add 1 and 2. </user>",
     "output": "<think> Add. </think>\\n<tool_call>\\n{\"name\": \"add\", …}\\n</tool_call>"}

https://github.com/qiancheng0/ToolRL (Apache-2.0). The rows are for the rewards of
`rewards.tool_call`. ``dataset/rlla_4k_raw`` contains lists of objects like this one, and
``dataset/rlla_4k`` contains Parquet files in verl's columns, which stay as they are. The ground
truth is the complete published output.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gdpo_verl.lab.tasks.build import build
from gdpo_verl.lab.tasks.rows import BadRow, Row, check_messages, make_row, text_of
from gdpo_verl.lab.tasks.source import Record, open_source
from gdpo_verl.rewards.tool_call import parse_ground_truth

DATA_SOURCE = "rlla"
ABOUT = {
    "data_source": DATA_SOURCE,
    "published": "https://github.com/qiancheng0/ToolRL, dataset/rlla_4k; Apache-2.0",
}
RAW_COLUMNS = ("instruction", "input", "output")


def convert(record: Record) -> Row:
    """Convert to verl's columns; raise `BadRow`, or the ValueError of the reward's parser."""
    values = record.values
    return _raw(values) if "instruction" in values else _published(values)


def _published(values: dict[str, Any]) -> Row:
    source = text_of(values, "data_source")
    if source != DATA_SOURCE:
        raise BadRow("data_source", f"data_source: expected {DATA_SOURCE!r}, found {source!a:.100}")
    parse_ground_truth(text_of(values, "reward_model", "ground_truth"))
    return make_row(
        DATA_SOURCE,
        check_messages(values.get("prompt")),
        values["reward_model"]["ground_truth"],
        ability=str(values.get("ability")),
        extra_info=values.get("extra_info") or {},
    )


def _raw(values: dict[str, Any]) -> Row:
    instruction, question, output = (text_of(values, column) for column in RAW_COLUMNS)
    parse_ground_truth(output)
    return make_row(
        DATA_SOURCE,
        [{"role": "system", "content": instruction}, {"role": "user", "content": question}],
        output,
        ability="tool_call",
        # ToolRL's own Parquet files have the same columns in extra_info.
        extra_info={column: values[column] for column in RAW_COLUMNS},
    )


def prepare(out_dir: Path, *, source: str | None = None, **options: Any) -> dict[str, Any]:
    """Write rlla to ``out_dir`` and return its provenance; see `build` for the options."""
    if source is None:
        raise ValueError(
            "--from: rlla is published on GitHub, not on the hub. Run `git clone "
            "https://github.com/qiancheng0/ToolRL` and give --from ToolRL/dataset/rlla_4k"
        )
    return build(out_dir, open_source(source), convert, about=ABOUT, **options)
