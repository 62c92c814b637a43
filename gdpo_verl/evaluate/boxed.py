"""Mathematics with answers in a box, by math-verify: is it right, and short enough?"""

from __future__ import annotations

from functools import cache
from pathlib import Path

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
from gdpo_verl.rewards import math_length

DATA = "data/deepscaler/validation.parquet"


class Boxed(Benchmark):
    """Any prepared file whose ground truths are LaTeX; DeepScaleR's held-out rows by default."""

    name = "math"
    sampling = Sampling(temperature=0.6, top_p=0.95, max_tokens=8000)
    measures = (ACCURACY, f"within_{math_length.LIMIT}_tokens")

    def load(self, data: str | None) -> Questions:
        path = Path(data or DATA).expanduser()
        return refuse_faulty(prepared(path), cache(math_length.parse_ground_truth))

    def score(self, question: Question, text: str, tokens: int) -> Score:
        result = math_length.compute_score(
            "math", text, question.truth, {"response_length": tokens}
        )
        measures = {ACCURACY: result["correctness"], self.measures[1]: result["length"]}
        return Score(measures, math_length.ParseError(int(result["parse_error"])))
