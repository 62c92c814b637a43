"""An agent loop of verl for BFCL's dialogues, with bfcl-eval's own loop, APIs and checker.

The rows of multi_turn.parquet from ``prepare bfcl-v3`` name this agent loop. A dialogue consists of
steps. In each step, the model gets a new prompt with the dialogue so far, in the format of the
training data, and writes one text. Importing this module also imports bfcl-eval's generation and
scoring.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from statistics import fmean
from typing import Any
from uuid import uuid4

from gdpo_verl.recipes.tool_call import bfcl, prompt
from verl.experimental.agent_loop.agent_loop import (
    AgentLoopBase,
    AgentLoopMetrics,
    AgentLoopOutput,
)

from gdpo_verl.rewards.bfcl import MODEL, load_module
from gdpo_verl.rewards.parse_error import ParseError, with_score
from gdpo_verl.rewards.thought import assistant_text
from gdpo_verl.rewards.tool_text import read

MOST_DIGITS = 10_000
"""The largest exponent and precision for the simulated calculator, which could otherwise compute
for an unlimited time."""
AT_ONCE = 64
"""The largest number of dialogues that an agent loop worker holds at a time, one thread each."""

log = logging.getLogger(__name__)
runner = load_module("eval_checker.eval_runner")
simulator = load_module("eval_checker.multi_turn_eval.multi_turn_utils")
_base = load_module("model_handler.base_handler")
vars(_base)["print"] = log.debug  # bfcl-eval prints a line for every step
_pool = ThreadPoolExecutor(AT_ONCE)
_numbers = itertools.count()


@dataclass(frozen=True)
class Step:
    """One text that the model writes in a dialogue."""

    text: str
    prompt: Sequence[int]  # the tokens of the prompt
    tokens: Sequence[int]  # the tokens of the text
    extra_fields: Mapping[str, Any]  # verl's extra fields of the generation


Ask = Callable[[Sequence[Mapping[str, str]]], Step]
Inference = dict[str, Any]
"""The data of a dialogue in bfcl-eval: the descriptions of its tools, and its history."""


class PromptTooLong(Exception):
    """The error if a dialogue becomes longer than the context of the model."""


class TurnsAgentLoop(AgentLoopBase):
    """An agent loop that holds a dialogue with the model, and scores it at the end."""

    async def run(
        self, sampling_params: dict[str, Any], priority: int = 0, **kwargs: Any
    ) -> AgentLoopOutput:
        """Hold the dialogue of a row; the texts of all steps together are one response."""
        loop = asyncio.get_running_loop()
        truth = json.loads(kwargs["reward_model"]["ground_truth"])
        frame = prompt.parse_frame(kwargs["raw_prompt"][0]["content"])

        def ask(messages: Sequence[Mapping[str, str]]) -> Step:
            answer = self._answer(messages, sampling_params, int(priority))
            return asyncio.run_coroutine_threadsafe(answer, loop).result()

        steps, judged = await loop.run_in_executor(_pool, hold, truth, frame, ask)
        if not steps:
            raise PromptTooLong("the first turn is longer than the context of the model")
        tokens = [token for step in steps for token in step.tokens]
        extra_fields = {**steps[0].extra_fields, "turn_scores": [], "tool_rewards": []}
        return AgentLoopOutput(
            prompt_ids=list(steps[0].prompt),
            response_ids=tokens,
            response_mask=[1] * len(tokens),
            reward_score=judged["score"],
            num_turns=2 * len(steps),
            metrics=AgentLoopMetrics(),
            extra_fields={**extra_fields, "reward_extra_info": judged},
        )

    async def _answer(
        self, messages: Sequence[Mapping[str, str]], sampling_params: dict[str, Any], priority: int
    ) -> Step:
        prompt_ids = await self.ct_build_initial_tokens([dict(message) for message in messages])
        config = self.rollout_config
        most = config.max_model_len or config.prompt_length + config.response_length
        if len(prompt_ids) >= most:
            raise PromptTooLong
        output = await self.server_manager.generate(
            request_id=uuid4().hex,
            prompt_ids=prompt_ids,
            sampling_params={**sampling_params, "max_tokens": config.response_length},
            priority=priority,
        )
        text = self.tokenizer.decode(output.token_ids, skip_special_tokens=True)
        return Step(text, prompt_ids, output.token_ids, output.extra_fields)


def hold(
    truth: Mapping[str, Any], frame: prompt.PromptFrame | None, ask: Ask
) -> tuple[list[Step], dict[str, float]]:
    """Hold a dialogue to its end; return its steps and its rewards.

    Args:
      truth: the row's ground truth: category, entry and accepted calls.
      frame: the fixed texts of the prompt.
      ask: generates the model's text for a chat, or raises `PromptTooLong`.
    """
    entry = truth["entry"]
    with simulation() as model:
        handler = Handler(model, frame=frame, ask=ask, names=_names(entry))
        try:
            said, _ = handler.inference(deepcopy(entry), False, True)
        except PromptTooLong:
            said = []
        except Exception as failure:  # bfcl-eval itself continues in the same way
            log.warning("%s: error during inference: %r", entry["id"], failure)
            said = f"Error during inference: {failure!r}"
    return handler.steps, judge(truth, said)


def judge(truth: Mapping[str, Any], said: Any) -> dict[str, float]:
    """Score a dialogue.

    Args:
      truth: the row's ground truth.
      said: the model's texts, a list for each turn; a text instead of the list is the error that
        has ended the dialogue.
    """
    entry = truth["entry"]
    turns = said if isinstance(said, list) else []
    readings = [read(assistant_text(step)) for turn in turns for step in turn]
    error = next((reading.error for reading in readings if reading.error), ParseError.NONE)
    with simulation() as model:
        handler = Handler(model, names=_names(entry))
        try:
            verdict = runner._evaluate_single_multi_turn_entry(
                handler,
                entry["id"],
                said,
                truth["accepted"],
                deepcopy(entry),
                model,
                truth["category"],
            )
            valid = bool(verdict["valid"])
        except Exception as failure:  # raised by the checker, on values that it does not expect
            log.warning("%s: the checker raised %r", entry["id"], failure)
            valid = False
    tidy = fmean(reading.tidy for reading in readings) if readings else 0.0
    return with_score({"format": tidy, "correctness": float(valid)}, error)


def _names(entry: Mapping[str, Any]) -> list[str]:
    """Return the names of all functions of a dialogue, also of those that a later turn reveals."""
    revealed_later = entry.get("missed_function", {}).values()
    documents = list(entry["function"])
    for documents_of_turn in revealed_later:
        documents += documents_of_turn
    return [document["name"] for document in documents]


class Handler(_base.BaseHandler):  # type: ignore[name-defined,misc]
    """A handler of bfcl-eval that writes prompts and reads responses as in training."""

    def __init__(
        self,
        model_name: str = MODEL,
        *,
        frame: prompt.PromptFrame | None = None,
        ask: Ask | None = None,
        names: Sequence[str] = (),
    ) -> None:
        super().__init__(model_name, 0, MODEL, is_fc_model=False)
        self.frame = frame or prompt.PromptFrame()
        self.ask = ask
        # Every other name counts as undefined, even if Python has a function of this name.
        self.names = frozenset(names)
        self.steps: list[Step] = []

    # -------------------------------------------------------------- asking

    def _pre_query_processing_prompting(self, test_entry: dict[str, Any]) -> Inference:
        blocks = [bfcl.tool_block(function) for function in test_entry["function"]]
        return {"tool_blocks": blocks, "history": []}

    def add_first_turn_message_prompting(
        self, inference_data: Inference, first_turn_message: list[dict[str, str]]
    ) -> Inference:
        turns = [prompt.turn(turn["role"], turn["content"]) for turn in first_turn_message]
        inference_data["history"] += turns
        return inference_data

    def _add_next_turn_user_message_prompting(
        self, inference_data: Inference, user_message: list[dict[str, str]]
    ) -> Inference:
        inference_data["history"].append("")  # rlla has an empty line between turns
        return self.add_first_turn_message_prompting(inference_data, user_message)

    def _query_prompting(self, inference_data: Inference) -> tuple[Step, float]:
        assert self.ask is not None, "this handler was made to score"
        chat = prompt.messages(inference_data["tool_blocks"], inference_data["history"], self.frame)
        step = self.ask(chat)
        self.steps.append(step)
        return step, 0.0

    def _parse_query_response_prompting(self, api_response: Step) -> dict[str, Any]:
        return {
            "model_responses": api_response.text,
            "input_token": 0,
            "output_token": len(api_response.tokens),
        }

    def _add_assistant_message_prompting(
        self, inference_data: Inference, model_response_data: dict[str, Any]
    ) -> Inference:
        text = assistant_text(model_response_data["model_responses"])
        inference_data["history"] += ["", text]
        return inference_data

    def _add_execution_results_prompting(
        self,
        inference_data: Inference,
        execution_results: list[str],
        model_response_data: dict[str, Any],
    ) -> Inference:
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
        """Parse the calls of a response; raise ValueError if they cannot be parsed."""
        reading = read(assistant_text(result))
        if reading.error:
            raise ValueError(reading.error.name)
        return [{call["name"]: call["parameters"]} for call in reading.calls]

    def decode_execute(self, result: str, has_tool_call_tag: bool) -> list[str]:
        """Return the calls as expressions, which bfcl-eval passes to `eval`.

        An expression contains only the name of a function of the dialogue, and literals, so that
        `eval` can execute nothing else.
        """
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


@contextmanager
def simulation() -> Iterator[str]:
    """Yield an unused model name, and delete the state of the simulated APIs at the end.

    bfcl-eval stores this state under the names of the model and the question.
    """
    name = f"gdpo_verl_{next(_numbers)}_run"
    try:
        yield name
    finally:
        state = vars(simulator)
        for key in [key for key in list(state) if key.startswith(f"{name}_")]:
            del state[key]
