"""Rewards of a session with tools that run: correctness, executed, economy and format.

Use them where the policy calls tools while it is sampled, and their results lead to the answer.
Assumes: verl's `tool_agent` loop; `extra_info['calls']`, the number of calls that are needed.

The text is all that verl's `tool_agent` loop has put together, what the tools told among it, and a
policy can write that itself. What became of its calls is therefore read from verl's own record,
`extra_info['tool_rewards']`: a number for each call that a tool was given.
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

# What a tool returns beside its text. verl itself gives 0 to a call that raises, names no tool or
# has no valid arguments (verl/experimental/agent_loop/tool_agent_loop.py, `_call_tool`).
EXECUTED, CUT, RAISED, TIMED_OUT = 1.0, 0.5, 0.0, -1.0
CALL, END_CALL = "<tool_call>", "</tool_call>"
TOLD, END_TOLD = "<tool_response>", "</tool_response>"
# What a policy is told of a call that failed, by `guarded` and by verl; or nothing fitted any more.
_FAILURE = re.compile(
    r"Error: |Error executing tool|Unknown function|Invalid JSON in arguments|</tool_call>\Z"
)
# verl gives 0 to a text alone, as to a call that raised.
_UNGUARDED = (
    "a tool returned a text alone, so nobody knows whether its call ran. It counts as failed "
    "beside others; with none, executed and economy are not scored. Register it as "
    f"function_tool(guarded(tool)), or return (text, {EXECUTED}) from it"
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
    """The four rewards of one session, in the form in which verl calls a reward function.

    Args:
      data_source: ignored, as are `kwargs`.
      solution_str: the session from the assistant's first turn on.
      ground_truth: the number asked for, as in `gsm8k`.
      extra_info: the row's, with the number of `calls` that it takes, and verl's `tool_rewards`.

    Returns:
      correctness, 1 when the last answer is the number, by the strict rules of `gsm8k`; executed,
      the share of the calls that ran to their end, 0 when none ran; economy, the calls it takes by
      those that ran, 1 at most, and 0 for fewer, unless the answer is right without the others;
      format, 1 when a tool was given each call, and one answer stands at the end; score, their
      sum; calls, their number; parse_error, a `ParseError`: of the answer, but `TIMEOUT` where a
      call timed out, `OUTPUT` where a tool's words were cut, `NO_OUTCOME` where one that
      is not `guarded` returned a text alone, so that nobody knows whether it ran; where that is
      so of all calls, executed and economy are None.

    >>> compute_score("", "<answer>42</answer>", "42", {"calls": 2})["score"]  # no tool has run
    2.0
    """
    info = extra_info or {}
    outcomes = [float(outcome) for outcome in info.get("tool_rewards") or ()]
    text = assistant_text(solution_str)
    # More than one call in a turn, and what is no JSON, verl leaves out.
    calls = max(solution_str.count(CALL), len(outcomes))
    ran = sum(each > 0 for each in outcomes)
    # Without what the tools told, where the chat template puts that into tags: it may itself hold
    # the end tag.
    words = "".join(piece.rpartition(END_TOLD)[2] for piece in text.split(TOLD))
    answer = gsm8k.compute_score(data_source, words, ground_truth)
    needed = info.get("calls", 0)
    error = answer["parse_error"]
    if not isinstance(needed, int) or needed < 1:
        fault = ValueError(f"extra_info['calls']: expected 1 call or more, found {needed!r}")
        warn_of_ground_truth("tool_turns", fault)
        error = ParseError.GROUND_TRUTH
    rewards: dict[str, float | None] = dict.fromkeys(_NAMES, 0.0)
    if error != ParseError.GROUND_TRUTH:
        rewards["correctness"] = answer["correctness"]
        rewards["format"] = float(_has_form(text, words, len(outcomes)))
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
    """The same four rewards, with `executed` by turn: its sum is that of `compute_score`.

    A turn whose call ran to its end has its share of all calls, 1 / calls; any other turn has 0.

    Args:
      as `compute_score`; extra_info also holds verl's `num_turns`, those of the assistant and what
        was told to it.

    Raises:
      ValueError: a turn made several calls, which verl's record does not tell apart
        (`actor_rollout_ref.rollout.multi_turn.max_parallel_calls`).

    >>> info = {"calls": 2, "tool_rewards": [0.0, 1.0], "num_turns": 6}
    >>> compute_score_by_turn("", "<answer>42</answer>", "42", info)["executed"]
    [0.0, 0.5, 0.0]
    """
    scored: dict[str, Any] = compute_score(data_source, solution_str, ground_truth, extra_info)
    info = extra_info or {}
    ran = [float(outcome) > 0 for outcome in info.get("tool_rewards") or ()]
    # Each turn of the assistant's but the last is followed by what it is told; verl counts the
    # question, too.
    turns = (info.get("num_turns") or 2 * (len(ran) + 1)) // 2
    if len(ran) > turns:
        raise ValueError(
            f"extra_info['tool_rewards']: expected at most one call in each of {turns} turns, "
            f"found {len(ran)}. Set max_parallel_calls=1."
        )
    if scored["executed"] is not None:
        # None is paid where the row is at fault.
        share = scored["executed"] / max(sum(ran), 1)
        shares = [share * each for each in ran]
        scored["executed"] = shares + [0.0] * (turns - len(ran))
    return scored


def _has_form(text: str, words: str, given: int) -> bool:
    counts = [words.count(tag) for tag in (CALL, END_CALL, OPEN, CLOSE)]
    # Some chat templates put what a tool tells into tags, others into a separate turn.
    told = text.count(TOLD) in (0, given)
    return counts == [given, given, 1, 1] and told and text.endswith(CLOSE)
