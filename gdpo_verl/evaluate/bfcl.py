"""BFCL's single-turn Python questions, by the leaderboard's own AST checker.

The questions and the checker are those of the package `bfcl-eval`; see `gdpo_verl.data.bfcl`.
The prompt is the one that `gdpo-verl prepare bfcl` writes, not the leaderboard's own, so that
what was trained is what is asked.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from gdpo_verl.data import bfcl, prompt
from gdpo_verl.evaluate.benchmark import (
    ACCURACY,
    Benchmark,
    Question,
    Questions,
    Sampling,
    Score,
    digest_of,
    read_rows,
)
from gdpo_verl.rewards import tool_call
from gdpo_verl.rewards.tool_text import assistant_text, read

_LIVE = tuple(category for category in bfcl.CATEGORIES if category.startswith("live_"))
_NON_LIVE = tuple(category for category in bfcl.CATEGORIES if category not in _LIVE)


class Bfcl(Benchmark):
    """Every question of the covered categories, or those in a file of `prepare bfcl`."""

    name = "bfcl"
    sampling = Sampling(temperature=0.0, top_p=1.0, max_tokens=1024)
    measures = (ACCURACY, "format")
    # The leaderboard's way: non-live is a mean of categories, live one over questions.
    averages: ClassVar[Mapping[str, Sequence[Sequence[str]]]] = {
        "non_live": [(name,) for name in _NON_LIVE],
        "live": [_LIVE],
    }
    not_covered = (
        "multi-turn, simple_java, simple_javascript, irrelevance, live_irrelevance, "
        "live_relevance, and v4's web search, memory and format sensitivity; so non_live lacks "
        "Java and JavaScript in its part 'simple', and there is no overall score of the leaderboard"
    )

    def load(self, data: str | None) -> Questions:
        self.check = bfcl.load_checker()
        package = f"bfcl-eval {importlib.metadata.version('bfcl-eval')}"
        known = {question.name: question for question in _all_questions()}
        if data is None:
            return Questions(list(known.values()), {"package": package})
        path = Path(data).expanduser()
        items = []
        for number, row in enumerate(read_rows(path)):
            name = (row.get("extra_info") or {}).get("id")
            if name not in known:
                raise ValueError(
                    f"--data: {path}, row {number}: expected extra_info.id of a question in "
                    f"{package}, found {name!r}. Write the file with: gdpo-verl prepare bfcl"
                )
            origin = known[name]
            items.append(Question(name, origin.category, row["prompt"], origin.truth))
        return Questions(items, {"file": str(path), "sha256": digest_of(path), "package": package})

    def score(self, question: Question, text: str, tokens: int) -> Score:
        functions, accepted = question.truth["functions"], question.truth["accepted"]
        reference = prompt.reference_answer("call", bfcl.first_answer(accepted))
        result = tool_call.compute_score(bfcl.DATA_SOURCE, text, reference)
        error = tool_call.ParseError(int(result["parse_error"]))
        calls = [(call["name"], call["parameters"]) for call in read(assistant_text(text)).calls]
        objections = ["no call that can be read"]
        if calls:
            try:
                objections = self.check(functions, calls, accepted, question.category)
            except Exception as failure:  # of the checker's code, on values it does not expect
                objections = [f"the checker raised {failure!r}"]
        measures = {ACCURACY: float(not objections), "format": result["format"]}
        return Score(measures, error, "; ".join(objections))


def _all_questions() -> list[Question]:
    questions = []
    for category in bfcl.CATEGORIES:
        for _, question, accepted in bfcl.read(category):
            turns = [(turn["role"], turn["content"]) for turn in question["question"][0]]
            blocks = [bfcl.tool_block(function) for function in question["function"]]
            truth: dict[str, Any] = {"functions": question["function"], "accepted": accepted}
            messages = prompt.messages(blocks, turns)
            questions.append(Question(question["id"], category, messages, truth))
    return questions
