"""Rewards for instructions: one for each kind of constraint, a learned one, and its guard.

Use them where a text has to keep to what was asked for.
Assumes: the ground truth lists the constraints by IFEval's names; English.

A prompt asks for a text about a topic under a few constraints of IFEval
(https://arxiv.org/abs/2311.07911), whose published checkers judge them (package if-verifiable). A
component is a kind of constraint, *not scored* where the prompt has none of that kind. `relevance`
is learned: how near the text is to the topic in the static embeddings of WordLlama. It can be
pleased by repeating the topic, which `own_words` tells: it looks at what remains of the text
without the words that name the topic.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

from gdpo_verl.config.components import Component, declares
from gdpo_verl.rewards.deadline import DeadlinePool
from gdpo_verl.rewards.instruction_checkers import (
    import_package,
    is_followed,
    plain_text,
    registry,
)
from gdpo_verl.rewards.parse_error import ParseError, warn_of_ground_truth
from gdpo_verl.rewards.thought import assistant_text, behind_thought

__all__ = ["KINDS", "compute_score", "is_followed", "parse_ground_truth", "registry"]

DEADLINE = 5.0  # seconds for all constraints of one text; common ones take milliseconds
WORKERS = 4  # processes at most, in each process that computes rewards
# The first part of an instruction's id, and its component.
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
# A word names the topic if it is this near to it in the embeddings, or is spelt this much like one
# of its words. A text may name it so often, or in that share of its words.
NEAR, ALIKE = 0.4, 0.75
MOST_NAMED, NAMED_SHARE = 3, 0.1
# What remains has so many different words, is at least half of the text, and is so near the topic.
OWN_WORDS, OWN_SHARE, OWN_RELEVANCE = 10, 0.5, 0.14
# The beginning that is looked at, so that a long text takes no longer: words and characters.
_MOST_DIFFERENT, _MOST_EMBEDDED = 1000, 20_000


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
    """Judge a text by its instructions, in the form in which verl calls a reward function.

    Args:
      data_source: ignored, as are `extra_info` and `kwargs`.
      solution_str: the assistant's turn; a thought in it is not judged.
      ground_truth: JSON with topic, instruction_id_list and kwargs, the last two as IFEval's.

    Returns:
      for each kind the share of its constraints that are followed, None where there is none;
      relevance, the cosine to the topic, at least 0; own_words, 1 for a text that says something of
      the topic without the words that name it (`_is_own`), else 0; score, the sum of these;
      unchecked, the constraints that no checker knows or that lacks its data;
      parse_error. An empty text gets 0 for all.
    """
    found: dict[str, float | None] = dict.fromkeys([*KINDS.values(), "unchecked"])
    error, verdicts, unchecked = ParseError.NONE, defaultdict(list), 0
    relevance = own_words = 0.0
    text = behind_thought(assistant_text(solution_str))
    if text is None:
        text, error = "", ParseError.UNCLOSED
    text = plain_text(text)
    try:
        wanted = parse_ground_truth(ground_truth)
    except ValueError as fault:
        warn_of_ground_truth("instructions", fault)
        error = ParseError.GROUND_TRUTH
    else:
        followed, late = _followed(wanted, text)
        error = error or late
        for name, verdict in zip(wanted["instruction_id_list"], followed, strict=True):
            if verdict is None:
                unchecked += 1
            else:
                verdicts[KINDS[name.partition(":")[0]]].append(verdict)
        if text:
            topic = wanted["topic"]
            relevance = _relevance(topic, text)
            own_words = float(_is_own(text, topic))
    found |= {kind: sum(each) / len(each) for kind, each in verdicts.items()}
    found |= {"relevance": relevance, "own_words": own_words}
    score = sum(value for value in found.values() if value is not None)
    return {"score": score, **found, "unchecked": unchecked, "parse_error": int(error)}


def parse_ground_truth(ground_truth: str) -> dict[str, Any]:
    """The topic and the constraints of a row; raises ValueError for what is none."""
    try:
        wanted = json.loads(ground_truth)
        names, options = wanted["instruction_id_list"], wanted["kwargs"]
        fits = isinstance(wanted["topic"], str) and len(names) == len(options)
        fits = fits and all(isinstance(name, str) for name in names)
        fits = fits and all(isinstance(each, dict) for each in options)
    except (ValueError, KeyError, TypeError, RecursionError):
        fits = False
    if not fits:
        raise ValueError(
            "ground_truth: expected JSON with 'topic', 'instruction_id_list' and as many 'kwargs', "
            f"found {ground_truth!a:.200}"
        )
    return dict(wanted)


def _followed(wanted: dict[str, Any], text: str) -> tuple[list[bool | None], ParseError]:
    """The verdict on each constraint of a row; none is followed where no verdict comes in time."""
    registry()  # says how to install the packages
    asked = wanted["instruction_id_list"], wanted["kwargs"]
    try:
        return _pool().ask((*asked, text), DEADLINE), ParseError.NONE
    except TimeoutError:
        error = ParseError.DEADLINE
    except EOFError:
        error = ParseError.CRASHED
    # Which of them can be judged is the same for every text.
    judged = [is_followed(*each, "A text.") for each in zip(*asked, strict=True)]
    return [None if verdict is None else False for verdict in judged], error


@cache
def _pool() -> DeadlinePool:
    # Two at least: while one hangs until its deadline, the other judges.
    return DeadlinePool(
        "gdpo_verl.rewards.instruction_checkers", size=max(2, min(WORKERS, os.cpu_count() or 1))
    )


@cache
def _embeddings() -> Any:
    wordllama = import_package("wordllama")
    # Its own folder, where its wheel has the tokenizer: elsewhere it would look on the hub.
    folder = Path(wordllama.__file__).parent
    return wordllama.WordLlama.load(cache_dir=folder, disable_download=True)


def _relevance(topic: str, text: str) -> float:
    return min(1.0, max(0.0, float(_embeddings().similarity(topic, text[:_MOST_EMBEDDED]))))


def _is_own(text: str, topic: str) -> bool:
    """Return whether a text says something of its topic beside naming it.

    The words of the topic, and all that lie near it or are spelt like them, are taken out. The text
    may have few that lie near, and what remains has to be a text about the topic.
    """
    words = _words(text)
    different = list(dict.fromkeys(words))[:_MOST_DIFFERENT]
    of_topic = dict.fromkeys(_words(topic))
    near = _near(topic, different)
    taken = near | of_topic.keys()
    own = [word for word in words if word not in taken]
    named = sum(word in near for word in words)
    return (
        named <= max(MOST_NAMED, NAMED_SHARE * len(words))
        and len(set(own)) >= OWN_WORDS
        and len(own) >= OWN_SHARE * len(words)
        and _relevance(topic, " ".join(own)) >= OWN_RELEVANCE
    )


def _near(topic: str, words: list[str]) -> set[str]:
    """The words that name the topic."""
    if not words:
        return set()
    of_topic = _words(topic)
    vectors = _embeddings().embed([topic, *words, *of_topic], norm=True)
    cosines = vectors[1:] @ vectors[0]
    near = {word for word, at in zip([*words, *of_topic], cosines, strict=True) if at >= NEAR}
    # Not those of the topic that lie far from it: a prompt that is the topic has "is".
    for name in near.intersection(of_topic):
        near.update(difflib.get_close_matches(name, words, n=len(words), cutoff=ALIKE))
    return near


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())
