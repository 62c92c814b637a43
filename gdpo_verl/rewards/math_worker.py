"""The worker that asks math-verify; `math_length` starts it and gives it a deadline.

Math-verify evaluates what it compares, so that a copy of the question is right by value. What
an answer has to be beside equal is asked of what was parsed, and of its spelling only where the
parser has computed already, as it does with determinants and fractions.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import sympy
from latex2sympy2_extended.logic import And
from math_verify import LatexExtractionConfig, parse, verify
from sympy import Derivative, Eq, Integral, Limit, Number, Product, Rational, Set, Sum, binomial

from gdpo_verl.rewards.deadline import serve
from gdpo_verl.rewards.math_form import as_list, differ, tidied
from gdpo_verl.rewards.parse_error import ParseError

_IN_A_BOX = (LatexExtractionConfig(boxed_match_priority=0),)
_OPERATORS = (Integral, Sum, Product, Limit, Derivative, binomial)
# Evaluated by the parser itself.
_SPELT = re.compile(r"\\(?:det|[dt]?binom|choose)(?![a-z])|\{[vV]matrix\}")
_MATH_MODE = re.compile(
    r"(?<!\\)\$+|\\[()\[\]]|\\(?:begin|end)\{(?:align(?:ed)?|eqnarray|equation|gather|displaymath)\*?\}"
)
_RELATION = re.compile(r"[=<>,;:&]|\\\\|\\q?quad|\\text|\\(?:[lg]eq?|approx|to)(?![a-z])")
_LONGEST_OF_A_QUESTION, _MOST_OF_A_QUESTION = 300, 60  # characters of a formula, and formulas


def compare(asked: tuple[str, str, str | None]) -> tuple[bool, int]:
    """Return whether an answer is the ground truth; with a `ParseError`.

    Args:
      asked: the ground truth and the answer, LaTeX; and the question, empty when it is not
        known, None for math-verify's verdict alone.
    """
    truth, answer, question = asked
    wanted = _read_ground_truth(truth)
    if wanted is None:
        return False, ParseError.GROUND_TRUTH
    found = _read(as_list(truth, answer))
    if found is None and "=" in answer:  # a left-hand side such as \det(A)
        found = _read(answer := answer.rpartition("=")[2])
    if found is None:
        return False, ParseError.UNREADABLE
    if not verify([wanted], [found], timeout_seconds=None):
        return False, ParseError.NONE
    if question is None:
        return True, ParseError.NONE
    # Equal for math-verify, which multiplies letters and rounds to six places.
    if differ(tidied(truth), tidied(answer)) or _apart(wanted, found):
        return False, ParseError.NONE
    # The ground truth is an answer even where the question shows it.
    as_asked = _ends(answer, found)[-1] == _ends(truth, wanted)[-1]
    results = list(_results(answer, found))
    evaluated = _operators(answer.rpartition("=")[2], results) <= _operators(truth, [wanted])
    if _is_plain(wanted):
        evaluated = evaluated and all(map(_is_plain, results))
    if evaluated and (as_asked or not _is_copy(answer, found, question)):
        return True, ParseError.NONE
    return False, ParseError.NOT_EVALUATED


def _read(latex: str) -> Any:
    """Read a formula with math-verify, as a whole and in one way; None for nothing."""
    how = {"extraction_mode": "first_match", "parsing_timeout": None}
    found = parse(f"\\boxed{{{tidied(latex)}}}", _IN_A_BOX, **how)
    # It returns the text alone when it could not read it, and takes equal texts for equal.
    return None if not found or isinstance(found[0], str) else sympy.sympify(found[0])


_read_ground_truth = lru_cache(maxsize=256)(_read)


def _results(latex: str, formula: Any) -> Iterator[Any]:
    """The right side of the last equals sign, or of that of each equation in a list."""
    if isinstance(formula, Eq):
        yield formula.rhs
    elif isinstance(formula, And) and (last := _read(latex.rpartition("=")[2])) is not None:
        yield last  # of a chain, whose parts are sorted
    elif isinstance(formula, Set) and any(isinstance(part, Eq) for part in formula.args):
        for part in formula.args:
            yield from _results("", part)
    else:
        yield formula


def _operators(latex: str, formulas: list[Any]) -> set[Any]:
    found = {type(part) for formula in formulas for part in formula.atoms(*_OPERATORS)}
    return found | {"binom" if name[-1] in "me" else "det" for name in _SPELT.findall(latex)}


def _is_plain(formula: Any) -> bool:
    """Recognise numbers as people write them; and lists, intervals and matrices of them."""
    if isinstance(formula, Eq):
        return _is_named(formula) and _is_plain(formula.rhs)
    if isinstance(formula, (Set, sympy.Tuple, sympy.MatrixBase)):
        return all(map(_is_plain, formula.args))
    # 3 · 10^5 has one factor of each kind; of 2 · 3, the product is still to be computed.
    factors = formula.args if isinstance(formula, sympy.Mul) else (formula,)
    kinds = [_kind(factor) for factor in factors if factor not in (1, -1)]
    return len(set(kinds)) == len(kinds) and None not in kinds


def _is_named(formula: Any) -> bool:
    return isinstance(formula, Eq) and isinstance(formula.lhs, sympy.Symbol)


def _kind(factor: Any) -> str | None:
    """A number, or what may scale it: a denominator, a power of ten."""
    if isinstance(factor, sympy.Pow):
        base, exponent = factor.args
        scales = exponent == -1 or (base == 10 and exponent.is_Integer)
        return "scale" if isinstance(base, Number) and scales else None
    return "number" if isinstance(factor, (Number, sympy.logic.boolalg.BooleanAtom)) else None


def _apart(wanted: Any, found: Any) -> bool:
    """Find two small numbers to differ: math-verify rounds to six places."""
    a, b = (f.rhs if _is_named(f) else f for f in (wanted, found))
    if a == b or not all(isinstance(x, sympy.Expr) and x.is_number and x.is_finite for x in (a, b)):
        return False
    a, b = a.evalf(), b.evalf()
    real = isinstance(a, Number) and isinstance(b, Number)
    return real and bool(abs(a - b) > 1e-3 * max(abs(a), abs(b)))


def _is_copy(answer: str, found: Any, question: str) -> bool:
    """Recognise a formula of the question, which is no answer to it; a name or a number may be."""
    copies = [
        (digits, formula)
        for digits, formula in _ends(answer, found)
        if formula.args or (isinstance(formula, Rational) and answer.strip("+- .,0123456789"))
    ]
    return bool(copies) and any(key in copies for key in _formulas(question))


def _ends(latex: str, formula: Any) -> list[Any]:
    """The keys of a formula and of what stands right of its last equals sign."""
    return [_key(latex, formula), _key(latex.rpartition("=")[2], next(_results(latex, formula)))]


@lru_cache(maxsize=64)
def _formulas(question: str) -> list[Any]:
    """The keys of a question's formulas, and of the sides of its relations."""
    pieces = [piece.strip().rstrip("?.,;:\\ ") for piece in _MATH_MODE.split(question)]
    pieces = [piece for piece in pieces if len(piece) <= _LONGEST_OF_A_QUESTION]
    pieces += [side.strip() for piece in pieces for side in _RELATION.split(piece)]
    read = [(piece, _read(piece)) for piece in list(dict.fromkeys(pieces))[:_MOST_OF_A_QUESTION]]
    return [_key(piece, formula) for piece, formula in read if formula is not None]


def _key(latex: str, formula: Any) -> tuple[list[str], Any]:
    """A digest that equal formulas share: their digits, and what is in braces."""
    # Digits too: equal numbers in another spelling, as 7/12 for 84/144, are no copy.
    one = isinstance(formula, Set) and len(formula.args) == 1
    return re.findall(r"\d", latex), formula.args[0] if one else formula


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    compare((r"\frac{1}{2}", "0.5", ""))  # imports and grammar, before the first deadline runs
    serve(compare)
