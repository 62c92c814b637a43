"""Units of measurement behind a number, read by the library pint.

A text is read as a unit and the words that follow it: of "miles east" the unit is a mile and
"east" is a word. Letters count as they are written (mW is not MW); a text that says nothing so is
read again in lower case (KM, Hours).
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

import pint

_LONGEST = 60  # characters of a unit; pint computes what it reads
_NUMBERS = {
    "hundred": 10**2,
    "thousand": 10**3,
    "million": 10**6,
    "billion": 10**9,
    "trillion": 10**12,
    "dozen": 12,
}
_NUMBER_WORD = re.compile(rf"\b({'|'.join(_NUMBERS)})s?\b", re.IGNORECASE)
# In pint's own notation. Of pint's own meanings, "am" is an attometer and "units" are micronits.
_DEFINITIONS = """
    dollar = [dollar] = _ = USD = buck
    cent = 0.01 dollar
    euro = [euro] = _ = EUR
    rupee = [rupee] = _ = INR = Rs
    @alias ampere = amp = amps
    @alias week = wk
    @alias month = mo
    yen = [yen] = _ = JPY
    morning_hour = [morning] = am = AM
    evening_hour = [evening] = pm = PM
    points = [points] = pts = point
    units = [units] = unit
    miles_per_gallon = mile / gallon = mpg
"""
# One digit, and no power of a power.
_NOT_A_UNIT = re.compile(r"[^\w\s*/^()-]|_|(?<!\^)(?<!\^-)\d|[\d)]\s*\^")
# What pint would read as inch, year, attosecond and technical atmosphere.
_PREPOSITION = re.compile(r"\s(?:in|a|an|as|at|of|per an?)\s")
_TEMPERATURE = re.compile(r"\bdeg(?:ree)?s? (?:([Cc])(?:elsius)?|([Ff])(?:ahrenheit)?)\b")


Base = tuple[tuple[str, Any], ...]


class Unit(NamedTuple):
    """A number word, a unit and the words that follow it.

    `base` are pint's base units and their exponents; one unit is `scale` of them.
    """

    number: int
    scale: Fraction
    base: Base
    words: frozenset[str]

    def agrees(self, other: Unit) -> bool:
        """Find the same dimension as another unit, which may say more.

        This one may say more only where the other says no word beside its unit, or has none.

        >>> miles, east = read_unit("miles"), read_unit("km east")
        >>> miles.agrees(east), east.agrees(miles), east.agrees(read_unit("miles west"))
        (True, True, False)
        >>> read_unit("miles east or west").agrees(east)
        False
        """
        if self.base != other.base or not (self.base or self.words & other.words):
            return self == other
        more = self.words - other.words
        if {"and", "or"} & more or (self.base and more and other.words):
            return False
        return not more or other.words <= self.words


@lru_cache(maxsize=1024)
def read_unit(text: str) -> Unit:
    """Read a text such as "m s^-2", "miles per hour" or "million dollars profit".

    >>> read_unit("km/h") == read_unit("kilometers per hour")
    True
    >>> read_unit("million dollars").number, read_unit("apples").words
    (1000000, frozenset({'appl'}))
    """
    number = 1
    for word in _NUMBER_WORD.findall(text):
        number = number * _NUMBERS[word.lower()]
    text = re.sub(r"\b(?:and|or)$", "", _NUMBER_WORD.sub(" ", text))
    words = _TEMPERATURE.sub(_degrees, text).split()
    for end in range(len(words), 0, -1):
        unit = _parsed(" ".join(words[:end]))
        if unit is not None:
            return Unit(number, *unit, _singular(words[end:]))
    return Unit(number, Fraction(1), (), _singular(words))


def _degrees(match: re.Match[str]) -> str:
    return f"deg{match[0].split()[1][0].upper()}"


def _singular(words: list[str]) -> frozenset[str]:
    lowered = [word.lower() for word in words]
    # Of a box and boxes, and of an apple and apples, the same is left.
    return frozenset(word.rstrip("s").removesuffix("e") for word in lowered)


def _parsed(text: str) -> tuple[Fraction, Base] | None:
    """The scale and the base units of a text, None where pint reads no unit in it."""
    if len(text) > _LONGEST or _NOT_A_UNIT.search(text) or _PREPOSITION.search(f"{text} "):
        return None
    registry = _registry()
    for spelling in (text, text.lower()):
        try:
            one = registry.Quantity(1, registry.parse_units(spelling))
            zero = (0 * one).to_base_units()
            # Degrees Celsius and decibels are no multiples of another unit.
            unit = one if zero.magnitude else one.to_base_units()
            return Fraction(unit.magnitude), tuple(sorted(unit.unit_items()))
        except Exception:  # of any kind: it evaluates the text
            continue
    return None


@lru_cache(maxsize=1)
def _registry() -> pint.UnitRegistry:
    registry: pint.UnitRegistry = pint.UnitRegistry(non_int_type=Fraction)
    for definition in _DEFINITIONS.strip().splitlines():
        registry.define(definition.strip())
    return registry
