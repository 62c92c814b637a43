"""The handler through which bfcl-eval asks our models: its own loop and checkers, our prompt.

Importing this module imports bfcl-eval's generation and scoring.
"""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

from gdpo_verl.lab.tasks import bfcl, prompt
from gdpo_verl.lab.tasks.benchmark import Ask, ModelAnswer
from gdpo_verl.rewards.thought import assistant_text
from gdpo_verl.rewards.tool_text import read

MOST_DIGITS = 10_000
"""The largest exponent and precision with which the simulated calculator computes here; with any
larger ones it may compute forever."""

log = logging.getLogger(__name__)
runner = bfcl.load_module("eval_checker.eval_runner")
utils = bfcl.load_module("utils")
simulator = bfcl.load_module("eval_checker.multi_turn_eval.multi_turn_utils")
enums = bfcl.load_module("constants.enums")
_base = bfcl.load_module("model_handler.base_handler")
vars(_base)["print"] = log.debug  # it prints a line for every step


class PromptTooLong(Exception):
    """A dialogue grew longer than the model."""


class Handler(_base.BaseHandler):  # type: ignore[name-defined,misc]
    """Asks in the form of the training data and reads the answers as the reward does."""

    def __init__(
        self,
        model_name: str = bfcl.MODEL,
        *,
        frame: prompt.PromptFrame | None = None,
        ask: Ask | None = None,
        names: Sequence[str] = (),
    ) -> None:
        super().__init__(model_name, 0, bfcl.MODEL, is_fc_model=False)
        self.frame = frame or prompt.PromptFrame()
        self.ask = ask
        # Another function is undefined, as in bfcl-eval, whatever Python knows under its name.
        self.names = frozenset(names)
        self.steps: list[ModelAnswer] = []

    # -------------------------------------------------------------- asking

    def _pre_query_processing_prompting(self, test_entry: dict[str, Any]) -> dict[str, Any]:
        blocks = [bfcl.tool_block(function) for function in test_entry["function"]]
        return {"tool_blocks": blocks, "history": []}

    def add_first_turn_message_prompting(
        self, inference_data: dict[str, Any], first_turn_message: list[dict[str, str]]
    ) -> dict[str, Any]:
        turns = [prompt.turn(each["role"], each["content"]) for each in first_turn_message]
        inference_data["history"] += turns
        return inference_data

    def _add_next_turn_user_message_prompting(
        self, inference_data: dict[str, Any], user_message: list[dict[str, str]]
    ) -> dict[str, Any]:
        inference_data["history"].append("")  # rlla has an empty line between turns
        return self.add_first_turn_message_prompting(inference_data, user_message)

    def _query_prompting(self, inference_data: dict[str, Any]) -> tuple[ModelAnswer, float]:
        assert self.ask is not None, "this handler was made to score"
        answer = self.ask(self.messages(inference_data))
        if answer.finish == "prompt too long":
            raise PromptTooLong
        self.steps.append(answer)
        return answer, 0.0

    def messages(self, inference_data: Mapping[str, Any]) -> list[dict[str, str]]:
        """The chat that the model is asked with."""
        return prompt.apply_frame(
            self.frame, inference_data["tool_blocks"], inference_data["history"]
        )

    def _parse_query_response_prompting(self, api_response: ModelAnswer) -> dict[str, Any]:
        return {
            "model_responses": api_response.text,
            "input_token": 0,
            "output_token": api_response.tokens,
        }

    def _add_assistant_message_prompting(
        self, inference_data: dict[str, Any], model_response_data: dict[str, Any]
    ) -> dict[str, Any]:
        text = assistant_text(model_response_data["model_responses"])
        inference_data["history"] += ["", text]
        return inference_data

    def _add_execution_results_prompting(
        self,
        inference_data: dict[str, Any],
        execution_results: list[str],
        model_response_data: dict[str, Any],
    ) -> dict[str, Any]:
        calls = read(assistant_text(model_response_data["model_responses"])).calls
        observed = [
            {"name": call["name"], "results": result}
            for call, result in zip(calls, execution_results, strict=True)
        ]
        text = json.dumps(observed, ensure_ascii=False)
        inference_data["history"].append(prompt.turn("obs", text))
        return inference_data

    # -------------------------------------------------------------- reading

    def decode_ast(
        self, result: str, language: Any, has_tool_call_tag: bool
    ) -> list[dict[str, Any]]:
        """The calls of an answer; raises ValueError when they cannot be read."""
        reading = read(assistant_text(result))
        if reading.error:
            raise ValueError(reading.error.name)
        return [{call["name"]: call["parameters"]} for call in reading.calls]

    def decode_execute(self, result: str, has_tool_call_tag: bool) -> list[str]:
        """The calls as expressions, which bfcl-eval hands to `eval`: a name that is known to be
        harmless, and literals."""
        calls = self.decode_ast(result, None, has_tool_call_tag)
        return [self._expression(*item) for call in calls for item in call.items()]

    def _expression(self, name: str, parameters: dict[str, Any]) -> str:
        large = any(
            isinstance(parameters.get(key), (int, float)) and abs(parameters[key]) > MOST_DIGITS
            for key in ("exponent", "precision")
        )
        if name not in self.names or large:
            return "undefined_function()"
        return f"{name}(**{parameters!r})"


@cache
def entries(category: str, *, hint: bool) -> list[tuple[dict[str, Any], dict[str, Any], Any]]:
    """Load a category: each question, what is shown of it, and the answers that are accepted.

    What is shown is the functions, with a ``hint`` as bfcl-eval does at their language; relevance
    has None for answers. To be read only.
    """
    asked = utils.load_dataset_entry(category, include_language_specific_hint=False)
    shown = utils.load_dataset_entry(category) if hint else asked
    if "relevance" in category:
        return [(*pair, None) for pair in zip(asked, shown, strict=True)]
    accepted = [each["ground_truth"] for each in utils.load_ground_truth_entry(category)]
    return list(zip(asked, shown, accepted, strict=True))


_numbers = itertools.count()


@contextmanager
def simulation() -> Iterator[str]:
    """Lend an unused model name; bfcl-eval keeps the state of its simulated APIs under the names
    of model and question, and that state is dropped on leaving."""
    name = f"gdpo_verl_{next(_numbers)}_run"
    try:
        yield name
    finally:
        state = vars(simulator)
        for key in [key for key in list(state) if key.startswith(f"{name}_")]:
            del state[key]
