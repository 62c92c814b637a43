"""Comparison of a program's result with the one its test asks for. Both are plain data here.

What the program gave comes from an adversary: nothing in it is executed, and what holds more
than was asked for is not read.

Only a number that the test expects as a decimal has a tolerance: a millionth of the larger of
both, or 1e-9 where that is more. Infinity and NaN stand for themselves alone.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np

from gdpo_verl.sandbox.child import KINDS, decode, encode


def same_text(result: str, expected: str) -> bool:
    """Compare line by line, whatever the white space.

    A number that `expected` writes with a point or an exponent has the tolerance.
    """
    result, expected = result.strip(), expected.strip()
    if result.count("\n") != expected.count("\n"):  # before a list of a million lines is made
        return False
    return all(map(_same_line, result.split("\n"), expected.split("\n")))


def _same_line(result: str, expected: str) -> bool:
    if result == expected:
        return True
    b = expected.split()
    a = result.split(None, len(b))  # no more of a line that may be megabytes long
    return len(a) == len(b) and all(map(_same_word, a, b))


def _same_word(result: str, expected: str) -> bool:
    if result == expected or "_" in result or not any(mark in expected for mark in ".eE"):
        return result == expected  # float() reads 1_0 as 10
    try:
        number = float(expected)
        # Digits too large for a float may be another number's. The word for infinity is none's.
        if math.isinf(number) and any(map(str.isdigit, result)):
            return False
        return _close(float(result), number)
    except ValueError:
        return False


def same_lines(result: str, expected: str) -> bool:
    """Compare as verl does: lines as texts, or all of them as numbers by numpy.allclose.

    White space around the whole and around what was printed does not count, nor do empty lines.
    """
    lines = result.splitlines()
    texts = "\n".join(lines), "\n".join(map(str.strip, lines))
    if expected.strip() in map(str.strip, texts):
        return True
    expected_lines = [line.strip() for line in expected.split("\n") if line]
    printed = [line for line in lines if line]
    return expected_lines in (lines, printed) or _all_close(printed, expected_lines)


def _all_close(result: list[str], expected: list[str]) -> bool:
    """Compare as numpy.allclose does, but not integers without a sign, which are exact."""
    if len(result) != len(expected) or all(map(str.isdigit, result + expected)):
        return False
    try:
        return np.allclose([float(word) for word in result], [float(word) for word in expected])
    except ValueError:
        return False


def same_value(text: str, expected: Any) -> bool:
    """Return whether a call's value is the one expected, as JSON.

    Args:
      text: JSON of `gdpo_verl.sandbox.child.encode`, from a program and thus anything: raises
        ValueError, TypeError, LookupError or RecursionError where it is none.
      expected: a JSON value; a list of one may stand for what it holds, as in some data sets.
    """
    if _size(text) > _size(json.dumps(encode(expected))):
        return False
    result = decode(json.loads(text), _JSON_KINDS)
    wrapped = isinstance(expected, list) and len(expected) == 1 and _same(result, expected[0])
    return wrapped or _same(result, expected)


def _size(text: str) -> int:
    """Count what equal values have equally many of: reading many more takes long."""
    return text.count("[") + text.count(",")


def _with_text_keys(items: list[Any]) -> dict[str, Any]:
    """A dict as JSON has it: nobody can foresee a text's hash, so none is slow on purpose."""
    return {key if isinstance(key, str) else json.dumps(key): value for key, value in items}


_JSON_KINDS = {"int": KINDS["int"], "tuple": list, "dict": _with_text_keys}


def _same(result: Any, expected: Any) -> bool:
    if isinstance(expected, float):
        return isinstance(result, (int, float)) and _close(result, expected)
    if isinstance(result, list) and isinstance(expected, list):
        return len(result) == len(expected) and all(map(_same, result, expected))
    if isinstance(result, dict) and isinstance(expected, dict):
        return result.keys() == expected.keys() and all(
            _same(result[k], expected[k]) for k in result
        )
    return bool(result == expected)


def _close(result: float, expected: float) -> bool:
    try:
        close = math.isclose(result, expected, rel_tol=1 / 1_000_000, abs_tol=1e-9)
    except OverflowError:  # an integer beyond every float
        return False
    return close or (result != result and expected != expected)
