"""Rewards for instructions: one for each kind of constraint, a learned reward, and its guard.

Use them where a text has to follow instructions.
Assumes: the ground truth lists the constraints by IFEval's names; English.

A prompt asks for a text about a topic with a few constraints of IFEval
(https://arxiv.org/abs/2311.07911). IFEval's published checkers (package if-verifiable) judge
whether the text follows them. Each kind of constraint is a component, which is *not scored* if the
prompt has no constraint of this kind. `relevance` is a learned reward. `own_words` is its guard: it
is 0 for texts that only repeat the topic (`rewards.own_words`).
"""

from __future__ import annotations

import json
from collections import defaultdict
from statistics import fmean
from typing import Any

from gdpo_verl.config.components import Component, declares
from gdpo_verl.rewards.deadline import ask
from gdpo_verl.rewards.instruction_checkers import (
    is_followed,
    plain_text,
    registry,
    verdicts,
)
from gdpo_verl.rewards.own_words import has_own_words, relevance
from gdpo_verl.rewards.parse_error import ParseError, warn_of_ground_truth, with_score
from gdpo_verl.rewards.thought import assistant_text, behind_thought

__all__ = ["KINDS", "compute_score", "is_followed", "parse_ground_truth", "registry"]

DEADLINE = 5.0  # seconds for all constraints of one text; most texts take milliseconds
# The first part of an instruction's id, and the name of its component.
KINDS = {
    "length_constraints": "length",
    "change_case": "case",
    "punctuation": "punctuation",
    "keywords": "keywords",
    "startend": "start_end",
    "detectable_format": "format",
    "detectable_content": "content",
    "combination": "combination",
    "language": "language",
}


@declares(
    *(Component(kind, 0, 1, optional=True) for kind in KINDS.values()),
    Component("relevance", 0, 1),
    Component("own_words", 0, 1),
)
def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: dict[str, Any] | None = None,
    **kwargs: Any,
) -> dict[str, float | None]:
    """Compute the rewards of a text from its instructions, with the arguments that verl passes.

    Args:
      data_source: ignored, as are `extra_info` and `kwargs`.
      solution_str: the assistant's turn. A thought in it is not judged.
      ground_truth: JSON with topic, instruction_id_list and kwargs. The last two are as in IFEval.

    Returns:
      A dict with these keys. An empty text gets 0 for all rewards.

      - each kind of constraint: the share of its constraints that are followed; None if there are
        none.
      - relevance: the cosine similarity to the topic, at least 0.
      - own_words: 1 if the text says something in addition to the words that name the topic
        (`has_own_words`), else 0.
      - score: the sum of these rewards.
      - unchecked: the number of constraints that could not be judged, because no checker knows
        them, or because a checker lacks its data.
      - parse_error: a `ParseError`.
    """
    rewards: dict[str, float | None] = dict.fromkeys(KINDS.values())
    rewards |= {"relevance": 0.0, "own_words": 0.0}
    text = behind_thought(assistant_text(solution_str))
    error = ParseError.UNCLOSED if text is None else ParseError.NONE
    text = plain_text(text or "")
    try:
        wanted = parse_ground_truth(ground_truth)
    except ValueError as fault:
        warn_of_ground_truth("instructions", fault)
        return with_score(rewards, ParseError.GROUND_TRUTH) | {"unchecked": 0}
    followed, late = _followed(wanted, text)
    by_kind = defaultdict(list)
    for name, verdict in zip(wanted["instruction_id_list"], followed, strict=True):
        if verdict is not None:
            by_kind[KINDS[name.partition(":")[0]]].append(verdict)
    rewards |= {kind: fmean(verdicts) for kind, verdicts in by_kind.items()}
    if text:
        english = "language:response_language" not in wanted["instruction_id_list"]
        says_more = has_own_words(wanted["topic"], text, english=english)
        rewards |= {"relevance": relevance(wanted["topic"], text), "own_words": float(says_more)}
    return with_score(rewards, error or late) | {"unchecked": followed.count(None)}


@declares(Component("relevance", 0, 1), by_criterion=("rubric",))
def compute_rubric(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: dict[str, Any] | None = None,
    **kwargs: Any,
) -> dict[str, Any]:
    """Compute the rewards of `compute_score` as a rubric, with different criteria for each prompt.

    Returns:
      A dict with rubric, which maps each kind of constraint of the prompt, and `own_words`, to its
      reward. The keys relevance, unchecked and parse_error are as in `compute_score`.
    """
    rewards = compute_score(data_source, solution_str, ground_truth, extra_info)
    del rewards["score"]
    rubric = {name: rewards.pop(name) for name in (*KINDS.values(), "own_words")}
    criteria = {name: value for name, value in rubric.items() if value is not None}
    return {"rubric": criteria, **rewards}


def parse_ground_truth(ground_truth: str) -> dict[str, Any]:
    """Read the topic and the constraints of a row.

    Raises ValueError if the ground truth is not valid.
    """
    try:
        wanted = json.loads(ground_truth)
        constraints = zip(wanted["instruction_id_list"], wanted["kwargs"], strict=True)
        fits = isinstance(wanted["topic"], str) and all(
            isinstance(name, str) and isinstance(options, dict) for name, options in constraints
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        fits = False
    if not fits:
        raise ValueError(
            "ground_truth: expected JSON with 'topic', 'instruction_id_list' and as many 'kwargs', "
            f"found {ground_truth!a:.200}"
        )
    return dict(wanted)


def _followed(wanted: dict[str, Any], text: str) -> tuple[list[bool | None], ParseError]:
    """Return whether each constraint of a row is followed, and a `ParseError`.

    A constraint that cannot be judged is None. If there is no result in time, no constraint counts
    as followed.
    """
    registry()  # this raises an error that says how to install missing packages
    constraints = wanted["instruction_id_list"], wanted["kwargs"]
    judged, error = ask("gdpo_verl.rewards.instruction_checkers", (*constraints, text), DEADLINE)
    if error:
        # Whether a constraint can be judged does not depend on the text, so any short text shows
        # it.
        of_any_text = verdicts((*constraints, "A text."))
        judged = [None if verdict is None else False for verdict in of_any_text]
    return judged, error
