"""A formula's spelling: what math-verify does not read is written so that it does."""

from __future__ import annotations

import re
import unicodedata
from itertools import accumulate

from gdpo_verl.rewards.math_units import read_unit

_SIGNS = str.maketrans({
    "−": "-", "–": "-", "×": r"\times ", "·": r"\cdot ", "∞": r"\infty ", "∪": r"\cup ",
    "°": r"^\circ ", "º": r"^\circ ", "˚": r"^\circ ", "∠": r"\angle ", "~": " ", "’": "'",
    "′": "'", "£": "",
})  # fmt: skip
_END = r"\\?[.,;]$"
_FONT = (
    r"\\(?:text(?:rm|bf|it|sf|normal)?|math(?:rm|bf|it|sf)|mbox|emph|ensuremath|bold(?:symbol)?)"
)
_WORD = rf"{_FONT}\{{[^{{}}]*\}}(?:\^\{{?\d\}}?)?"
_VALUE = r"[^{}A-Za-z\d]*\d[^{}]*"
_CHOICES = r"\(?[A-Z]\)?(?:(?:, ?| and )\(?[A-Z]\)?)*"
# Each with what it becomes; none may take longer than linear time on an adversary's text.
_SPELLINGS = [
    (_END, ""),
    # What is written around a value.
    (
        r"\\(?:[lL]arge|huge|normalsize|therefore|Rightarrow|approx|bf|[bB]igg?[lr]?|underline)(?![A-Za-z])",
        "",
    ),
    (r"\\(?:text)?color\s?\{\w{1,20}\}", ""),
    (r"^[*_`]{1,2}([^*_`]*)[*_`]{1,2}$", r"\1"),
    (rf"^{_FONT}\{{((?:[^{{}}\d]{{0,40}}(?::|\bis)\s?)?{_VALUE}|{_CHOICES})\}}$", r"\1"),
    (r"^(?:\\text\w*\{)?[A-Za-z ]{1,40}(?::|\bis\b)\s?\}?(?=\s?[\d\\(-])", ""),
    (r"\\?%|\b(?:percent|per cent)\b", ""),  # 50% is 50
    (rf"{_FONT}\{{([^{{}}A-Za-z]*)\}}", r"\1"),
    (r"(\d{1,3})⁄(\d{1,3})", r"\\frac{\1}{\2}"),
    (r"(?<=\d)(?:,\\!\s*|\\,|\{,\}|\\?\s)(?=\d{3}(?![\d/]))", ""),  # between thousands
    (r"(?<=\{)(\d{1,3}),(\d{3})(?=\})", r"\1\2"),
    (r"\\varnothing(?![A-Za-z])", r"\\emptyset"),
    # A vector, or a letter in roman type that is none of a word.
    (r"\\(?:mathbf|mathit|boldsymbol)\{([A-Za-z])\}", r" \1"),
    (r"\\(?:mathrm|text)\{([deijkxyz])\}", r" \1"),
    # Names: derivatives, and what is transposed.
    (
        r"\\[dt]?frac\s?\{\s?(?:d|\\partial)(?:\^\{?(\d)\}?)?\s?(\\[a-z]{2,9}|[A-Za-z])\s?\}"
        r"\s?\{\s?(?:d|\\partial)\s?([A-Za-z])(?:\^\{?\d\}?)?\s?\}",
        r" \2_{d\1\3}",
    ),
    (r"(?<![A-Za-z\\])d([A-Za-z])/d([A-Za-z])(?![A-Za-z])", r" \1_{d\2}"),
    (r"(?<=[A-Z])\^\s*(?:T|\\top|\{\s*(?:T|\\top)\s*\})(?![A-Za-z])", "_{T}"),
    # {x : x > 2}, and 2 = k.
    (r"^\\\{\s*[a-z](?:\s*\\in[^:|]*)?\s*(?::|\\mid|\|)(.*)\\\}$", r"\1"),
    (r"^(?![A-Za-z]\s*=)([^=<>&]*[^=<>&\s\\])\s*=\s*([A-Za-z])$", r"\2=\1"),
    (r"(?<=\d)\s?(?:\\text\{\s?to\s?\}|to)\s?(?=\d)", ":"),
    (r"(?<=\d)(?:\s|\\[ ,;:])*\\Omega$", r"\\text{ohm}"),
    # 3:30 p.m. is no ratio.
    (r"(?<=\d):(?=\d\d\s?(?:\\text\{\s?)?[AaPp]\.?[Mm])", "."),
    # Money, a fraction of units, and units without \text.
    (r"\\\$\s{0,9}(\d(?:[\d.,]{0,99}\d)?)", r"\1\\text{dollars}"),
    (r"€\s{0,9}(\d(?:[\d.,]{0,99}\d)?)", r"\1\\text{euros}"),
    (rf"\\[dt]?frac\s?\{{({_WORD})\}}\s?\{{({_WORD})\}}", r"\1/\2"),
    (r"(?<=\d)([cmk]m|[mk]g|m[lL]|ft|hrs?|yd|mi|lbs?|mph)(?=\s?(?:$|[,;^]|\s\d))", r"\\text{\1}"),
    (r"√\s*(\d{1,99}|[a-z])", r"\\sqrt{\1}"),
    (r"√\s*(?=\{)", r"\\sqrt"),
    (r"√\s*(?=\()", r"sqrt"),
    (r"(?<![\d.])(\d{1,9})(?:\s|\\[ ,;:])+(\d{1,9})/(\d{1,9})(?!\d)", r"\1\\frac{\2}{\3}"),
    # Not 2e-1, which is a number times Euler's less one.
    (r"((?<!\d)1|\.\d{1,99}|\d(?=[eE]\d))[eE]([+-]?\d{1,3})(?![\w^])", r"\1\\times 10^{\2}"),
    # It would read 2(3) as 2 3/1.
    (r"(?<=[\d)])(?<![_^]\d)\s{0,9}(?=\(\s{0,9}[+-]?\d{1,99}\s{0,9}\))", r"\\cdot "),
]
# The parser drops primes: a name with some is another name. A text may quote.
_PRIMES = re.compile(
    r"\\text\w*\{[^{}]*\}|(\\[a-z]+|[A-Za-z])(?:_(?:\{(\w{1,9})\}|(\w)))?"
    r"(?:\^\{((?:'|\\prime\s?)+)\}|\^?((?:'|\\prime(?![a-z])\s?)+))"
)
# Words and symbols right behind a number, to the end of the formula or of an item.
_BARE = re.compile(
    r"(?<=\d)(?:\s|\\[ ,;:])((?!(?:d[A-Za-z]|ab|cd)\b)[A-Za-z]+(?:\^\{?-?\d\}?)?"
    r"(?:(?:\s?/\s?|\.?\s|\.)[A-Za-z]+(?:\^\{?-?\d\}?)?){0,9}\.?)(?=\s{0,9}(?:$|[,;)]|\s\d))"
)
# In an answer to which no letter belongs.
_LETTER = re.compile(
    r"(?<=\d)(?:\s|\\[ ,;:])?"
    r"([ghlmsJLNVW](?:\^\{?\d\}?)?(?:\s?/\s?[a-z]{1,3}(?:\^\{?\d\}?)?)?)$"
)
_CONTENT = r"(?:[^{}\d^]|\^\\circ|\^\s?\{?-?\d\}?)*"
# Without a number in it, which may be another answer.
_TEXT = (
    rf"(?:\\(?:text(?:rm|bf|it)?|mbox|mathrm)\s*\{{{_CONTENT}\}}(?:\s*\^\s*\{{?-?\d\}}?)?"
    r"|\^\s*(?:\\circ|\{\s*\\circ\s*\})\s*(?:[CF](?![a-z]))?)"
)
# What the words stand behind, the words, and the digit behind them.
_WORDS = re.compile(
    r"([0-9A-Za-z)}\]](?:[\s~]|\\[ ,;:!]){0,9})?"
    rf"({_TEXT}(?:(?:[\s~/-]|\\[ ,;:!]|\\cdot)*{_TEXT})*"
    r"(?:\s*\\times(?=\s*\d)(?!\s*10\^))?)(?!\s*[=<>^_*/&|+(-])(?=\s{0,20}(\d?))"
)
_OF_ANGLES = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![a-z])")
_UNIT = re.compile(r"\\text\{unit ([^}]*)\}(,\\ )?")
_MARK = re.compile(r"\\.|.", re.DOTALL)
_REPEATING = re.compile(
    r"(\d{0,20})\.(\d{0,20})\\(?:overline|bar|dot)\s*(?:\{\s*(\d{1,20})\s*\}|(\d))"
)
_BASE = re.compile(r"\d\s*_\s*(?:\{\s*)?(\d+)")
_LETTERS = re.compile(r"(\\angle)?([A-Z]{2,})")
_LIST = re.compile(r"\d\s*,(?:[\s~]|\\[ ,;:])+-?\d")


def tidied(latex: str) -> str:
    """The formula in the spelling that math-verify reads; the same for most.

    Without braces and fonts around it, percent signs, the point or comma at its end, and the
    spaces between thousands; repeating decimals as fractions, LaTeX for Unicode's signs, names
    for derivatives and primes. What stands behind a number in words is `\\text{unit …}`.

    >>> tidied(r"50\\%."), tidied(r"-0.1\\overline{6}"), tidied(r"2\\text{ hours }3\\mathrm{~min}")
    ('50', '-\\\\frac{15}{90}', '2\\\\text{unit hours},\\\\ 3\\\\text{unit min}')
    """
    latex = _without_braces(_in_ascii(latex).strip())
    for spelling, usual in _SPELLINGS:
        latex = re.sub(spelling, usual, latex.strip())
    if _LIST.search(latex):  # its commas have a space behind them, those of thousands none
        latex = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", latex)
    latex = _PRIMES.sub(_as_name, latex)
    latex = _REPEATING.sub(_as_fraction, _BARE.sub(_as_text, latex))
    # The parser knows degrees where they are an angle's.
    return latex if _OF_ANGLES.search(latex) else _WORDS.sub(_as_unit, latex)


def without_units(wanted: str, answer: str) -> list[tuple[str, str]]:
    """Both formulas with numbers for their units and number words, and both without either.

    A unit that one side leaves out, or that both share, is no number; of other units that pint
    finds to measure the same, each is a number of base units. All others stay factors.

    >>> without_units(r"5\\text{unit cm}", "6")
    [('5', '6'), ('5', '6')]
    >>> without_units(r"5\\text{unit cm}", r"50\\text{unit mm}")[0]
    ('5\\\\cdot \\\\frac{1}{100}', '50\\\\cdot \\\\frac{1}{1000}')
    """
    units = [read_unit(text) for text, _ in _UNIT.findall(wanted + answer)]
    kinds = [unit for unit in units if unit.base or unit.words]
    same = all(unit.agrees(kinds[0]) for unit in kinds)
    convert = same and len({unit.scale for unit in kinds}) > 1

    def as_factor(match: re.Match[str]) -> str:
        unit = read_unit(match[1])
        factor = unit.number * (unit.scale if convert else 1)
        latex = "" if factor == 1 else rf"\cdot \frac{{{factor.numerator}}}{{{factor.denominator}}}"
        if not same and unit in kinds:
            first = next(n for n, kind in enumerate(kinds) if unit.agrees(kind))
            latex += rf"\text{{unit{'i' * first}}}"
        if not match[2]:
            return latex
        return latex + ("+" if convert else match[2])  # 2 hours 30 minutes

    return [
        (_UNIT.sub(as_factor, wanted), _UNIT.sub(as_factor, answer)),
        (_UNIT.sub(r"\2", wanted), _UNIT.sub(r"\2", answer)),
    ]


def as_asked(wanted: str, answer: str) -> str:
    """The answer as the ground truth has to read it.

    >>> as_asked("5, 6", "5,125"), as_asked("x+C", "x+c"), as_asked("5", "5 m")
    ('5, 125', 'x+C', '5\\\\text{m}')
    >>> as_asked("B", "(B) 12"), as_asked("2A_{16}", "2a_{16}")
    ('B', '2A_{16}')
    """
    if _LIST.search(wanted) and not _LIST.search(answer):  # else a comma is between thousands
        answer = re.sub(r"(?<=\d),(?=\d)", ", ", answer)
    if wanted.endswith("C"):  # the constant of an integral
        answer = re.sub(r"\+\s?c$", "+C", answer)
    if re.search(r"\d:\d.*[ap]\.?m", wanted, re.IGNORECASE):  # a time of the day
        answer = re.sub(r"(?<=\d):(?=\d\d)", ".", answer)
    if re.fullmatch(r"[0-9A-F]+_\{?1[1-6]\}?", wanted):
        answer = answer.upper()
    choice = re.fullmatch(r"(?:\\text\w*\{)?\(?([A-Z])\s?[).:][^A-Z]*", answer)
    if choice and re.fullmatch(r"(?:\\text\w*\{)?\W?[A-Z]\W*", wanted):
        answer = choice[1]
    if not re.search("[A-Za-z]", re.sub(rf"{_TEXT}|\\[A-Za-z]+", "", wanted)):
        answer = _LETTER.sub(r"\\text{\1}", answer)
    return answer


def differ(wanted: str, answer: str) -> bool:
    """Find what math-verify does not see: a base, an item twice, the order of points and letters.

    >>> differ("4210_5", "4210_{6}"), differ("CAB", "ABC"), differ(r"\\angle ABC", r"\\angle CBA")
    (True, True, False)
    """
    items, others = (sorted(re.split(r",\s*", latex)) for latex in (wanted, answer))
    if len(set(items)) < len(items) and not re.search(r"[(\[{]", wanted):
        return items != others
    a, b = _points(wanted), _points(answer)
    if not a or not b:
        bases, others = _BASE.findall(wanted), _BASE.findall(answer)
        return bool(bases and others) and bases != others
    if a[1] or len(a[2]) == 2:  # an angle, a segment: read either way
        return b[2] not in (a[2], a[2][::-1])
    return b[2] != a[2]


def _points(latex: str) -> re.Match[str] | None:
    return _LETTERS.fullmatch(re.sub(r"[\s{}$]|\\text|\\[,;:! ]", "", latex))


def _in_ascii(latex: str) -> str:
    """Full-width characters, mathematical letters, superscripts and fractions as LaTeX has them."""
    latex = re.sub("[\u2070-\u207f²³¹]+", r"^{\g<0>}", latex)
    latex = re.sub("[\u2080-\u208e]+", r"_{\g<0>}", latex)
    latex = re.sub("[¼-¾⅐-⅞]", r" \g<0>", latex)  # 2½
    return unicodedata.normalize("NFKC", latex.translate(_SIGNS)).translate(_SIGNS)


def _without_braces(latex: str) -> str:
    latex = re.sub(_END, "", latex).strip()
    if latex.startswith("{") and latex.endswith("}") and "choose" not in latex:
        depths = accumulate({"{": 1, "}": -1}.get(mark, 0) for mark in _MARK.findall(latex))
        if 0 not in list(depths)[:-1]:
            return latex[1:-1].strip()
    return latex


def _as_name(match: re.Match[str]) -> str:
    """A letter with primes as a letter with an index; texts as they are."""
    letter, *index, braced, plain = match.groups(default="")
    if not letter:
        return match[0]
    primes = (braced or plain).replace(r"\prime", "'").count("'")
    name = f"{''.join(index)}p{primes}"
    # The parser reads no index of E.
    return rf" \mathrm{{E{name}}}" if letter == "E" else f" {letter}_{{{name}}}"


def _as_text(match: re.Match[str]) -> str:
    """Symbols of units, or words, as a text; letters that may be unknowns as they are."""
    first = re.split(r"[\s/^.]", match[1])[0]
    text = _plain(match[1])
    unit = read_unit(text)
    symbols = unit.base and not unit.words and re.search("[A-Za-z]{2}", text)
    words = len(first) > 3 and first.islower()
    return rf"\text{{ {match[1]}}}" if symbols or words or unit.number > 1 else match[0]


def _as_unit(match: re.Match[str]) -> str:
    """Words behind a number as one text, `\\text{unit …}`, in pint's notation."""
    before, text, follows = match.groups()
    if before is None or read_unit(_plain(text)) == read_unit(""):
        return match[0]
    unit = rf"{before}\text{{unit {_plain(text)}}}"
    return rf"{unit},\ " if follows else unit


def _plain(text: str) -> str:
    """A unit's LaTeX without fonts, braces and points: m s^-2, sq ft, am, N*m."""
    text = re.sub(r"\^\s*\{?\s*\\circ", " degree ", text).replace(r"\cdot", "*")
    text = re.sub(r"\\[A-Za-z]+|\\.|[{}~,;]", " ", text).replace(".", "").replace("cu ", "cubic ")
    text = re.sub(r"\s*\^\s*", "^", text)
    text = re.sub(r"(?<!\^)-", "*", text)
    return " ".join(text.split())


def _as_fraction(match: re.Match[str]) -> str:
    whole, fixed, *periods = match.groups()
    period = periods[0] or periods[1]
    nines, zeros = 10 ** len(period) - 1, 10 ** len(fixed)
    top = int(whole + fixed + period) - int(whole + fixed or "0")
    return rf"\frac{{{top}}}{{{nines * zeros}}}"
