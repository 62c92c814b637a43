"""Errors about the arguments of a reward function.

A caller may know an argument under another name, such as a key of verl's configuration. The errors
therefore have the name of the argument as an attribute.
"""

from __future__ import annotations

import math
from typing import Any


class ArgumentError(ValueError):
    """An argument is wrong. The text begins with the name in the signature, and a colon."""

    @property
    def argument(self) -> str:
        """The name of the argument."""
        return str(self).partition(":")[0]


def check_positive(argument: str, value: Any, unit: str) -> None:
    """Raise ArgumentError unless the value of an argument is a finite number above 0."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not 0 < value < math.inf:
        raise ArgumentError(f"{argument}: expected a positive number of {unit}, found {value!r}")
