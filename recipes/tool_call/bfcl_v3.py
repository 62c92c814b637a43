"""All 4441 questions of BFCL's version 3, for evaluation, from the package ``bfcl-eval``.

    test.parquet         questions of one turn, for the reward `rewards.bfcl`
    multi_turn.parquet   dialogues with simulated APIs, for the agent loop of `bfcl_turns`

The prompt has the layout of the training run, not that of the leaderboard, so that a model is
evaluated as it was trained. The fixed texts of the prompt are those of `gdpo-verl prepare bfcl`, or
those of training rows (``--from``).
"""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from gdpo_verl.recipes.tool_call import prompt
from gdpo_verl.recipes.tool_call.bfcl import REPOSITORY, chat

from gdpo_verl.lab.tasks.rows import PromptLength, Row, check_messages, make_row, write_dataset
from gdpo_verl.rewards.bfcl import load_module

AGENT = "bfcl_turns"
"""The name of the agent loop for dialogues in bfcl_turns.yaml."""

SINGLE_TURN = (
    "simple_python",
    "simple_java",
    "simple_javascript",
    "multiple",
    "parallel",
    "parallel_multiple",
    "irrelevance",
    "live_simple",
    "live_multiple",
    "live_parallel",
    "live_parallel_multiple",
    "live_irrelevance",
    "live_relevance",
)
MULTI_TURN = (
    "multi_turn_base",
    "multi_turn_miss_func",
    "multi_turn_miss_param",
    "multi_turn_long_context",
)
# Categories whose prompts get the hint of bfcl-eval about the programming language. For Java and
# JavaScript it says that every value has to be a text. Python needs no hint, as in `prepare bfcl`.
_HINTED = ("simple_java", "simple_javascript")


def prepare(
    out_dir: Path, *, source: str | None = None, seed: int = 0, length: PromptLength | None = None
) -> dict[str, Any]:
    """Write the questions to ``out_dir`` and return their provenance.

    Args:
      out_dir: the folder for test.parquet, multi_turn.parquet and provenance.json.
      source: a Parquet file of training rows, whose prompt is used.
      seed: ignored, because nothing is drawn.
      length: ignored, because no question of the leaderboard is left out.
    """
    frame = prompt.PromptFrame() if source is None else frame_of(source)
    splits = {
        "test": [row for category in SINGLE_TURN for row in rows(category, frame)],
        "multi_turn": [row for category in MULTI_TURN for row in rows(category, frame)],
    }
    provenance = {
        "data_source": "bfcl-v3",
        "source": f"bfcl-eval {importlib.metadata.version('bfcl-eval')} from PyPI, {REPOSITORY}",
        "license": "Apache-2.0",
        "prompt": source or "gdpo-verl prepare bfcl",
    }
    return write_dataset(out_dir, splits, provenance)


def rows(category: str, frame: prompt.PromptFrame) -> Iterator[Row]:
    """Yield the questions of a category in verl's columns, for the reward `rewards.bfcl`."""
    utils = load_module("utils")
    entries = utils.load_dataset_entry(category, include_language_specific_hint=False)
    shown = utils.load_dataset_entry(category) if category in _HINTED else entries
    accepted: list[Any] = [None] * len(entries)
    if "relevance" not in category:
        accepted = [answer["ground_truth"] for answer in utils.load_ground_truth_entry(category)]
    several = category in MULTI_TURN
    for index, (entry, question, answers) in enumerate(zip(entries, shown, accepted, strict=True)):
        truth = {"category": category, "functions": entry["function"], "accepted": answers}
        if several:
            truth = {"category": category, "entry": entry, "accepted": answers}
        row = make_row(
            category,
            chat(question, frame),
            json.dumps(truth),
            ability="tool_call",
            extra_info={"index": index, "split": "test", "id": entry["id"]},
        )
        # Both files need this column: verl may read them together, and then needs it in each row.
        row["agent_name"] = AGENT if several else "single_turn_agent"
        yield row


def frame_of(source: str) -> prompt.PromptFrame:
    """Return the fixed texts around the tools in the prompts of a Parquet file.

    Raises:
      ValueError: the file has no prompts with tools, or its prompts have different fixed texts.
    """
    try:
        column = pq.read_table(Path(source).expanduser(), columns=["prompt"]).to_pylist()
        systems = {check_messages(row.get("prompt"))[0]["content"] for row in column}
    except (OSError, ValueError) as error:  # Arrow's own errors are ValueErrors
        raise ValueError(
            f"--from: expected a parquet file of training rows, whose prompt is used, found "
            f"{source!r}: {error}"
        ) from error
    frames = {prompt.parse_frame(system) for system in systems} - {None}
    if len(frames) != 1:
        raise ValueError(
            f"--from: expected the same text around the tools in all prompts of {source}, found "
            f"{len(frames)} texts. Use a file of tool-calling rows whose prompts have one layout."
        )
    (frame,) = frames
    assert frame is not None
    return frame
