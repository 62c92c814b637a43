"""Contest programs in the sandbox, by source: the held-out rows of the coding recipe.

The four measures of the published table: tests passed, length and errors, and besides the share
of problems solved, whose every test passes.
"""

from __future__ import annotations

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
from gdpo_verl.rewards import code
from gdpo_verl.sandbox import best_protection

LIMIT = 4000
"""Tokens of the longest response that the recipe rewards for its length."""


class Programs(Benchmark):
    """Any prepared file whose ground truths are tests; Eurus-2's held-out rows by default."""

    name = "code"
    sampling = Sampling(temperature=0.6, top_p=0.95, max_tokens=8000)
    measures = (ACCURACY, "tests_passed", f"within_{LIMIT}_tokens", "bug_free")
    pass_at = (4, 16, 64)

    def load(self, data: str | None) -> Questions:
        best_protection(allow_unprotected=self.allow_unprotected)  # before any model is loaded
        path = Path(data or "data/eurus2-code/validation.parquet").expanduser()
        return refuse_faulty(prepared(path), code.parse_ground_truth)

    def score(self, question: Question, text: str, tokens: int) -> Score:
        result = code.compute_score(
            question.category,
            text,
            question.truth,
            {"response_length": tokens},
            limit=LIMIT,
            allow_unprotected=self.allow_unprotected,
        )
        passed = result["pass"]
        values = (float(passed == 1.0), passed, result["length"], result["bug_free"])
        measures = dict(zip(self.measures, values, strict=True))
        return Score(measures, code.ParseError(int(result["parse_error"])))
