"""The form of a formula: spelt so that math-verify reads it, and evaluated or still to be.

Math-verify evaluates what it compares, so a copy of the question is right by value. Here a
formula is looked at as text: what an answer has to be beside equal.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_REPEATING = re.compile(
    r"(\d{0,20})\.(\d{0,20})\\(?:overline|bar|dot)\s*(?:\{\s*)?(\d{1,20})\s*\}?"
)
_THOUSANDS = re.compile(r"(?<=\d)(?:,\\!\s*|\\,|\{,\})(?=\d{3}(?!\d))")
_BASE = re.compile(r"\d\s*_\s*(?:\{\s*)?(\d+)")

_LAYOUT = re.compile(
    r"\\(?:left|right|big|Big|bigg|Bigg|displaystyle|quad|qquad)(?![A-Za-z])"
    r"|(?<!\\)\\[,;:! ]|\{,\}|[\s$~]|\\\$|\^\s*(?:\{\s*\\circ\s*\}|\\circ)|\\degree"
)
_WORDS = re.compile(r"\\(?:text|textbf|textit|textrm|mbox|mathrm|mathbf)\s*\{([^{}]*)\}")
_UNIT = re.compile(_WORDS.pattern + r"(?!\s*[({])(?:\s*\^\s*(?:\d|\{\d\}))?")
_BRACKETS = re.compile(r"\\(begin|end)\{[a-z]*matrix\}")
_PRODUCT = re.compile(r"[\d)\]}](?=[(\[]|\\\{)")
_PIECES = re.compile(r"\\\\|\\cup|\\[{}]|[()\[\],;&]|(?<![A-Za-z])(?:and|or)(?![A-Za-z])")

_INTEGER = r"\d[\d,]{0,99}"
_FRACTION = (
    rf"(?:\\[dtc]?frac(?:\{{[+-]?{_INTEGER}\}}|\d)(?:\{{{_INTEGER}\}}|\d)"
    rf"|{_INTEGER}[/:]{_INTEGER})"
)
_POWER_OF_TEN = r"10\^(?:\{[+-]?\d+\}|\d)"
_NUMBER = re.compile(
    r".*(?:=|\\in)|(?:.*(?:=|\\approx|\\in(?![a-z])))?(?:[+-]|\\pm)?"
    rf"(?:(?:{_INTEGER}(?:\.\d*)?|\.\d+)(?:(?:\\times|\\cdot){_POWER_OF_TEN})?"
    rf"|(?:{_INTEGER})?{_FRACTION}|{_POWER_OF_TEN}|\\infty|\\emptyset)"
    r"(?:_(?:\{\d+\}|\d+))?(?:\\?%)?[A-Za-z.]*"
)
_TO_EVALUATE = re.compile(
    r"\\(?:[io]*int|sum|prod|lim|det|gcd|lcm|d?binom|choose|max|min|[lr]floor|[lr]ceil|p?mod|bmod)"
    r"(?![A-Za-z])|\\frac\{(?:d|\\partial)|\\operatorname|!|'"
)
_OPERATION = re.compile(r"[-+*/:^!'|=<>]|\\(?!infty|pi|emptyset)[a-z]+")
_SIMPLE_FRACTION = re.compile(r"(?<!\d)\\frac(?:(\d)|\{(-?\d+)\})(?:(\d)|\{(\d+)\})")
_MATH_MODE = re.compile(r"\$+|\\[()\[\]]")


def tidied(latex: str) -> str:
    """The formula in the spelling that math-verify reads; the same for most.

    Without the point, comma or percent sign at its end and the spaces between thousands,
    repeating decimals as fractions, and one name for the empty set.

    >>> tidied(r"42."), tidied(r"50\\%"), tidied(r"-0.1\\overline{6}")
    ('42', '50', '-\\\\frac{15}{90}')
    """
    latex = latex.strip()
    if latex.endswith((".", ",")):
        latex = latex[:-1].removesuffix("\\").rstrip()
    if latex.endswith("%"):  # math-verify takes 9\% for 9 where it reads it, but fails in a box
        latex = latex[:-1].removesuffix("\\").rstrip()
    latex = _REPEATING.sub(_as_fraction, _THOUSANDS.sub("", latex))
    return re.sub(r"\\varnothing(?![A-Za-z])", r"\\emptyset", latex)


def other_base(wanted: str, answer: str) -> bool:
    """Find two formulas in different bases: math-verify reads no subscript of a number.

    >>> other_base("4210_5", "4210_{6}"), other_base("4210_5", "4210")
    (True, False)
    """
    bases = _BASE.findall(wanted), _BASE.findall(answer)
    return all(bases) and bases[0] != bases[1]


def is_evaluated(wanted: str, answer: str, question: str = "") -> bool:
    """Tell an answer that equals the ground truth from a formula that gives it.

    It is where it is written as the ground truth, and is not where it is a formula of the
    question. Else, where the ground truth consists of plain numbers, it must, too; elsewhere
    it must hold no integral, sum or the like that the ground truth does not hold.

    Args:
      wanted: the ground truth, LaTeX.
      answer: what stands in the box.
      question: the problem, LaTeX and words; empty when it is not known.

    >>> is_evaluated("5", r"\\int_0^5 dx"), is_evaluated("5", r"x = 5 \\text{ cm}")
    (False, True)
    >>> is_evaluated("(x+2)(x-2)", "x^2-4", "Factor $x^2 - 4$.")
    False
    """
    truth, formula = _plain_text(wanted), _plain_text(answer)
    if formula == truth:
        return True
    if _repeats(formula, question):
        return False
    result = formula.rpartition("=")[2]
    if result == truth.rpartition("=")[2]:
        return True
    if _repeats(result, question):
        return False
    if _is_numbers(tidied(wanted)):
        return _is_numbers(tidied(answer))
    return set(_TO_EVALUATE.findall(formula)) <= set(_TO_EVALUATE.findall(truth))


def _as_fraction(match: re.Match[str]) -> str:
    whole, fixed, period = match.groups()
    nines, zeros = 10 ** len(period) - 1, 10 ** len(fixed)
    top = int(whole + fixed + period) - int(whole + fixed or "0")
    return rf"\frac{{{top}}}{{{nines * zeros}}}"


def _plain_text(latex: str) -> str:
    """The formula without layout and units of angle, for comparison as text."""
    latex = _LAYOUT.sub("", _WORDS.sub(r"\1", latex).replace("dfrac", "frac"))
    latex = re.sub(r"\{(\w)\}", r"\1", latex.replace("tfrac", "frac")).lower()
    return _SIMPLE_FRACTION.sub(lambda m: "/".join(filter(None, m.groups())), latex)


def _is_numbers(latex: str) -> bool:
    """Recognise a formula of numbers, with units, brackets and commas, and no more."""
    latex = _BRACKETS.sub(lambda m: "(" if m.group(1) == "begin" else ")", latex)
    latex = _LAYOUT.sub("", _UNIT.sub("", latex))
    pieces: Iterable[str] = filter(None, _PIECES.split(latex))
    return not _PRODUCT.search(latex) and all(map(_NUMBER.fullmatch, pieces))


def _repeats(formula: str, question: str) -> bool:
    """Look for an operation in plain text in the question's formulas."""
    if not _OPERATION.search(formula.lstrip("+-")):
        return False
    copy = re.compile(rf"(?<!\w){re.escape(formula)}(?!\w)")
    return any(copy.search(_plain_text(part)) for part in _MATH_MODE.split(question))
