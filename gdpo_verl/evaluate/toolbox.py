"""The toolbox: is every call exact, and has the answer the form?"""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from gdpo_verl.data import toolbox
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
from gdpo_verl.rewards import tool_call

QUESTIONS = 256
EXACT = 3.0
"""The correctness of calls that are the very ones asked for."""


class Toolbox(Benchmark):
    """Held-out questions of `gdpo_verl.data.toolbox`; those of `prepare toolbox` by default."""

    name = "toolbox"
    sampling = Sampling(temperature=1.0, top_p=1.0, max_tokens=48)
    measures = (ACCURACY, "format")

    def load(self, data: str | None) -> Questions:
        if data is not None:
            return refuse_faulty(prepared(Path(data).expanduser()), tool_call.parse_ground_truth)
        items = [
            Question(f"row {number}", toolbox.DATA_SOURCE, example.messages, example.ground_truth)
            for number, example in enumerate(
                islice(toolbox.examples("validation", seed=0), QUESTIONS)
            )
        ]
        return Questions(items, {"generated": "gdpo_verl.data.toolbox, validation, seed 0"})

    def score(self, question: Question, text: str, tokens: int) -> Score:
        result = tool_call.compute_score("toolbox", text, question.truth)
        exact = float(result["correctness"] == EXACT)
        measures = {ACCURACY: exact, "format": result["format"]}
        return Score(measures, tool_call.ParseError(int(result["parse_error"])))
