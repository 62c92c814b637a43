"""Rewards of a rollout with tools that run: correctness, executed, economy and format.

Use them where the policy calls tools during the rollout, and needs their results for the answer.
Assumes: verl's `tool_agent` loop; `extra_info['calls']`, the number of calls that are needed.

The text is the complete output of verl's `tool_agent` loop. It includes the results of the tools,
but a policy can write a text that looks like a result. Therefore the outcomes of calls are read
from verl's own record, `extra_info['tool_rewards']`, which has a number for each executed call.
"""

from __future__ import annotations

import re
from typing import Any

from gdpo_verl.config.components import Component, declares
from gdpo_verl.rewards import gsm8k
from gdpo_verl.rewards.gsm8k import CLOSE, OPEN, parse_ground_truth
from gdpo_verl.rewards.parse_error import ParseError, warn_of_ground_truth, warn_once, with_score
from gdpo_verl.rewards.thought import assistant_text

__all__ = ["compute_score", "compute_score_by_turn", "parse_ground_truth"]

# The outcome of a call, which a `guarded` tool returns in addition to its text. verl itself records
# 0 for a call that raises, names an unknown tool, or has invalid arguments
# (verl/experimental/agent_loop/tool_agent_loop.py, `_call_tool`).
EXECUTED, CUT, RAISED, TIMED_OUT = 1.0, 0.5, 0.0, -1.0
CALL, END_CALL = "<tool_call>", "</tool_call>"
TOLD, END_TOLD = "<tool_response>", "</tool_response>"
# The texts that `guarded` and verl return for a failed call. If the response ends after a call,
# there was no space for a result.
_FAILURE = re.compile(
    r"Error: |Error executing tool|Unknown function|Invalid JSON in arguments|</tool_call>\Z"
)
# verl also records 0 for a tool that returns only a text. This cannot be distinguished from a call
# that raised.
_UNGUARDED = (
    "a tool returned only a text, so it is not known whether its call ran. The call counts as "
    "failed if other calls have a result; if none has, executed and economy are not scored. "
    f"Register the tool as function_tool(guarded(tool)), or return (text, {EXECUTED}) from it"
)
_NAMES = ("correctness", "executed", "economy", "format")


@declares(*(Component(name, 0, 1) for name in _NAMES))
def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: dict[str, Any] | None = None,
    **kwargs: Any,
) -> dict[str, float | None]:
    """Compute the four rewards of one rollout, with the signature of verl's reward functions.

    Args:
      data_source: ignored, as are `kwargs`.
      solution_str: the rollout from the assistant's first turn on.
      ground_truth: the expected number, as in `gsm8k`.
      extra_info: the extra_info of the row, with the number of needed `calls`, and verl's
        `tool_rewards`.

    Returns:
      A dict with these keys:

      - correctness: 1 if the last answer is the expected number, by the strict rules of `gsm8k`.
      - executed: the share of the calls that ran to their end; 0 if none ran.
      - economy: needed calls / calls that ran, at most 1. It is 0 if fewer calls ran than needed,
        unless the answer is correct.
      - format: 1 if each call was executed, and a single answer is at the end.
      - score: the sum of these rewards.
      - calls: the number of calls.
      - parse_error: the `ParseError` of the answer. It is `TIMEOUT` if a call timed out, and
        `OUTPUT` if the output of a tool was cut. It is `NO_OUTCOME` if a tool that is not `guarded`
        returned only a text, so that it is not known whether the call ran. If this holds for all
        calls, executed and economy are None.

    >>> compute_score("", "<answer>42</answer>", "42", {"calls": 2})["score"]  # no tool has run
    2.0
    """
    info = extra_info or {}
    outcomes = [float(outcome) for outcome in info.get("tool_rewards") or ()]
    text = assistant_text(solution_str)
    # verl omits further calls in a turn, and calls that are not JSON.
    calls = max(solution_str.count(CALL), len(outcomes))
    ran = sum(outcome > 0 for outcome in outcomes)
    # `words` is the text of the model, without the results of tools, if the chat template puts them
    # into tags. A result may contain the closing tag, so the last closing tag of a piece is used.
    words = "".join(piece.rpartition(END_TOLD)[2] for piece in text.split(TOLD))
    answer = gsm8k.compute_score(data_source, words, ground_truth)
    needed = info.get("calls", 0)
    error = answer["parse_error"]
    if not isinstance(needed, int) or needed < 1:
        fault = ValueError(
            f"extra_info['calls']: expected a number of at least 1, found {needed!r}"
        )
        warn_of_ground_truth("tool_turns", fault)
        error = ParseError.GROUND_TRUTH
    rewards: dict[str, float | None] = dict.fromkeys(_NAMES, 0.0)
    if error != ParseError.GROUND_TRUTH:
        rewards["correctness"] = answer["correctness"]
        rewards["format"] = float(_has_format(text, words, len(outcomes)))
        if ran:
            rewards["executed"] = ran / calls
        if ran and (ran >= needed or answer["correctness"]):
            rewards["economy"] = min(1.0, needed / ran)
        if TIMED_OUT in outcomes:
            error = ParseError.TIMEOUT
        elif CUT in outcomes:
            error = ParseError.OUTPUT
        elif outcomes.count(RAISED) > len(_FAILURE.findall(text)):
            error = ParseError.NO_OUTCOME
            warn_once("tool_turns", error, _UNGUARDED)
            if not any(outcomes):
                rewards["executed"] = None
                rewards["economy"] = None
    return with_score(rewards, error) | {"calls": calls}


@declares(*(Component(name, 0, 1) for name in _NAMES), by_turn=("executed",))
def compute_score_by_turn(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: dict[str, Any] | None = None,
    **kwargs: Any,
) -> dict[str, Any]:
    """Compute the rewards of `compute_score`, with `executed` as a list with a number per turn.

    A turn whose call ran to its end has the value 1 / calls, and any other turn has 0. The sum over
    the turns is `executed` of `compute_score`.

    The arguments are those of `compute_score`. In addition, extra_info contains verl's `num_turns`,
    the number of the assistant's turns and of the messages to it.

    Raises:
      ValueError: a turn made several calls, which verl's record does not assign to turns. Set
        `actor_rollout_ref.rollout.multi_turn.max_parallel_calls`.

    >>> info = {"calls": 2, "tool_rewards": [0.0, 1.0], "num_turns": 6}
    >>> compute_score_by_turn("", "<answer>42</answer>", "42", info)["executed"]
    [0.0, 0.5, 0.0]
    """
    scored: dict[str, Any] = compute_score(data_source, solution_str, ground_truth, extra_info)
    info = extra_info or {}
    ran = [float(outcome) > 0 for outcome in info.get("tool_rewards") or ()]
    # verl counts the turns of the assistant, the results of tools between them, and the question.
    turns = (info.get("num_turns") or 2 * (len(ran) + 1)) // 2
    if len(ran) > turns:
        raise ValueError(
            f"extra_info['tool_rewards']: expected at most one call in each of {turns} turns, "
            f"found {len(ran)}. Set actor_rollout_ref.rollout.multi_turn.max_parallel_calls=1."
        )
    if scored["executed"] is not None:
        # `executed` may be 0 although calls ran, if the row has a fault.
        share = scored["executed"] / max(sum(ran), 1)
        shares = [share * did_run for did_run in ran]
        scored["executed"] = shares + [0.0] * (turns - len(ran))
    return scored


def _has_format(text: str, words: str, calls: int) -> bool:
    """Return whether each call was executed, and a single answer is at the end."""
    counts = [words.count(tag) for tag in (CALL, END_CALL, OPEN, CLOSE)]
    # Some chat templates put a tool result into tags, others into a separate turn.
    results_fit = text.count(TOLD) in (0, calls)
    return counts == [calls, calls, 1, 1] and results_fit and text.endswith(CLOSE)
