"""Read a judge's reply: the word of the scale that it names.

The rule: the last one that stands by itself between two marks of punctuation, else the last one
that ends a clause; but none that is negated, asked about, or part of the scale quoted back. A reply
that was cut off names what stands by itself before its last clause, or is all of it.

Made for English. Reading any text takes linear time.
"""

from __future__ import annotations

import re
import unicodedata

from gdpo_verl.rewards.thought import assistant_text, behind_thought

# In this order, in the lower case; VALUE is a word of the scale, END its first or last one.
_REWRITTEN = (
    ("[*`]+", ""),
    (r"</?\w+>", "\n"),
    # Digits of any script, and a comma for a point.
    (r"\d", lambda digit: str(int(digit[0]))),
    (r"(?<![\d.,])(\d+),(\d+)(?![.,]?\d)", r"\1.\2"),
    # The numbers of a list. That of the first line may be the value, if no other line has one.
    (r"(?:\n *|\A(?=[^\n]*\n+ *\d+[.)] ))\d+[.)] ", "\n"),
    # "4 out of 5" and '"max": 5', then "from 1 (bad) to 5 (good)" and "3 or 4".
    (
        r"(?:(?<=\d) ?(?:/|(?:out of|of|von|sur|de|из) )(?:the |a possible |a maximum of )? ?"
        r"|\bmax\w*\W{1,4})(?:END)(?!\w|\.\d)",
        "\n",
    ),
    (
        r"(?<![\w.])VALUE(?: ?\([^()\n]{,40}\))?(?:, ?VALUE){,20},? ?"
        r"(?:to|or|and|through|up to|out of|of|\.\.+|[-–~/]) ?(?:an? )?VALUE(?!\w|\.\d)",
        " scale ",
    ),
    # One clause a line. "It is not, in my view, good" is one.
    (r"(?<=not|n[’']t),[^,\n]{,40},", ""),
    (r"\?", " asked\n"),
    (r"[;:!()|。—→]|[-=]>|[,.](?!\d)|\s[-–]+\s|(?<!anything )\b(?=but\b)", "\n"),
    # Behind these words a value is not the one that is given.
    (
        r"(?:n[’']t\b|\b(?:is|are|was|do|does|did|ca|wo|would|could|should)nt\b|\b(?!VALUE\b)(?:not|no"
        r"|cannot|never|nor|neither|none|nothing|nobody|hardly|barely|scarcely|without|lacks?"
        r"|fail(?:s|ed)? to|refuse\w*|unable|hesitate\w*|wrong to|opposite|far from|short of"
        r"|close\w* to|anything but|than|less|instead|almost|nearly|at (?:least|most)"
        r"|(?:above|below|over|under) (?=\d)|if|unless|until|wish|whether|doubt\w*|needs?|requires?"
        r"|could|(?<!i )would|nicht|kein\w*|pas|não|не)\b).*",
        " not",
    ),
)
_LEAD = (
    r"[^\w\n]*(?:(?:but|so|no|or|an?|just|only|overall|well|maybe|probably|definitely|actually|rather"
    r"|i mean|make that|(?:it|this|that)(?:[’']s| is)|i(?:[’']d| would)? (?:say|give it|rate it"
    r"|choose|pick))[^\w\n]+)*"
)
# It ends its clause, or what goes on takes nothing back.
_NAMED = (
    r"(?<![\w.,<>≤≥⁄-])(VALUE)(?![\w%⁄+]| %|\.\d|-(?!\w))(?=\W*(?:$|(?:because|since|as|for|with"
    r"|due|overall|points?|stars?|marks?|from|it|this|the|i|than|rather|instead)\b))"
)


def spelled(word: str) -> str:
    """A word of a scale or a reply as both are compared: in lower case, and 4.0 as 4.

    >>> spelled(" Yes"), spelled("4.0")
    ('yes', '4')
    """
    try:
        return f"{float(word):.12g}"
    except ValueError:
        return word.strip().casefold()


def named_word(reply: str, scale: list[str], *, cut: bool) -> str | None:
    """The word of the scale that a reply names; None for none.

    Args:
      reply: the judge's text.
      scale: the `spelled` words, the first and the last at its ends.
      cut: a limit ended it, and not the judge.

    >>> named_word("On a scale of 1 to 3, I'd say 2, no, 3.", ["1", "2", "3"], cut=False)
    '3'
    """
    text = behind_thought(assistant_text(reply)) or ""
    text = unicodedata.normalize("NFKC", text).casefold()
    # A number between two of the scale is named, too, and none of it.
    value = rf"(?:(?:{'|'.join(scale)})(?:\.0+)?|[1-9]\d*\.\d+)"
    for pattern, replacement in _REWRITTEN:
        pattern = pattern.replace("VALUE", value).replace("END", f"{scale[0]}|{scale[-1]}")
        text = re.sub(pattern, replacement, text)
    if cut:
        text = text.strip().rpartition("\n")[0] or text
    named = _NAMED.replace("VALUE", value)
    words = re.findall(f"(?m)^{_LEAD}{named}", text)
    if not words and not cut:
        words = re.findall(f"(?m){named}", text)
    word = spelled(words[-1]) if words else ""
    return word if word in scale else None
