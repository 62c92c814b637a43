"""Rewrite the LaTeX of a formula so that math-verify can read it.

math-verify's parser reads many usual spellings wrongly or not at all. Here the *spelling* of a
formula is its LaTeX, as opposed to its meaning.
"""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction

from gdpo_verl.rewards.math_units import read_unit

_SIGNS = str.maketrans({
    "−": "-", "–": "-", "×": r"\times ", "·": r"\cdot ", "∞": r"\infty ", "∪": r"\cup ",
    "°": r"^\circ ", "º": r"^\circ ", "˚": r"^\circ ", "∠": r"\angle ", "~": " ", "’": "'",
    "′": "'", "£": "", "≈": r"\approx ",
})  # fmt: skip
_FONT = (
    r"\\(?:text(?:rm|bf|it|sf|normal)?|math(?:rm|bf|it|sf)|mbox|emph|ensuremath|bold(?:symbol)?)"
)
_CHOICES = r"[(A-Z)]{1,3}(?:(?:,| and) ?[(A-Z)]{1,3})+"
_LETTERS = r"(?!\\pi)\\?[A-Za-z]{1,9}(?:_\{?\w{1,9}\}?)?(?:\([^()]{1,20}\))?"
_NAME = rf"(?:{_LETTERS}|{_FONT}\{{[^{{}}]{{1,40}}\}})"
_SPACES = r"(?:\\[,;:! ]|\s){0,9}"
_PRICE = r"\s{0,9}(\d(?:[\d.,]{0,99}\d)?)"
# Regular expressions, each with its replacement. All of them must take linear time, because the
# policy writes the text and may learn to exploit a slow expression.
_SPELLINGS = [
    (r"\\?[.,;]$", ""),
    (r"^\{([^{}\\]*)\}\W?$", r"\1"),
    # x \approx 2.5 is read as x = 2.5. An approximation after a value is left out, such as 1.41 in
    # \sqrt{2} \approx 1.41.
    (rf"((?:^|[,;&({{\[])\s{{0,9}}{_NAME}){_SPACES}\\approx(?![A-Za-z])", r"\1="),
    (rf"^((?:\\.|[^\\,;&])*?[^\s\\,;&=({{\[]){_SPACES}\\approx(?![A-Za-z]).*$", r"\1"),
    # Marks and words around a value.
    (
        r"\\(?:[lL]arge|huge|normalsize|therefore|Rightarrow|approx|bf|[bB]igg?[lr]?|underline"
        r"|(?:text)?color\s?\{\w{1,20}\})(?![A-Za-z])",
        "",
    ),
    (r"^[*_`]{1,2}([^*_`]*)[*_`]{1,2}$", r"\1"),
    (rf"^({_FONT}\{{)?[A-Za-z ]{{1,40}}(?::|\bis\b)(?=\s?\}}?\s?[\d\\(-])", r"\1"),
    # Values, and the letters of choices, that are written as \text.
    (
        rf"{_FONT}\{{((?:[^{{}}A-Za-z\d]*\d[^{{}}]*)?|{_CHOICES})\}}",
        r"\1",
    ),
    (r"^\(?([A-Z])[).:]\\?\s+[\d\\$-].*", r"\1"),  # (B) 12
    (r"\\?%|\b(?:percent|per cent)\b", ""),  # 50% is 50
    # Separators between thousands.
    (r"(?<=\d)(?:(?:,\\!\s*|\\,|\{,\}|\\?\s)(?=\d{3}(?![\d/]))|,(?=\d{3}\}))", ""),
    (r"\\varnothing(?![A-Za-z])", r"\\emptyset"),
    (r"\\(?:mathrm|text)\{([deijkxyz])\}", r" \1"),
    # Derivatives, transposed matrices and letters with primes become names.
    (
        r"\\[dt]?frac\s?\{\s?(?:d|\\partial)(?:\^\{?(\d)\}?)?\s?(\\[a-z]{2,9}|[A-Za-z])\s?\}"
        r"\s?\{\s?(?:d|\\partial)\s?([A-Za-z])(?:\^\{?\d\}?)?\s?\}",
        r" \2_{d\1\3}",
    ),
    (r"(?<![A-Za-z\\])d([A-Za-z])/d([A-Za-z])(?![A-Za-z])", r" \1_{d\2}"),
    (r"(?<=[A-Z])\^\s*(?:T|\\top|\{\s*(?:T|\\top)\s*\})(?![A-Za-z])", "_{T}"),
    (r"\\prime(?![a-z])\s?", "'"),
    (r"\^\s?(?:\{('+)\}|('))", r"\1\2"),
    (r"E(?=')", r" \\mathrm{E}"),  # the parser does not read an index of a plain E
    # Spellings such as {x : x > 2}, and 2 = k.
    (r"^\\\{\s*[a-z](?:\s*\\in[^:|]*)?\s*(?::|\\mid|\|)(.*)\\\}$", r"\1"),
    (r"^(?![A-Za-z]\s*=)([^=<>&]*[^=<>&\s\\])\s*=\s*([A-Za-z])$", r"\2=\1"),
    (r"^([A-Za-z]\s*=)\s*\\pm([^,;=]*)$", r"\1\2, \1-\2"),
    (r"(?<=\d)\s?(?:\\text\{\s?to\s?\}|to)\s?(?=\d)", ":"),
    (r"(?<=\d):(?=\d\d\s?(?:\\text\{\s?)?[AaPp]\.?[Mm])", "."),  # 3:30 p.m. is not a ratio
    # Money, and units without \text.
    (rf"\\\${_PRICE}", r"\1\\text{dollars}"),
    (rf"€{_PRICE}", r"\1\\text{euros}"),
    (r"(?<=\d)([cmk]m|[mk]g|m[lL]|ft|hrs?|yd|mi|lbs?|mph)(?=\s?(?:$|[,;^]|\s\d))", r"\\text{\1}"),
    (r"√\s*(?:(\d{1,99}|[a-z])|\(([^()]*)\))", r"\\sqrt{\1\2}"),
    (r"√\s*", r"\\sqrt"),
    (r"(\d{1,3})⁄(\d{1,3})", r"\\frac{\1}{\2}"),
    (r"(?<![\d.])(\d{1,9})(?:\s|\\[ ,;:])+(\d{1,9})/(\d{1,9})(?!\d)", r"\1\\frac{\2}{\3}"),
    # Numbers such as 1e5 or 1.5e-3. 2e-1 is left, because it may mean 2 times Euler's number,
    # minus 1.
    (r"((?<!\d)1|\.\d{1,99}|\d(?=[eE]\d))[eE]([+-]?\d{1,3})(?![\w^])", r"\1\\times 10^{\2}"),
    # The parser would read 2(3) as the mixed number 2 3/1.
    (r"(?<=[\d)])(?<![_^]\d)\s{0,9}(?=\(\s{0,9}[+-]?\d{1,99}\s{0,9}\))", r"\\cdot "),
]
_PRIMES = re.compile(r"(?<=[A-Za-z}])(?:_\{?(\w{1,9})\}?)?('+)(?![a-z])")
# Words and symbols of two or more letters that follow a number, up to the end of the formula or of
# an item of a list.
_BARE = re.compile(
    r"(?<=\d)(?:\s|\\[ ,;:])((?!(?:d[A-Za-z]|ab|cd)\b)[A-Za-z]\.?[A-Za-z]+(?:\^\{?-?\d\}?)?"
    r"(?:(?:\s?/\s?|\.?\s|\.)[A-Za-z]+(?:\^\{?-?\d\}?)?){0,9}\.?)(?=\s{0,9}(?:$|[,;)]|\s\d))"
)
# A unit of one letter after a number. It is read as a unit only if the ground truth has no letter.
_LETTER = re.compile(
    r"(?<=\d)(?:\s|\\[ ,;:])?"
    r"([ghlmsJLNVW](?:\^\{?\d\}?)?(?:\s?/\s?[a-z]{1,3}(?:\^\{?\d\}?)?)?)$"
)
_CONTENT = r"(?:[^{}\d^]|\^\\circ|\^\s?\{?-?\d\}?)*"
# A text without a number. A number in a text could be another answer.
_TEXT = (
    rf"(?:\\(?:text(?:rm|bf|it)?|mbox|mathrm)\s*\{{{_CONTENT}\}}(?:\s*\^\s*\{{?-?\d\}}?)?"
    r"|\^\s*(?:\\circ|\{\s*\\circ\s*\})\s*(?:[CF](?![a-z]))?)"
)
# Three groups: the end of the value before the words, the words, and a digit after them.
_WORDS = re.compile(
    r"([0-9A-Za-z)}\]](?:[\s~]|\\[ ,;:!]){0,9})?"
    rf"({_TEXT}(?:(?:[\s~/-]|\\[ ,;:!]|\\cdot)*{_TEXT})*"
    r"(?:\s*\\times(?=\s*\d)(?!\s*10\^))?)(?!\s*[=<>^_*/&|+(-])(?=\s{0,20}(\d?))"
)
OF_ANGLES = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![a-z])")
_UNIT = re.compile(r"\\text\{unit ([^}]*)\}((?:,\\ )?)")
_REPEATING = re.compile(
    r"(\d{0,20})\.(\d{0,20})\\(?:overline|bar|dot)\s*(?:\{\s*(\d{1,20})\s*\}|(\d))"
)
_BASE = re.compile(r"\d\s*_\s*(?:\{\s*)?(\d+)")
_POINTS = re.compile(r"(?:\\angle)?([A-Z]{2,})")
_LIST = re.compile(r"\d\s*,(?:[\s~]|\\[ ,;:])+-?\d")


def tidied(latex: str) -> str:
    """Return the formula in a spelling that math-verify can read.

    Most formulas stay as they are. Braces and fonts around the formula, percent signs, a point or
    comma at its end, and spaces between thousands are removed. Repeating decimals become fractions,
    signs of Unicode become LaTeX, and derivatives and primes become names. Words after a number
    become `\\text{unit …}`.

    >>> tidied(r"50\\%."), tidied(r"-0.1\\overline{6}"), tidied(r"2\\text{ hours }3\\mathrm{~min}")
    ('50', '-\\\\frac{15}{90}', '2\\\\text{unit hours},\\\\ 3\\\\text{unit min}')
    """
    latex = _in_ascii(latex)
    for spelling, usual in _SPELLINGS:
        latex = re.sub(spelling, usual, latex.strip())
    # In a list, a space follows each comma between items. A comma without a space is between
    # thousands.
    if _LIST.search(latex):
        latex = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", latex)
    latex = _PRIMES.sub(_as_index, latex)
    latex = _REPEATING.sub(_as_fraction, _BARE.sub(_as_text, latex))
    # In a trigonometric function, the parser itself reads degrees.
    return latex if OF_ANGLES.search(latex) else _WORDS.sub(_as_unit, latex)


def without_units(wanted: str, answer: str) -> list[tuple[str, str]]:
    """Return both formulas with units replaced by factors, and both formulas without units.

    A unit is left out if only one side has it, or if both sides have the same unit. If the two
    sides have different units of the same quantity, each unit becomes its number of base units. All
    other units become letters, so that the formulas differ. Number words become numbers.

    >>> without_units(r"5\\text{unit cm}", "6")
    [('5', '6'), ('5', '6')]
    >>> without_units(r"5\\text{unit cm}", r"50\\text{unit mm}")[0]
    ('5\\\\cdot (1/100)', '50\\\\cdot (1/1000)')
    """
    units = [read_unit(text) for text, _ in _UNIT.findall(wanted + answer)]
    units = [unit for unit in units if unit.base or unit.words]
    comparable = all(unit.agrees(units[0]) for unit in units)
    convert = comparable and len({unit.scale for unit in units}) > 1

    def as_factor(match: re.Match[str]) -> str:
        unit = read_unit(match[1])
        factor = unit.number * (unit.scale if convert else Fraction(1))
        latex = "" if factor == 1 else rf"\cdot ({factor})"
        if unit in units and not comparable:
            latex += rf"\text{{unit{'i' * units.index(unit)}}}"
        if convert and match[2]:  # the parts of 2 hours 30 minutes are added
            return f"{latex}+"
        return latex + match[2]

    return [
        (_UNIT.sub(as_factor, wanted), _UNIT.sub(as_factor, answer)),
        (_UNIT.sub(r"\2", wanted), _UNIT.sub(r"\2", answer)),
    ]


def as_asked(wanted: str, answer: str) -> str:
    """Return the answer in the spelling that the ground truth suggests.

    >>> as_asked("5, 6", "5,125"), as_asked("x+C", "x+c"), as_asked("5", "5 m")
    ('5, 125', 'x+C', '5\\\\text{m}')
    >>> as_asked("2A_{16}", "2a_{16}")
    '2A_{16}'
    """
    # If the ground truth is a list, a comma in the answer separates items. Otherwise it is between
    # thousands.
    if _LIST.search(wanted) and not _LIST.search(answer):
        answer = re.sub(r"(?<=\d),(?=\d)", ", ", answer)
    if wanted.endswith("C"):  # the constant of an integral
        answer = re.sub(r"\+\s?c$", "+C", answer)
    if re.fullmatch(r"[0-9A-F]+_\{?1[1-6]\}?", wanted):
        answer = answer.upper()
    if not re.search("[A-Za-z]", re.sub(rf"{_TEXT}|\\[A-Za-z]+", "", wanted)):
        answer = _LETTER.sub(r"\\text{\1}", answer)
    return answer


def differ(wanted: str, answer: str) -> bool:
    """Return whether formulas differ in a way that math-verify ignores.

    It ignores the base of a number, repeated items, and the order of the letters of points.

    >>> differ("4210_5", "4210_{6}"), differ("CAB", "ABC"), differ(r"\\angle ABC", r"\\angle CBA")
    (True, True, False)
    """
    items, others = (sorted(re.split(r",\s*", latex)) for latex in (wanted, answer))
    if len(set(items)) < len(items) and not re.search(r"[(\[{]", wanted):
        return items != others
    points = _points(wanted)
    answer_points = _points(answer)
    if points and answer_points:
        # An angle and a segment may be named from either end.
        either_way = "angle" in wanted or len(points) == 2
        return answer_points != points and not (either_way and answer_points == points[::-1])
    bases = _BASE.findall(wanted)
    answer_bases = _BASE.findall(answer)
    return bool(bases and answer_bases) and bases != answer_bases


def _points(latex: str) -> str:
    """Return the letters of points, such as ABC, if the formula consists only of them, else ''."""
    points = _POINTS.fullmatch(re.sub(r"[\s{}$]|\\text|\\[,;:! ]", "", latex))
    return points[1] if points else ""


def _in_ascii(latex: str) -> str:
    """Replace full-width characters, mathematical letters, superscripts and fractions by LaTeX."""
    latex = re.sub("[\u2070-\u207f²³¹]+", r"^{\g<0>}", latex)
    latex = re.sub("[\u2080-\u208e]+", r"_{\g<0>}", latex)
    latex = re.sub("[¼-¾⅐-⅞]", r" \g<0>", latex)  # 2½
    return unicodedata.normalize("NFKC", latex.translate(_SIGNS)).translate(_SIGNS)


def _as_index(match: re.Match[str]) -> str:
    """Move the primes of a letter into its index, because the parser would drop them."""
    index, primes = match.groups(default="")
    return f"_{{{index}{'p' * len(primes)}}}"


def _as_text(match: re.Match[str]) -> str:
    """Return units, and words of four letters or more, as a text.

    Other letters stay as they are, because they may be unknowns.
    """
    if re.match("[A-Za-z]{4}", match[1]) or not read_unit(_plain(match[1])).words:
        return rf"\text{{ {match[1]}}}"
    return match[0]


def _as_unit(match: re.Match[str]) -> str:
    """Return words after a number as one text, `\\text{unit …}`, in pint's notation."""
    before, text, follows = match.groups()
    unit = _plain(text)
    if before is None or not unit:
        return match[0]
    return rf"{before}\text{{unit {unit}}}" + (r",\ " if follows else "")


def _plain(text: str) -> str:
    """Return the LaTeX of a unit without fonts, braces and points: m s^-2, sq ft, am, N m."""
    text = re.sub(r"\^\s*\{?\s*\\circ", " degree ", text)
    text = re.sub(r"\\[A-Za-z]+|\\.|[{}~,;]|(?<!\^)(?<!\^\{)-", " ", text)
    text = text.replace(".", "").replace("cu ", "cubic ")
    text = re.sub(r"\s*\^\s*", "^", text)
    return re.sub(r"\b(?:and|or)$", "", " ".join(text.split()))


def _as_fraction(match: re.Match[str]) -> str:
    """Return a repeating decimal as a fraction."""
    whole, fixed, braced, digit = match.groups(default="")
    period = braced or digit
    nines, zeros = 10 ** len(period) - 1, 10 ** len(fixed)
    top = int(whole + fixed + period) - int(whole + fixed or "0")
    return rf"\frac{{{top}}}{{{nines * zeros}}}"
