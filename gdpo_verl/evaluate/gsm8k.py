"""GSM8K by the reward functions: is the number right, is it an integer, has it the form?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gdpo_verl.data import gsm8k
from gdpo_verl.data.source import open_source
from gdpo_verl.evaluate.benchmark import (
    ACCURACY,
    Benchmark,
    Question,
    Questions,
    Sampling,
    Score,
    prepared,
    refuse_faulty,
)
from gdpo_verl.rewards import gsm8k as reward


class Gsm8k(Benchmark):
    """The test split on the hub by default; else a prepared parquet file, or what `prepare
    gsm8k --from` takes, of which a training split is not asked."""

    name = "gsm8k"
    sampling = Sampling(temperature=0.0, top_p=1.0, max_tokens=1024)
    measures = (ACCURACY, "integer", "format")

    def load(self, data: str | None) -> Questions:
        path = Path(data).expanduser() if data else None
        if path and path.suffix == ".parquet":
            return refuse_faulty(prepared(path), reward.parse_ground_truth)
        return _unprepared(data or gsm8k.HUB_ID)

    def score(self, question: Question, text: str, tokens: int) -> Score:
        result = reward.compute_score("gsm8k", text, question.truth)
        measures = {
            ACCURACY: result["correctness"],
            "integer": result["integer"],
            "format": result["format"],
        }
        return Score(measures, reward.ParseError(int(result["parse_error"])))


def _unprepared(source: str) -> Questions:
    opened = open_source(source, config="main")
    items: list[Question] = []
    rejected: list[dict[str, Any]] = []
    for record in opened.records:
        if record.split == "train":
            continue
        place = f"{record.file} row {record.row}"
        try:
            if record.values is None:
                raise ValueError(record.problem)
            row = gsm8k.convert(record)
        except ValueError as error:
            rejected.append({"question": place, "reason": str(error)})
            continue
        truth = row["reward_model"]["ground_truth"]
        items.append(Question(place, gsm8k.DATA_SOURCE, row["prompt"], truth))
    if not items:
        raise ValueError(
            f"--data: {source!r}: expected rows of a test or validation split, found none that "
            f"can be read ({len(rejected)} cannot)"
        )
    return Questions(items, {**opened.provenance, "rejected": rejected})
