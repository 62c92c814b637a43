"""Read units of measurement after a number with the library pint.

A text is read as a unit and the words that follow it. In "miles east" the unit is a mile, and
"east" is a word. Capital letters matter, because mW is not MW. A text that pint does not know, such
as KM or Hours, is tried again in lower case.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

import pint

_LONGEST = 60  # the largest number of characters of a unit
_NUMBERS = {
    "hundred": 10**2,
    "thousand": 10**3,
    "million": 10**6,
    "billion": 10**9,
    "trillion": 10**12,
    "dozen": 12,
}
_NUMBER_WORD = re.compile(rf"\b({'|'.join(_NUMBERS)})s?\b", re.IGNORECASE)
# These definitions are in pint's notation. Without the last lines, pint would read "am" as an
# attometer, and "units" as micronits.
_DEFINITIONS = """
dollar = [dollar] = _ = USD = buck
cent = 0.01 dollar
euro = [euro] = _ = EUR
yen = [yen] = _ = JPY
rupee = [rupee] = _ = INR = Rs
miles_per_gallon = mile / gallon = mpg
@alias ampere = amp = amps
@alias week = wk
@alias month = mo
@alias degree_Celsius = degCelsius
@alias degree_Fahrenheit = degFahrenheit
points = [points] = pts = point
morning_hour = [morning] = am = AM
evening_hour = [evening] = pm = PM
units = [units] = unit
"""
# Only exponents of one digit are allowed, because pint evaluates the text, and a large power would
# take long. "in", "a" and "at" after a word are prepositions, but pint would read them as inch,
# year and technical atmosphere.
_NOT_A_UNIT = re.compile(
    r"[^\w\s*/^-]|_|(?<!\^)(?<!\^-)\d|\d\s*\^|(?<!sq)(?<!cubic)\s(?:in|an?|as|at|of)\b"
)


class Unit(NamedTuple):
    """A number word, a unit and the words that follow it.

    `base` has pint's base units with their exponents. The unit is `scale` times the product of
    these base units. `number` is the value of the number words.
    """

    number: int
    scale: Fraction
    base: dict[str, Any]
    words: frozenset[str]

    def agrees(self, other: Unit) -> bool:
        """Return whether both units measure the same quantity. One of them may have fewer words.

        >>> read_unit("miles").agrees(read_unit("km east"))
        True
        >>> read_unit("miles east").agrees(read_unit("miles west"))
        False
        >>> read_unit("miles east or west").agrees(read_unit("miles east"))
        False
        """
        fewer = self.words <= other.words or self.words >= other.words
        added = self.words ^ other.words
        return self.base == other.base and fewer and not added & {"and", "or"}


@lru_cache(maxsize=1024)
def read_unit(text: str) -> Unit:
    """Read a text such as "m s^-2", "miles per hour" or "million dollars profit".

    >>> read_unit("km/h") == read_unit("kilometers per hour")
    True
    >>> read_unit("million dollars").number, read_unit("apples").words
    (1000000, frozenset({'apple'}))
    """
    number = math.prod(_NUMBERS[word.lower()] for word in _NUMBER_WORD.findall(text))
    text = _NUMBER_WORD.sub(" ", text)
    words = re.sub(r"\bdeg(?:ree)?s? (?=[CF])", "deg", text).split()
    end = len(words)
    unit = _parsed(words)
    while unit is None:  # the loop ends, because no words at all are read as no unit
        end = end - 1
        unit = _parsed(words[:end])
    return Unit(number, *unit, frozenset(word.lower().rstrip("s") for word in words[end:]))


def _parsed(words: list[str]) -> tuple[Fraction, dict[str, Any]] | None:
    """Return the scale and the base units of a unit; None if pint does not know the unit."""
    text = " ".join(words)
    if len(text) > _LONGEST or _NOT_A_UNIT.search(text):
        return None
    for spelling in (text, text.lower()):
        try:
            unit = _registry().Quantity(1, spelling).to_base_units()
            return Fraction(unit.magnitude), dict(unit.unit_items())
        except Exception:  # pint evaluates the text, which may raise many kinds of errors
            continue
    return None


@lru_cache(maxsize=1)
def _registry() -> pint.UnitRegistry:
    registry: pint.UnitRegistry = pint.UnitRegistry(non_int_type=Fraction)
    registry.load_definitions(_DEFINITIONS.splitlines())
    return registry
