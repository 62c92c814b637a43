"""Compare the result of a program with the expected result. Both are plain data here.

A program may try to exploit the comparison. Therefore nothing in its result is executed, and a
result that is larger than the expected one is not read.

Only a number that the test expects as a decimal has a tolerance. The tolerance is a millionth of
the larger of the two numbers, and at least 1e-9. Infinity and NaN are equal only to themselves.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np

from gdpo_verl.sandbox.child import KINDS, decode, encode


def same_text(result: str, expected: str) -> bool:
    """Return whether two texts are equal line by line, apart from white space.

    A number that has a point or an exponent in `expected` is compared with the tolerance.
    """
    result, expected = result.strip(), expected.strip()
    # The lines are counted first, so that no list of a million lines is created.
    if result.count("\n") != expected.count("\n"):
        return False
    return all(map(_same_line, result.split("\n"), expected.split("\n")))


def _same_line(result: str, expected: str) -> bool:
    if result == expected:
        return True
    wanted_words = expected.split()
    # A line may be megabytes long, so it is split into only a few words.
    words = result.split(None, len(wanted_words))
    return len(words) == len(wanted_words) and all(map(_same_word, words, wanted_words))


def _same_word(result: str, expected: str) -> bool:
    if result == expected or "_" in result or not any(mark in expected for mark in ".eE"):
        return result == expected  # float() would read 1_0 as 10
    try:
        number = float(expected)
        # Numbers that are too large for a float all become infinity, but may differ. Only a word
        # for infinity, without digits, equals infinity.
        if math.isinf(number) and any(map(str.isdigit, result)):
            return False
        return _close(float(result), number)
    except ValueError:
        return False


def same_lines(result: str, expected: str) -> bool:
    """Compare like verl: lines as texts, or all lines as numbers with numpy.allclose.

    White space around the text and around printed lines does not count. Empty lines do not count
    either.
    """
    lines = result.splitlines()
    texts = "\n".join(lines), "\n".join(map(str.strip, lines))
    if expected.strip() in map(str.strip, texts):
        return True
    expected_lines = [line.strip() for line in expected.split("\n") if line]
    printed = [line for line in lines if line]
    return expected_lines in (lines, printed) or _all_close(printed, expected_lines)


def _all_close(result: list[str], expected: list[str]) -> bool:
    """Compare numbers with numpy.allclose. Integers without a sign must be equal, so this is False.

    Equal integers have already been found equal as texts.
    """
    if len(result) != len(expected) or all(map(str.isdigit, result + expected)):
        return False
    try:
        return np.allclose([float(word) for word in result], [float(word) for word in expected])
    except ValueError:
        return False


def same_value(text: str, expected: Any) -> bool:
    """Return whether the value of a call is the expected value.

    Args:
      text: the value as JSON of `gdpo_verl.sandbox.child.encode`. It comes from a program, so it
        may be any text.
      expected: a JSON value. A list with one entry may also mean this entry, as in some data sets.

    Raises:
      ValueError, TypeError, LookupError, RecursionError: the text is not such JSON.
    """
    if _size(text) > _size(json.dumps(encode(expected))):
        return False
    result = decode(json.loads(text), _JSON_KINDS)
    wrapped = isinstance(expected, list) and len(expected) == 1 and _same(result, expected[0])
    return wrapped or _same(result, expected)


def _size(text: str) -> int:
    """Count the brackets and commas of a JSON text.

    Equal values have equally many of them. A text with more is not parsed, because parsing could
    take long.
    """
    return text.count("[") + text.count(",")


def _with_text_keys(items: list[Any]) -> dict[str, Any]:
    """Return a dict with text keys, as in JSON.

    A program could choose numbers with equal hashes as keys, and make the dict slow. It cannot
    foresee the hash of a text.
    """
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
    except OverflowError:  # the integer is too large for a float
        return False
    return close or (result != result and expected != expected)
