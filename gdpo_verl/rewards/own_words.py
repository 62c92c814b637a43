"""A learned reward, the nearness of a text to its topic, and the guard of this reward.

Use them where a text must be about a topic, and naming the topic must not be enough.
Assumes: the text is English, unless the prompt asks for another language.

`relevance` is the cosine of topic and text in the static embeddings of WordLlama. A text that
repeats the topic has the highest relevance. `has_own_words` returns whether a text says something
in addition to the words that name the topic.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

from gdpo_verl.rewards.instruction_checkers import import_package

# A word whose cosine to the topic is above this is another name of the topic.
NEAR = 0.3
# The embeddings know an English word in 1 to 1.6 pieces on average, a made-up word in 2.5 to 4.
MOST_PIECES = 2.0
# The relevance of the own words alone is at most 0.4 in sentences, and more in a list of related
# words.
MOST_RELATED = 0.5
# Own words have at least this many letters.
FEWEST_LETTERS = 3
# The different own words that a text needs: this many, and this share of all its words.
OWN_WORDS, OWN_SHARE = 4, 1 / 6
# The share of function words that a text needs: sentences have it, lists of words do not.
FUNCTION_SHARE = 1 / 8
# How often a text may use one name: this often, or in this share of its words.
MOST_NAMED, NAMED_SHARE = 2, 1 / 12
# The beginning of a text that is read, in characters, so that a long text takes no longer.
MOST_CHARACTERS = 10_000

FUNCTION_WORDS = """
about after again all also always am an and another any are as at be because been before being
between both but by can could did do does during each else even ever every few for from had has
have he her here hers him his how if in indeed into is it its just like many may me might mine more
most much must my never no nor not now of off often on once one only or other our out over own per
quite rather really same shall she should since so some still such than that the their them then
there these they this those though through to too under until up upon us very was we well were what
when where whether which while who whom whose why will with within without would yes yet you your
"""
# The words of IFEval's descriptions of constraints, and of the recipe's own prompts.
REQUEST_WORDS = """
add address allowed angular answer appear asterisk beginning brackets bullet capital comma commas
contain content different divider double end english entire exact exactly explicitly finish follow
following format give highlight highlighted include joy json keyword keywords language least less
letter letters line lines lowercase mark markdown marks new options output paragraph paragraphs
phrase placeholder placeholders please poem point points postscript python quotation refrain
represented response responses section sections sentence sentences separated square start starting
symbols text ticks times title two uppercase use word words wrap wrapped write
"""


def relevance(topic: str, text: str) -> float:
    """Return the cosine of a topic and the beginning of a text, at least 0."""
    cosine = _embeddings().similarity(topic, text[:MOST_CHARACTERS])
    return min(1.0, max(0.0, float(cosine)))


def has_own_words(topic: str, text: str, *, english: bool = True) -> bool:
    """Return whether a text says something in addition to the words of its topic.

    Own words are neither names of the topic nor words of a request nor function words. A text needs
    enough of them and enough function words; it may not repeat one name. The own words have to be
    known, and they may not be a list of words that are related to the topic.

    Args:
      topic: some words, or the whole prompt.
      text: its beginning is read.
      english: False where another language was asked for, whose function words are not known.
    """
    topic = topic.lower()
    text = text[:MOST_CHARACTERS].lower()
    length = len(re.findall(r"\w+", text))
    counts = Counter(_words(text))
    topic_words = set(_words(topic))
    function_words = set(FUNCTION_WORDS.split())
    different = sorted(counts.keys() - function_words)
    if len(different) < OWN_WORDS:
        return False
    near = set(_embeddings().filter(topic, different, threshold=NEAR))
    most = max(MOST_NAMED, NAMED_SHARE * length)
    if any(counts[name] > most for name in near & topic_words):
        return False

    others = near | topic_words | set(REQUEST_WORDS.split())
    own = [word for word in different if word not in others and len(word) >= FEWEST_LETTERS]
    if len(own) < max(OWN_WORDS, OWN_SHARE * length):
        return False
    own_text = " ".join(own)
    pieces = _embeddings().tokenizer.encode(own_text, add_special_tokens=False).ids
    if len(pieces) > MOST_PIECES * len(own) or relevance(topic, own_text) > MOST_RELATED:
        return False
    # Function words of the topic itself, as in "the sea", are no sign of a sentence.
    rest = _words(text.replace(topic, " "))
    functional = [word for word in rest if word in function_words]
    return not english or len(functional) >= FUNCTION_SHARE * length


@cache
def _embeddings() -> Any:
    wordllama = import_package("wordllama")
    # Its own folder, where its wheel has the tokenizer: elsewhere it would look on the hub.
    folder = Path(wordllama.__file__).parent
    return wordllama.WordLlama.load(cache_dir=folder, disable_download=True)


def _words(text: str) -> list[str]:
    # Of two letters or more. Long ones are cut, for the embeddings take memory by the longest.
    return re.findall(r"[^\W\d_]{2,30}", text)
