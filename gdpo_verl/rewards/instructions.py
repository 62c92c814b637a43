"""Rewards for instructions: one for each kind of constraint, a learned one, and its guard.

Use them where a text has to keep to what was asked for.
Assumes: the ground truth lists the constraints by IFEval's names; English.

A prompt asks for a text about a topic under a few constraints of IFEval
(https://arxiv.org/abs/2311.07911), whose published checkers judge them (package if-verifiable). A
component is a kind of constraint, *not scored* where the prompt has none of that kind. `relevance`
is learned: how near the text is to the topic in the static embeddings of WordLlama. It can be
pleased by repeating the topic, which `own_words` tells.
"""

from __future__ import annotations

import importlib
import json
import re
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path
from typing import Any

from gdpo_verl.config.components import Component, declares
from gdpo_verl.rewards.parse_error import ParseError, warn_of_ground_truth
from gdpo_verl.rewards.thought import assistant_text, behind_thought

REQUIREMENTS = ("if-verifiable==0.1.2", "wordllama==0.4.0.post1")
INSTALL = f"pip install {' '.join(REQUIREMENTS)}"
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
# In a text of one's own, different words that the topic lacks; and how often it may name one of
# the topic's: the number, or that share of its words, whichever is more.
OWN_WORDS, TOPIC_NAMED, TOPIC_SHARE = 10, 2, 0.05
_FUNCTION_WORDS = {"a", "an", "and", "for", "in", "of", "on", "the", "to", "with"}

# On a run of empty lines some of the checkers' expressions take quadratic time.
_EMPTY_LINES = re.compile(r"\n\s+\n")


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
      relevance, the cosine to the topic, at least 0; own_words, 1 for a text with `OWN_WORDS`
      different words that the topic lacks and without a word of the topic again and again; score,
      the sum of these; unchecked, the constraints that no checker knows or that lacks its data;
      parse_error. An empty text gets 0 for all.
    """
    found: dict[str, float | None] = dict.fromkeys([*KINDS.values(), "unchecked"])
    error, verdicts, unchecked = ParseError.NONE, defaultdict(list), 0
    relevance = own_words = 0.0
    text = behind_thought(assistant_text(solution_str))
    if text is None:
        text, error = "", ParseError.UNCLOSED
    text = _EMPTY_LINES.sub("\n\n", text.encode(errors="replace").decode().strip())
    try:
        wanted = parse_ground_truth(ground_truth)
    except ValueError as fault:
        warn_of_ground_truth("instructions", fault)
        error = ParseError.GROUND_TRUTH
    else:
        for name, options in zip(wanted["instruction_id_list"], wanted["kwargs"], strict=True):
            verdict = is_followed(name, options, text)
            if verdict is None:
                unchecked += 1
            else:
                verdicts[KINDS[name.partition(":")[0]]].append(verdict)
        if text:
            topic = wanted["topic"]
            relevance = min(1.0, max(0.0, float(_embeddings().similarity(topic, text))))
            own_words = float(_is_own(_words(text), {*_words(topic)}))
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


def is_followed(name: str, options: dict[str, Any], text: str) -> bool | None:
    """The published checker's verdict; None where none knows the constraint or can judge it.

    Args:
      name: the id of IFEval's instruction, as in ``punctuation:no_comma``.
      options: its arguments; None stands for one that it does not have, as in IFEval's rows.
    """
    checkers = registry()
    if name not in checkers:
        return None
    checker = checkers[name](name)
    given = {key: value for key, value in options.items() if value is not None}
    if set(given) != set(checker.get_instruction_args_keys()):  # it would draw what is missing
        return None
    try:
        checker.build_description(**given)
        # Nothing is no text without commas; whether it can be judged is the same for any text.
        return bool(checker.check_following(text or "Nothing.")) and bool(text)
    except RecursionError:  # brackets without an end, where JSON is asked for
        return False
    except (TypeError, ValueError, re.error, LookupError):  # bad arguments, or no data of NLTK's
        return None


@cache
def registry() -> dict[str, Any]:
    """IFEval's checkers by the id of their instruction."""
    # It draws; the same text is to get the same verdict.
    _import("langdetect").DetectorFactory.seed = 0
    return dict(_import("if_verifiable.ifeval.instructions_registry").INSTRUCTION_DICT)


@cache
def _embeddings() -> Any:
    wordllama = _import("wordllama")
    # Its own folder, where its wheel has the tokenizer: elsewhere it would look on the hub.
    folder = Path(wordllama.__file__).parent
    return wordllama.WordLlama.load(cache_dir=folder, disable_download=True)


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"instructions: expected the packages {' and '.join(REQUIREMENTS)} with what they "
            f"need, found no {error.name}. Install them with: {INSTALL}"
        ) from error


def _words(text: str) -> Counter[str]:
    return Counter(re.findall(r"\w+", text.lower()))


def _is_own(words: Counter[str], topic: set[str]) -> bool:
    most = max(TOPIC_NAMED, TOPIC_SHARE * words.total())
    repeated = any(words[word] > most for word in topic - _FUNCTION_WORDS)
    return len(words.keys() - topic) >= OWN_WORDS and not repeated
