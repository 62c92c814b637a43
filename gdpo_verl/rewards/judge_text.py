"""Read a judge's reply: the word of the scale that it gives.

Three layouts give one: the JSON object `{"rating": 4}`; one word of the scale and nothing else; a
last line `Rating: 4`. Any other reply gives none: what a free text means cannot be told by rules.
Reading any text takes linear time.
"""

from __future__ import annotations

import json
import re
import unicodedata

from gdpo_verl.rewards.thought import assistant_text, behind_thought

RATING = "rating"
_AROUND = " \t\r\n*`"
_PAIRS = ("<>", "[]", "()", '""', "''", "__")
_DECIMAL_COMMA = re.compile(r"(-?\d{1,9}),(\d\d?)")


def spelled(word: str) -> str:
    """A word of a scale or a reply as both are compared: undressed, in lower case, and 4.0 as 4.

    >>> spelled(" **Yes**."), spelled("[4.0]"), spelled("\u22121")
    ('yes', '4', '-1')
    """
    word = unicodedata.normalize("NFKC", word).casefold().replace("\u2212", "-")
    for _ in range(4):
        word = word.strip(_AROUND).removesuffix(".")
        if word[:1] + word[1:][-1:] in _PAIRS:
            word = word[1:-1]
    word = _DECIMAL_COMMA.sub(r"\1.\2", word) if _DECIMAL_COMMA.fullmatch(word) else word
    try:
        return f"{float(word):.12g}"
    except ValueError:
        return word


def named_word(reply: str, scale: list[str], *, cut: bool) -> str | None:
    """The word of the scale that a reply gives; None for none.

    Args:
      reply: the judge's text; a thought in it does not count.
      scale: the `spelled` words, the best last.
      cut: a limit ended the reply, so that its last line may lack its end.

    >>> named_word("It is well explained.\\nRating: 3", ["1", "2", "3"], cut=False)
    '3'
    >>> named_word("I would say 3.", ["1", "2", "3"], cut=False)
    """
    text = behind_thought(assistant_text(reply)) or ""
    lines = [line for line in text.splitlines() if line.strip() not in ("", "```", "```json")]
    rating = _rating_of_object("\n".join(lines))
    if rating is None and lines:
        name, colon, value = lines[-1].replace("\uff1a", ":").partition(":")
        if colon and name.strip(" *_").casefold() == RATING and not cut:
            rating = value
        elif len(lines) == 1:
            rating = lines[0]
    word = spelled(rating or "")
    number, slash, most = word.partition("/")
    if slash and number[:1].isdigit() and spelled(most) == scale[-1]:  # 4/5
        word = spelled(number)
    return word if word in scale else None


def _rating_of_object(text: str) -> str | None:
    """The rating of the JSON object that was asked for; None for any other text."""
    try:
        items = json.loads(text, object_pairs_hook=tuple)  # not a dict: a key may be there twice
    except (ValueError, RecursionError):
        return None
    if not isinstance(items, tuple) or len(items) != 1:
        return None
    key, value = items[0]
    return str(value) if key == RATING and isinstance(value, (str, int, float)) else None
