"""Mathematics with answers in a box, by math-verify: is it right, and short enough?"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import ClassVar

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


class Boxed(Benchmark):
    """Any prepared file whose ground truths are LaTeX; DeepScaleR's held-out rows by default."""

    name = "math"
    sampling = Sampling(temperature=0.6, top_p=0.95, max_tokens=8000)
    measures = (ACCURACY, f"within_{math_length.LIMIT}_tokens")
    data: ClassVar[str] = "data/deepscaler/validation.parquet"

    def load(self, data: str | None) -> Questions:
        path = Path(data or self.data).expanduser()
        return refuse_faulty(prepared(path), cache(math_length.parse_ground_truth))

    def score(self, question: Question, text: str, tokens: int) -> Score:
        info = {"response_length": tokens, "question": question.prompt}
        result = math_length.compute_score("math", text, question.truth, info)
        measures = {ACCURACY: result["correctness"], self.measures[1]: result["length"]}
        return Score(measures, math_length.ParseError(int(result["parse_error"])))


class Published(Boxed):
    """A set that published tables name, of `gdpo_verl.data.math_sets`.

    With k answers to each question the accuracy is what they call mean@k, avg@k, or pass@1 over
    k samples.
    """

    sampling = replace(Boxed.sampling, samples=16)
    pass_at = (4, 16, 64)


class Aime24(Published):
    """The American Invitational Mathematics Examinations of 2024."""

    name = "aime24"
    data = "data/aime24/test.parquet"


class Aime25(Published):
    """Those of 2025."""

    name = "aime25"
    data = "data/aime25/test.parquet"


class Amc(Published):
    """The American Mathematics Competitions of 2022 and 2023, problems with whole numbers."""

    name = "amc"
    data = "data/amc/test.parquet"


class Math500(Published):
    """Five hundred test problems of MATH (https://arxiv.org/abs/2305.20050)."""

    name = "math500"
    data = "data/math500/test.parquet"


class Minerva(Published):
    """Problems of undergraduate courses (https://arxiv.org/abs/2206.14858)."""

    name = "minerva"
    data = "data/minerva/test.parquet"


class Olympiad(Published):
    """OlympiadBench's problems in English without images (https://arxiv.org/abs/2402.14008)."""

    name = "olympiad"
    data = "data/olympiad/test.parquet"
