"""A formula's spelling: what math-verify does not read is written so that it does."""

from __future__ import annotations

import re
from itertools import accumulate

_SIGNS = str.maketrans({
    "−": "-", "–": "-", "×": r"\times ", "·": r"\cdot ", "÷": "/", "π": r"\pi ", "∞": r"\infty ",
    "≤": r"\le ", "≥": r"\ge ", "∪": r"\cup ", "°": r"^\circ ", "²": "^2", "³": "^3", "~": " ",
    "∠": r"\angle ", "½": r"\frac12", "¼": r"\frac14", "¾": r"\frac34", "⁴": "^4", "€": "", "£": "",
})  # fmt: skip
_END = r"\\?[.,]$"
# Each with what it becomes; none may take longer than linear time on an adversary's text.
_SPELLINGS = [
    (r"^\\approx(?![a-z])", ""),
    (r"\\?%", ""),  # 50% is 50
    (_END, ""),
    (r"(?<=\d)(?:,\\!\s*|\\,|\{,\}|\\?\s)(?=\d{3}(?![\d/]))", ""),  # between thousands
    (r"\\varnothing(?![A-Za-z])", r"\\emptyset"),
    (r"\\(?:text|math|bold)(?:rm|bf|it|sf|symbol)?\{\s*([+-]?\d[\d.,]{0,99})\s*\}", r"\1"),
    # A vector, or a letter in roman type that is none of a word.
    (r"\\(?:mathbf|mathit|boldsymbol)\{([A-Za-z])\}", r" \1"),
    (r"\\(?:mathrm|text)\{([deijkxyz])\}", r" \1"),
    # Numbers in words, dollars, and units without \text.
    (r"(?<=\d)(\\text\{ ?| )dozen(?![a-z])", r"\\times 12\1"),
    (r"(?<=\d)(\\text\{ ?| )thousand(?![a-z])", r"\\times 10^{3}\1"),
    (r"(?<=\d)(\\text\{ ?| )million(?![a-z])", r"\\times 10^{6}\1"),
    (r"(?<=\d)(\\text\{ ?| )billion(?![a-z])", r"\\times 10^{9}\1"),
    (r"\\\$\s{0,9}(\d(?:[\d.,]{0,99}\d)?)", r"\1\\text{dollars}"),
    (
        r"(?<=\d)(\s?(?:[cmk]m|[mk]g|m[lL]|ft|hrs?|yd|mi|lbs?|mph)|\s[a-z]{4,20}(?:\s[a-z]{2,20}){0,9})"
        r"(?=\s{0,9}(?:$|[,;^]|\s\d))",
        r"\\text{\1}",
    ),
    (r"√\s*(\d{1,99}|[a-z])", r"\\sqrt{\1}"),
    (r"√\s*(?=\{|\()", r"\\sqrt"),
    (r"(?<![\d.])(\d{1,9})(?:\s|\\[ ,;:])+(\d{1,9})/(\d{1,9})(?!\d)", r"\1\\frac{\2}{\3}"),
    # Not 2e-1, which is a number times Euler's less one.
    (r"((?<!\d)1|\.\d{1,99})[eE]([+-]?\d{1,3})(?![\w^])", r"\1\\times 10^{\2}"),
    # It would read 2(3) as 2 3/1.
    (r"(?<=[\d)])(?<![_^]\d)\s{0,9}(?=\(\s{0,9}[+-]?\d{1,99}\s{0,9}\))", r"\\cdot "),
]
# What is written for a unit; its first name stands for all.
_NAMES = """
    mm millimeter millimetre
    cm centimeter centimetre
    m meter metre
    km kilometer kilometre
    in inch inche
    ft foot feet
    yd yard
    mi mile
    mg milligram
    g gram
    kg kilogram
    oz ounce
    lb pound
    s sec second
    min minute
    h hr hour
    gal gallon
    ml milliliter millilitre
    l liter litre
    day
    week
    month
    year yr
    dollar
    cent
    degree deg
    radian rad
    am a.m
    pm p.m
    per /
    square sq ^2
    cubic cu ^3
"""
_UNITS = {name: names.split()[0] for names in _NAMES.splitlines() for name in names.split()}
# Without a number in it, which may be another answer.
_TEXT = r"\\(?:text(?:rm|bf|it)?|mbox|mathrm)\s*\{(?:[^{}\d]|\^\d)*\}(?:\s*\^\s*\{?-?\d\}?)?"
# What the words stand behind, the words, and the digit behind them.
_WORDS = re.compile(
    r"([0-9A-Za-z)}\]](?:[\s~]|\\[ ,;:!]){0,9})?"
    rf"({_TEXT}(?:(?:[\s~/-]|\\[ ,;:!]|\\cdot)*{_TEXT})*"
    r"(?:\s*\\times(?=\s*\d)(?!\s*10\^))?)(?!\s*[=<>^_*/&|+(-])(?=\s{0,20}(\d?))"
)
_WORD = re.compile(r"[a-z.]+|/|\^[23]")
_UNIT = re.compile(r"\\text\{unit [^}]*\}")
_MARK = re.compile(r"\\.|.", re.DOTALL)
_REPEATING = re.compile(
    r"(\d{0,20})\.(\d{0,20})\\(?:overline|bar|dot)\s*(?:\{\s*(\d{1,20})\s*\}|(\d))"
)
_BASE = re.compile(r"\d\s*_\s*(?:\{\s*)?(\d+)")
_LETTERS = re.compile(r"(\\angle)?([A-Z]{2,})")
_LIST = re.compile(r"\d\s*,(?:[\s~]|\\[ ,;:])+-?\d")


def tidied(latex: str) -> str:
    """The formula in the spelling that math-verify reads; the same for most.

    Without braces around it, percent signs, the point or comma at its end, and the spaces between
    thousands; repeating decimals as fractions, LaTeX for Unicode's signs, one empty set. What
    stands behind a number in words is a factor, `\\text{unit …}`, the same in any spelling.

    >>> tidied(r"50\\%."), tidied(r"-0.1\\overline{6}"), tidied(r"2\\text{ hours }3\\mathrm{~min}")
    ('50', '-\\\\frac{15}{90}', '2\\\\text{unit h}, 3\\\\text{unit min}')
    """
    latex = re.sub(_END, "", latex.translate(_SIGNS).strip()).strip()
    if latex.startswith("{") and latex.endswith("}") and "choose" not in latex:
        depths = accumulate({"{": 1, "}": -1}.get(mark, 0) for mark in _MARK.findall(latex))
        if 0 not in list(depths)[:-1]:
            latex = latex[1:-1].strip()
    for spelling, usual in _SPELLINGS:
        latex = re.sub(spelling, usual, latex)
    return _WORDS.sub(_as_unit, _REPEATING.sub(_as_fraction, latex))


def without_unit(wanted: str, answer: str) -> tuple[str, str]:
    """Both without their unit, where it is one that they share or that one leaves out.

    >>> cm, m = r"5\\text{unit cm}", r"5\\text{unit m}"
    >>> without_unit(cm, "6"), without_unit(cm, m) == (cm, m)
    (('5', '6'), True)
    """
    units = {*_UNIT.findall(wanted), *_UNIT.findall(answer)}
    if len(units) > 1:  # they are factors, and have to be the same
        return wanted, answer
    return _UNIT.sub("", wanted), _UNIT.sub("", answer)


def as_list(wanted: str, answer: str) -> str:
    """The answer as the ground truth has to read it.

    >>> as_list("5, 6", "5,125"), as_list("x+C", "x+c"), as_list("5", "5 m")
    ('5, 125', 'x+C', '5')
    """
    if _LIST.search(wanted):  # otherwise a comma is one between thousands
        answer = re.sub(r"(?<=\d),(?=\d)", ", ", answer)
    if wanted.endswith("C"):  # the constant of an integral
        answer = re.sub(r"\+\s?c$", "+C", answer)
    if not re.search("[A-Za-z]", wanted):  # where a letter can be a unit only
        answer = re.sub(r"(?<=\d)\s?[ghlms]$", "", answer)
    return answer


def differ(wanted: str, answer: str) -> bool:
    """Find what math-verify does not see: the base of a number, the order of points and letters.

    >>> differ("4210_5", "4210_{6}"), differ("CAB", "ABC"), differ(r"\\angle ABC", r"\\angle CBA")
    (True, True, False)
    """
    a, b = _points(wanted), _points(answer)
    if not a or not b:
        bases, others = _BASE.findall(wanted), _BASE.findall(answer)
        return bool(bases and others) and bases != others
    if a[1] or len(a[2]) == 2:  # an angle, a segment: read either way
        return b[2] not in (a[2], a[2][::-1])
    return b[2] != a[2]


def _points(latex: str) -> re.Match[str] | None:
    return _LETTERS.fullmatch(re.sub(r"[\s{}$]|\\text|\\[,;:! ]", "", latex))


def _as_unit(words: re.Match[str]) -> str:
    """Words behind a number as one factor: `\\text{unit cm}`; other words as they are."""
    before, text, follows = words.groups()
    plain = re.sub(r"\\[A-Za-z]+", " ", text).lower().replace("{", "").replace("mph", "mi/h")
    names = {word.strip(".").removesuffix("s") or "s" for word in _WORD.findall(plain)}
    units = {_UNITS[name] for name in names if name in _UNITS} or names - {"and", "or"}
    if not units or before is None:
        return words[0]
    unit = rf"{before}\text{{unit {' '.join(sorted(units))}}}"
    return f"{unit}, " if follows else unit  # 2 hours 30 minutes are a list


def _as_fraction(match: re.Match[str]) -> str:
    whole, fixed, *periods = match.groups()
    period = periods[0] or periods[1]
    nines, zeros = 10 ** len(period) - 1, 10 ** len(fixed)
    top = int(whole + fixed + period) - int(whole + fixed or "0")
    return rf"\frac{{{top}}}{{{nines * zeros}}}"
