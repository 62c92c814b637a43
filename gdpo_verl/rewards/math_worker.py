"""The worker that compares formulas with math-verify. `math_length` starts it with a deadline.

math-verify evaluates the formulas that it compares, so a copy of the question would be equal to the
ground truth. Further rules reject such answers. These rules look at the parsed formula. They look
at the LaTeX only if the parser itself has already computed a value, as it does for determinants and
fractions.
"""

from __future__ import annotations

import logging
import re
from functools import lru_cache
from typing import Any

import sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig, latex2sympy
from latex2sympy2_extended.logic import And
from latex2sympy2_extended.math_normalization import NormalizationConfig, normalize_latex
from latex2sympy2_extended.sets import FiniteSet
from math_verify import verify
from sympy import (
    Derivative,
    Eq,
    Integral,
    Intersection,
    Limit,
    Number,
    Product,
    Rational,
    Set,
    Sum,
    Union,
    binomial,
)
from sympy.core.function import AppliedUndef

from gdpo_verl.rewards.deadline import serve_questions
from gdpo_verl.rewards.math_form import OF_ANGLES, as_asked, differ, tidied, without_units
from gdpo_verl.rewards.parse_error import ParseError

# The parser must not drop units, because `math_form` reads them. Capital and small letters are
# different.
_AS_WRITTEN = NormalizationConfig(units=False, malformed_operators=True, nits=True, boxed="none")
_OWN_CASE = ConversionConfig(lowercase_symbols=False)
_INEQUALITIES = (sympy.Lt, sympy.Le, sympy.Gt, sympy.Ge)
_OPERATORS = (Integral, Sum, Product, Limit, Derivative, binomial)
# Operators that the parser itself evaluates, so that they are not in the parsed formula.
_SPELT = re.compile(r"\\(?:det|[dt]?binom|choose)(?![a-z])|\{[vV]matrix\}")
_MATH_MODE = re.compile(
    r"(?<!\\)\$+|\\[()\[\]]|\\(?:begin|end)\{(?:align(?:ed)?|eqnarray|equation|gather|displaymath)\*?\}"
)
_RELATION = re.compile(r"[=<>,;:&]|\\\\|\\q?quad|\\text|\\(?:[lg]eq?|approx|to)(?![a-z])")
# The largest number of characters of a formula of a question, and the largest number of formulas.
_LONGEST_OF_A_QUESTION, _MOST_OF_A_QUESTION = 300, 60


def compare(pair: tuple[str, str, str | None]) -> tuple[bool, int]:
    """Return whether an answer is correct, and a `ParseError`.

    Args:
      pair: the ground truth and the answer in LaTeX, and the question. An empty question is not
        known. If the question is None, only equality is checked.
    """
    truth, answer, question = pair
    answer = tidied(as_asked(truth, answer))
    (truth, answer), written = without_units(tidied(truth), answer)
    wanted = _read(truth)
    if wanted is None:
        return False, ParseError.GROUND_TRUTH
    parsed = _read(answer)
    if parsed is None:
        return False, ParseError.UNREADABLE
    equal = _agree(wanted, parsed)
    if question is None or not equal:
        return equal, ParseError.NONE
    # math-verify treats some formulas as equal that are not, because it multiplies letters, and
    # rounds to six places.
    if differ(truth, answer) or _apart(wanted, parsed):
        return False, ParseError.NONE
    # Whether a unit of the answer was converted. For example, the ground truth is 500 m, and the
    # answer is 0.5 km, which may be a copy of the question.
    scaled = answer != written[1]
    truth, answer = written
    wanted = _read(truth)
    parsed = _read(answer)
    # If the question itself shows the ground truth, it is still accepted.
    same = _key(answer, parsed) == _key(truth, wanted)
    result = _values(parsed)
    further_operators = _operators(answer.rpartition("=")[2], result) - _operators(truth, wanted)
    if further_operators:
        return False, ParseError.NOT_EVALUATED
    if _is_plain(wanted) and not _is_plain(result):
        return False, ParseError.NOT_EVALUATED
    if not same and _is_copy(answer, parsed, question, scaled):
        return False, ParseError.NOT_EVALUATED
    return True, ParseError.NONE


def _read(latex: str) -> Any:
    """Read a formula with math-verify's parser; None if it cannot be read.

    A chain of equations becomes one equation of its two ends.
    """
    return _parsed(normalize_latex(latex, _AS_WRITTEN))


@lru_cache(maxsize=128)
def _parsed(latex: str) -> Any:
    in_degrees = OF_ANGLES.search(latex) is not None
    try:
        formula = sympy.sympify(latex2sympy(latex, None, True, in_degrees, None, _OWN_CASE))
    except Exception:  # the parser raises errors of any kind
        # Of an equation such as \det(A) = 3, the right side may be readable.
        one = "=" in latex and not re.search("[,;]", latex)
        return _parsed(latex.rpartition("=")[2]) if one else None
    if isinstance(formula, And) and all(isinstance(part, Eq) for part in formula.args):
        parts = formula._unsorted_args
        return Eq(parts[0].lhs, parts[-1].rhs, evaluate=False)
    return _solved(formula)


def _agree(wanted: Any, parsed: Any) -> bool:
    """Return whether math-verify finds two formulas equal.

    Equations, and formulas that have a name, are compared part by part.
    """
    if isinstance(wanted, Eq):
        if isinstance(parsed, Eq):
            return _same_equation(wanted, parsed)
        return _is_named(wanted) and _agree(wanted.rhs, parsed)
    named = wanted.has(Eq) and parsed.has(Eq)
    pair = [_values(wanted, named)], [_values(parsed, named)]
    return bool(verify(*pair, timeout_seconds=None))


def _solved(formula: Any) -> Any:
    """Return inequalities in one letter as the set of its values, and other formulas unchanged.

    Inequalities in several letters are written with their smaller side first.
    """
    parts = formula.args if isinstance(formula, (And, FiniteSet)) else (formula,)
    if not parts or not all(isinstance(part, _INEQUALITIES) for part in parts):
        return formula
    if len(formula.free_symbols) != 1:
        return FiniteSet(*[part.canonical for part in parts])
    try:
        sets = [part.as_set() for part in parts]
    except NotImplementedError:  # for example, sin x < 1/2
        return formula
    overlap = Intersection(*sets)
    # The parser does not distinguish "or" and "and". If the sets do not overlap, "or" is meant.
    return Union(*sets) if isinstance(formula, FiniteSet) and overlap.is_empty else overlap


def _same_equation(wanted: Any, parsed: Any) -> bool:
    """Return whether two equations are the same, also if one is a multiple of the other."""
    if _agree(wanted.lhs, parsed.lhs) and _agree(wanted.rhs, parsed.rhs):
        # A statement such as 5^4 = 625 must have the same numbers, because 625 = 625 is equal, too.
        return _is_named(wanted) or wanted.atoms() == parsed.atoms()
    # math-verify itself is not used here, because it finds all equations without a real solution
    # equal.
    try:
        difference = sympy.simplify(wanted.lhs - wanted.rhs)
        ratio = sympy.simplify(difference / (parsed.lhs - parsed.rhs))
    except Exception:  # sympy raises errors for sets and matrices
        return False
    # Every equation between numbers, such as 0 = 1, is a multiple of every other one, so these are
    # excluded.
    return bool(ratio.is_number and ratio.is_finite and ratio != 0 and not difference.is_number)


def _values(formula: Any, named: bool = False) -> Any:
    """Return the value that an equation gives; other formulas stay as they are.

    The value of one equation is its right side. Several equations that give values become a point,
    with its values in the order of the names, or a set of values.

    Args:
      formula: the formula.
      named: whether both formulas have names. The names are then compared, so that the values form
        a point.
    """
    if isinstance(formula, Eq):
        return formula.rhs
    if not isinstance(formula, FiniteSet) or not all(map(_is_named, formula.args)):
        return formula
    parts = sorted(formula.args, key=lambda part: str(part.lhs))
    letters = {str(part.lhs).partition("_")[0] for part in parts}
    # x_1 and x_2 are two solutions for one unknown, and form a set.
    kind = sympy.Tuple if named or len(letters) == len(parts) else FiniteSet
    return kind(*[part.rhs for part in parts])


def _operators(latex: str, formula: Any) -> set[Any]:
    """Return the operators of a formula that are still to be evaluated."""
    operators: set[Any] = {type(part) for part in formula.atoms(*_OPERATORS)}
    for name in _SPELT.findall(latex):
        operators.add("binom" if name[-1] in "me" else "det")
    return operators


def _is_plain(formula: Any) -> bool:
    """Return whether a formula has only numbers as people write them.

    Lists, intervals and matrices of such numbers are accepted, too.
    """
    for part in _parts(formula):
        # 3 · 10^5 has one factor of each kind. 2 · 3 has two factors of one kind, so the product
        # is still to be computed.
        kinds = [_kind(factor) for factor in sympy.Mul.make_args(part) if factor not in (1, -1)]
        if len(set(kinds)) < len(kinds) or None in kinds:
            return False
    return True


def _parts(formula: Any) -> list[Any]:
    """Return the formulas in lists, intervals and matrices; for a named formula, its value."""
    if _is_named(formula) or not isinstance(formula, Eq):
        formula = _values(formula)
    return list(sympy.flatten([formula], cls=(Set, sympy.Tuple, sympy.MatrixBase)))


def _is_named(formula: Any) -> bool:
    """Return whether a formula is an equation that gives the value of a letter or of a function."""
    if not isinstance(formula, Eq):
        return False
    name = formula.lhs
    named = isinstance(name, AppliedUndef) or (name.is_Atom and not isinstance(name, Number))
    return named and not formula.rhs.has(name)


def _kind(factor: Any) -> str | None:
    """Return whether a factor is a number, or a scale of a number; None for other factors.

    A scale is a denominator or a power of ten.
    """
    if isinstance(factor, sympy.Pow):
        base, exponent = factor.args
        scales = exponent == -1 or (base == 10 and exponent.is_Integer)
        return "scale" if isinstance(base, Number) and scales else None
    return "number" if isinstance(factor, (Number, sympy.logic.boolalg.BooleanAtom)) else None


def _apart(wanted: Any, parsed: Any) -> bool:
    """Return whether two numbers differ, also within lists.

    This finds small numbers that differ, because math-verify rounds to six places.
    """
    pairs = zip(_numbers(wanted), _numbers(parsed), strict=False)
    return any(abs(a - b) > 1e-3 * max(abs(a), abs(b)) for a, b in pairs)


def _numbers(formula: Any) -> list[Any]:
    """Return the real numbers in a formula or in a list of formulas, in ascending order."""
    parts = [part for part in _parts(formula) if isinstance(part, sympy.Expr) and part.is_number]
    values = [part.evalf() for part in parts]
    return sorted(value for value in values if isinstance(value, Number) and value.is_finite)


def _is_copy(answer: str, parsed: Any, question: str, scaled: bool) -> bool:
    """Return whether an answer is a copy of a formula of the question.

    A name or a plain number is not treated as a copy, because it may be the right answer. If its
    unit had to be converted (`scaled`), it is.
    """
    key = _key(answer, parsed)
    formula = key[1]
    is_fraction = isinstance(formula, Rational) and answer.strip("+- .,0123456789")
    return bool(formula.args or scaled or is_fraction) and key in _formulas(question)


@lru_cache(maxsize=64)
def _formulas(question: str) -> list[Any]:
    """Return the keys of the formulas of a question, and of the sides of its relations."""
    pieces = [piece.strip().rstrip("?.,;:\\ ") for piece in _MATH_MODE.split(question)]
    pieces = [piece for piece in pieces if len(piece) <= _LONGEST_OF_A_QUESTION]
    pieces += [side.strip() for piece in pieces for side in _RELATION.split(piece)]
    pieces = [tidied(piece) for piece in dict.fromkeys(pieces)][:_MOST_OF_A_QUESTION]
    pieces = [without_units(piece, "")[1][0] for piece in pieces]
    read = [(piece, _read(piece)) for piece in pieces]
    return [_key(piece, formula) for piece, formula in read if formula is not None]


def _key(latex: str, formula: Any) -> tuple[list[str], Any]:
    """Return a key that two formulas share if one is a copy of the other.

    It has the digits, and the formula without a name and without braces.
    """
    if _is_named(formula):
        latex = latex.rpartition("=")[2]
        formula = formula.rhs
    if isinstance(formula, Set) and len(formula.args) == 1:
        formula = formula.args[0]
    # The key has the digits, because an equal number in another spelling, such as 7/12 for 84/144,
    # is not a copy.
    return re.findall(r"\d", latex), formula


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    # This call loads imports, units and the grammar, so that they do not count as part of the first
    # deadline.
    compare((r"\frac{1}{2}\text{ m}", "0.5", ""))
    serve_questions(compare)
