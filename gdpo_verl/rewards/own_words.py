"""A learned reward for the relevance of a text to its topic, and a guard of this reward.

Use them where a text must be about a topic, and naming the topic must not be enough.
Assumes: the text is English, unless the prompt asks for another language.

`relevance` is the cosine similarity of topic and text in the static embeddings of WordLlama. A text
that only repeats the topic has the highest relevance. Therefore `has_own_words` checks that a text
says something in addition to the words that name the topic.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

from gdpo_verl.rewards.instruction_checkers import import_package

# A word whose cosine similarity to the topic is above this number counts as a name of the topic.
NEAR = 0.3
# The largest average number of tokens of a word. The tokenizer of the embeddings splits an English
# word into 1 to 1.6 tokens on average, and a made-up word into 2.5 to 4.
MOST_PIECES = 2.0
# The largest relevance of the own words alone. In sentences it is at most 0.4, and in a list of
# related words it is larger.
MOST_RELATED = 0.5
# The smallest number of letters of an own word.
FEWEST_LETTERS = 3
# The smallest number of different own words in a text, and their smallest share of all words.
OWN_WORDS, OWN_SHARE = 4, 1 / 6
# The smallest share of function words. Sentences have more of them, and lists of words have fewer.
FUNCTION_SHARE = 1 / 8
# A text may use one name of the topic this often, or in this share of its words.
MOST_NAMED, NAMED_SHARE = 2, 1 / 12
# Only this many characters of a text are read, so that the time for a long text is limited.
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
# Words that occur in IFEval's descriptions of constraints, and in the prompts of the recipe.
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
    """Return the cosine similarity of a topic and the beginning of a text, at least 0."""
    cosine = _embeddings().similarity(topic, text[:MOST_CHARACTERS])
    return min(1.0, max(0.0, float(cosine)))


def has_own_words(topic: str, text: str, *, english: bool = True) -> bool:
    """Return whether a text says something in addition to the words of its topic.

    A word is an *own word* if it is not a name of the topic, not a word of a request, and not a
    function word. A text must meet all of these rules:

    - It has enough own words and enough function words.
    - It does not repeat a name of the topic too often.
    - Its own words are known to the embeddings (they are not made up).
    - Its own words are not a list of words that are related to the topic.

    Args:
      topic: some words, or the complete prompt.
      text: the text, of which only the beginning is read.
      english: False if the prompt asks for another language. Its function words are not known, so
        they are not required.
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
    own_words = [word for word in different if word not in others and len(word) >= FEWEST_LETTERS]
    if len(own_words) < max(OWN_WORDS, OWN_SHARE * length):
        return False
    own_text = " ".join(own_words)
    pieces = _embeddings().tokenizer.encode(own_text, add_special_tokens=False).ids
    if len(pieces) > MOST_PIECES * len(own_words) or relevance(topic, own_text) > MOST_RELATED:
        return False
    # Function words within the topic, as in "the sea", do not count, because they do not show that
    # the text has sentences.
    rest = _words(text.replace(topic, " "))
    functional = [word for word in rest if word in function_words]
    return not english or len(functional) >= FUNCTION_SHARE * length


@cache
def _embeddings() -> Any:
    wordllama = import_package("wordllama")
    # The wheel has the tokenizer in the package's folder. With another folder, WordLlama would
    # download the tokenizer from the hub.
    folder = Path(wordllama.__file__).parent
    return wordllama.WordLlama.load(cache_dir=folder, disable_download=True)


def _words(text: str) -> list[str]:
    """Return the words of two letters or more. Longer words than 30 letters are cut into parts."""
    # The memory of the embeddings is proportional to the length of the longest word.
    return re.findall(r"[^\W\d_]{2,30}", text)
