"""Errors of arguments of a reward function, whose caller may use other names for them."""

from __future__ import annotations

import math
from typing import Any


class ArgumentError(ValueError):
    """An argument is wrong; the text begins with its name in the signature and a colon."""

    @property
    def argument(self) -> str:
        """The name of the argument."""
        return str(self).partition(":")[0]


def check_positive(argument: str, value: Any, unit: str) -> None:
    """Raise ArgumentError unless the value of an argument is a finite number above 0."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not 0 < value < math.inf:
        raise ArgumentError(f"{argument}: expected a positive number of {unit}, found {value!r}")
