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
import re
from collections import defaultdict
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

from gdpo_verl.config.components import Component, declares
from gdpo_verl.rewards.deadline import ask
from gdpo_verl.rewards.instruction_checkers import (
    import_package,
    is_followed,
    plain_text,
    registry,
    verdicts,
)
from gdpo_verl.rewards.parse_error import ParseError, warn_of_ground_truth, with_score
from gdpo_verl.rewards.thought import assistant_text, behind_thought

__all__ = ["KINDS", "compute_score", "is_followed", "parse_ground_truth", "registry"]

DEADLINE = 5.0  # seconds for all constraints of one text; common ones take milliseconds
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
# Cosines of a word to the topic: from `NEAR` on it is another way of naming it; below `UNRELATED`
# are most words of a sentence, and hardly any of a list of related ones.
NEAR, UNRELATED = 0.3, 0.2
# Different unrelated words that a text has at least, and their share of those that the topic lacks.
OWN_WORDS, OWN_SHARE = 10, 0.5
# What relevance may lose when the words that name the topic are taken out.
MOST_LOST = 0.6
# A word names one of the topic's if it is spelt this much like it or has its first five letters.
# How often a text names one of them at most: the number, or that share of its words.
ALIKE, MOST_NAMED, NAMED_SHARE = 0.75, 2, 0.08
# The share of its words that are different, and the pieces that a word has on average in the
# vocabulary of the embeddings: English has 1.0 to 1.4, words that are made up have 1.6 to 4.5.
DIFFERENT_SHARE, MOST_PIECES = 0.3, 1.5
# The beginning that is looked at, so that a long text takes no longer: words and characters.
_MOST_DIFFERENT, _MOST_EMBEDDED = 1000, 10_000


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
        rewards["relevance"] = _relevance(wanted["topic"], text)
        rewards["own_words"] = float(_is_own(text, wanted["topic"]))
    return with_score(rewards, error or late) | {"unchecked": followed.count(None)}


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
    constraints = wanted["instruction_id_list"], wanted["kwargs"]
    found, error = ask("gdpo_verl.rewards.instruction_checkers", (*constraints, text), DEADLINE)
    if error:
        # Which of them can be judged is the same for every text.
        judged = verdicts((*constraints, "A text."))
        found = [None if verdict is None else False for verdict in judged]
    return found, error


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

    The words of the topic, and all that lie near it or are spelt like them, are taken out. What
    remains has to be much, of words that are not all about the topic, and to carry the relevance.
    """
    words = _words(text[:_MOST_EMBEDDED])
    different = list(dict.fromkeys(words))[:_MOST_DIFFERENT]
    of_topic = list(dict.fromkeys(_words(topic)))[:_MOST_DIFFERENT]
    if not different or not of_topic:
        return False
    pieces = _embeddings().tokenizer.encode(" ".join(different), add_special_tokens=False).ids
    vectors = _embeddings().embed([topic, *of_topic, *different], norm=True)
    cosines = (vectors[1:] @ vectors[0]).tolist()
    closeness = dict(zip([*of_topic, *different], cosines, strict=True))
    taken = {word for word, cosine in closeness.items() if cosine >= NEAR}
    most = max(MOST_NAMED, NAMED_SHARE * len(words))
    # Not those of the topic that lie far from it: a prompt that is the topic has "is".
    for name in taken.intersection(of_topic):
        naming = _spelt_like(name, different)
        if sum(word in naming for word in words) > most:
            return False
        taken |= naming
    lacking = [word for word in different if word not in of_topic]
    own = [word for word in lacking if word not in taken]
    unrelated = sum(closeness[word] < UNRELATED for word in own)
    return (
        unrelated >= max(OWN_WORDS, OWN_SHARE * len(lacking))
        and len(set(words)) >= DIFFERENT_SHARE * len(words)
        and len(pieces) <= MOST_PIECES * len(different)
        and _relevance(topic, text) - _relevance(topic, " ".join(own)) <= MOST_LOST
    )


def _spelt_like(name: str, words: list[str]) -> set[str]:
    stem = name[:5].rstrip("s") or name
    alike = difflib.get_close_matches(name, words, n=len(words), cutoff=ALIKE)
    return {*alike, *(word for word in words if word.startswith(stem))}


def _words(text: str) -> list[str]:
    # In pieces: the embeddings take memory by the longest.
    return re.findall(r"\w{1,30}", text.lower())
