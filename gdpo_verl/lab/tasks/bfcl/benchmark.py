"""The Berkeley Function-Calling Leaderboard, version 3, by bfcl-eval's own loop and checkers.

The questions, the simulated APIs of the multi-turn ones, and the checkers are those of the package
`bfcl-eval`; see `handler`. The prompt is that of the training, not the leaderboard's own, so
that what was trained is what is asked: its fixed texts are taken from the training rows, or are
those of `gdpo-verl prepare bfcl`.
"""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, ClassVar

from gdpo_verl.lab.files import sha256
from gdpo_verl.lab.tasks import bfcl, prompt
from gdpo_verl.lab.tasks.benchmark import (
    ACCURACY,
    Ask,
    Averages,
    Benchmark,
    Dialogue,
    ModelAnswer,
    Question,
    Questions,
    Sampling,
    Score,
    Stopped,
    read_rows,
    shared_by,
)
from gdpo_verl.rewards.parse_error import ParseError
from gdpo_verl.rewards.thought import assistant_text
from gdpo_verl.rewards.tool_text import read

if TYPE_CHECKING:
    from gdpo_verl.lab.tasks.bfcl.handler import Handler

SIMPLE = ("simple_python", "simple_java", "simple_javascript")
NON_LIVE = (*SIMPLE, "multiple", "parallel", "parallel_multiple", "irrelevance")
LIVE_CALLS = ("live_simple", "live_multiple", "live_parallel", "live_parallel_multiple")
LIVE = (*LIVE_CALLS, "live_irrelevance", "live_relevance")
MULTI_TURN = tuple(
    f"multi_turn_{name}" for name in ("base", "miss_func", "miss_param", "long_context")
)
CATEGORIES = (*NON_LIVE, *LIVE, *MULTI_TURN)


class Bfcl(Benchmark):
    """Every question of version 3, or those in a file of `prepare bfcl`."""

    sampling = Sampling(temperature=0.0, top_p=1.0, max_tokens=1024)
    context = 32_768
    # As the leaderboard of version 3 formed them, and those of version 4 that it shares.
    averages: ClassVar[Averages] = {
        "simple": [(name,) for name in SIMPLE],
        "non_live": ["simple", *[(name,) for name in NON_LIVE[len(SIMPLE) :]]],
        "live": [LIVE],
        "multi_turn": [(name,) for name in MULTI_TURN],
        "average": ["non_live", "live", "multi_turn"],
        "v4_non_live": ["simple", ("multiple",), ("parallel",), ("parallel_multiple",)],
        "v4_live": [LIVE_CALLS],
    }
    not_covered = (
        "version 3's executable categories, which the leaderboard withdrew; version 4's web "
        "search, memory and format sensitivity, and so its overall score"
    )

    def load(self, data: str | None) -> Questions:
        from gdpo_verl.lab.tasks.bfcl import handler

        self.bfcl = handler
        found: tuple[prompt.PromptFrame, str] | None = shared_by(
            self.prompt_from,
            lambda chat: prompt.parse_frame(chat[0]["content"]),
            "text around the tools",
        )
        self.frame, origin = found or (prompt.PromptFrame(), "gdpo-verl prepare bfcl")
        package = f"bfcl-eval {importlib.metadata.version('bfcl-eval')}"
        about = {"package": package, "prompt": f"prompt of {origin}"}
        known = {question.name: question for question in self._all_questions()}
        if data is None:
            return Questions(list(known.values()), about)
        path = Path(data).expanduser()
        items = []
        for number, row in enumerate(read_rows(path)):  # with the prompts of the file
            name = str((row.get("extra_info") or {}).get("id"))
            if name not in known:
                raise ValueError(
                    f"--data: {path}, row {number}: expected extra_info.id of a question in "
                    f"{package}, found {name!r}. Write the file with: gdpo-verl prepare bfcl"
                )
            items.append(replace(known[name], messages=row["prompt"]))
        return Questions(items, {"file": str(path), "sha256": sha256(path), **about})

    def dialogue(self, question: Question) -> Dialogue | None:
        if question.category not in MULTI_TURN:
            return None

        def run(ask: Ask) -> ModelAnswer:
            finish = "stop"
            with self.bfcl.simulation() as model:
                handler = self._handler(question, model, ask)
                try:
                    said, _ = handler.inference(deepcopy(question.truth["entry"]), False, True)
                except self.bfcl.PromptTooLong:
                    said, finish = [], "prompt too long"
                except Stopped:
                    raise
                except Exception as failure:  # of bfcl-eval's code, which itself goes on like this
                    said = f"Error during inference: {failure!r}"
            if finish == "stop" and any(step.finish == "length" for step in handler.steps):
                finish = "length"
            tokens = sum(step.tokens for step in handler.steps)
            return ModelAnswer(json.dumps(said, ensure_ascii=False), tokens, finish)

        return run

    def score(self, question: Question, text: str, tokens: int) -> Score:
        said = json.loads(text or "[]") if question.category in MULTI_TURN else [[text]]
        # A text in place of turns is the error with which the dialogue ended.
        held = said if isinstance(said, list) else []
        steps = [read(assistant_text(step)) for turn in held for step in turn]
        asks_for_calls = question.category not in MULTI_TURN and "irrel" not in question.category
        tidy = [
            step.tidy and (not asks_for_calls or (bool(step.calls) and not step.has_response))
            for step in steps
        ]
        error = next((step.error for step in steps if step.error), ParseError.NONE)
        if asks_for_calls and not error and not steps[0].calls:
            error = ParseError.NO_CALL
        try:
            verdict = self._verdict(question, text, said)
        except Exception as failure:  # of the checker's code, on values it does not expect
            verdict = {"valid": False, "error": [f"the checker raised {failure!r}"]}
        objections = [] if verdict["valid"] else verdict["error"]
        if isinstance(objections, Mapping):
            objections = [objections.get("error_message", objections)]
        reason = "; ".join(map(str, objections))
        measures = {ACCURACY: float(verdict["valid"]), "format": fmean(tidy) if tidy else 0.0}
        return Score(measures, error, reason)

    def _verdict(self, question: Question, text: str, said: Any) -> Any:
        """Judge by bfcl-eval's own function for the category."""
        category, truth, runner = question.category, question.truth, self.bfcl.runner
        if category in MULTI_TURN:
            with self.bfcl.simulation() as model:
                return runner._evaluate_single_multi_turn_entry(
                    self._handler(question, model),
                    *(question.name, said, truth["accepted"], deepcopy(truth["entry"])),
                    *(model, category),
                )
        of_answer = self._handler(question), question.name, text
        if "accepted" not in truth:
            return runner._evaluate_single_relevance_entry(*of_answer, {}, bfcl.MODEL, category)
        language = category.removeprefix("simple_").upper() if category in SIMPLE else "PYTHON"
        return runner._evaluate_single_ast_entry(
            *(*of_answer, truth["accepted"], {"function": truth["functions"]}),
            *(bfcl.MODEL, category),
            self.bfcl.enums.Language[language],
            self.bfcl.enums.ReturnFormat[language],
        )

    def _handler(self, question: Question, model: str = "", ask: Ask | None = None) -> Handler:
        names: list[str] = []
        if entry := question.truth.get("entry"):
            held_back = entry.get("missed_function", {}).values()
            docs = [*entry["function"], *(doc for turn in held_back for doc in turn)]
            names = [doc["name"] for doc in docs]
        return self.bfcl.Handler(model or bfcl.MODEL, frame=self.frame, ask=ask, names=names)

    def _all_questions(self) -> Iterator[Question]:
        handler = self.bfcl.Handler(frame=self.frame)
        for category in CATEGORIES:
            # The hint says which language the documentation is in. Python's goes without saying,
            # as in `prepare bfcl`; the others' says that every value is to be a text.
            entries = self.bfcl.entries(category, hint=category in SIMPLE[1:])
            for entry, of_prompt, truth in entries:
                data = handler._pre_query_processing_prompting(of_prompt)
                handler.add_first_turn_message_prompting(data, of_prompt["question"][0])
                kept = {"functions": entry["function"], "accepted": truth}
                if category in MULTI_TURN:
                    kept = {"entry": entry, "accepted": truth}
                elif truth is None:
                    kept = {}
                yield Question(entry["id"], category, handler.messages(data), kept)
