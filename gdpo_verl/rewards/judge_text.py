"""Find the rating in the reply of a judge, which is one word of a scale.

A reply has a rating in one of three layouts: the JSON object `{"rating": 4}`, a word of the scale
and nothing else, or the last line `Rating: 4`. Any other reply has no rating, because rules cannot
decide what a free text means. Reading any text takes linear time.
"""

from __future__ import annotations

import json
import re
import unicodedata

from gdpo_verl.rewards.thought import assistant_text, behind_thought

RATING = "rating"
_FENCE = " \t\r\n`"
_AROUND = _FENCE + "*_\"'[]()"
_DECIMAL_COMMA = re.compile(r"\A(-?\d{1,9}),(\d\d?)\Z")


def spelled(word: str) -> str:
    """Return a word in the spelling in which the words of a scale and of a reply are compared.

    Marks around the word are removed, letters become lower case, and 4.0 becomes 4.

    >>> spelled(" **Yes**."), spelled("[4.0]"), spelled("\u22121")
    ('yes', '4', '-1')
    """
    word = unicodedata.normalize("NFKC", word).casefold().replace("\u2212", "-")
    word = word.strip(_AROUND).removesuffix(".").strip(_AROUND)
    if word.startswith("<") and word.endswith(">"):  # without the second mark, <4 means less than 4
        word = word[1:-1]
    word = _DECIMAL_COMMA.sub(r"\1.\2", word)
    try:
        return f"{float(word):.12g}"
    except ValueError:
        return word


def named_word(reply: str, scale: list[str], *, cut: bool) -> str | None:
    """Return the rating in a reply, as a word of the scale; None if it has no rating.

    Args:
      reply: the judge's text. A thought in it does not count.
      scale: the words of the scale after `spelled`, with the best one last.
      cut: whether a limit of tokens ended the reply, so that its last line may be incomplete.

    >>> named_word("It is well explained.\\nRating: 3", ["1", "2", "3"], cut=False)
    '3'
    >>> named_word("I would say 3.", ["1", "2", "3"], cut=False)
    """
    text = (behind_thought(assistant_text(reply)) or "").strip(_FENCE)
    name, _, value = text.rpartition("\n")[2].replace("\uff1a", ":").partition(":")
    rating = _rating_of_object(text)
    if rating is None:
        is_last_line = name.strip(" *_").casefold() == RATING and not cut
        rating = value if is_last_line else text
    word = spelled(rating)
    number, _, most = word.partition("/")
    if number[:1].isdigit() and spelled(most) == scale[-1]:  # 4/5
        word = spelled(number)
    return word if word in scale else None


def _rating_of_object(text: str) -> str | None:
    """Return the rating in the JSON object that was asked for; None for any other text."""
    try:
        # The object is read as pairs, because a dict would hide that a key occurs twice.
        pairs = json.loads(text.removeprefix("json"), object_pairs_hook=list)
    except (ValueError, RecursionError):
        return None
    match pairs:
        case [("rating", str() | int() | float() as value)]:
            return str(value)
    return None
