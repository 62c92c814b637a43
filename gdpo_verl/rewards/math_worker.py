"""The worker that asks math-verify; `math_length` starts it and gives it a deadline.

math-verify evaluates what it compares, so that a copy of the question has the right value. The
further rules for an answer look at the parsed formula. They look at its spelling only where the
parser has computed already, as it does with determinants and fractions.
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

# Units are not dropped (`math_form` reads them), and a capital is another letter.
_AS_WRITTEN = NormalizationConfig(units=False, malformed_operators=True, nits=True, boxed="none")
_OWN_CASE = ConversionConfig(lowercase_symbols=False)
_INEQUALITIES = (sympy.Lt, sympy.Le, sympy.Gt, sympy.Ge)
_OPERATORS = (Integral, Sum, Product, Limit, Derivative, binomial)
# Evaluated by the parser itself.
_SPELT = re.compile(r"\\(?:det|[dt]?binom|choose)(?![a-z])|\{[vV]matrix\}")
_MATH_MODE = re.compile(
    r"(?<!\\)\$+|\\[()\[\]]|\\(?:begin|end)\{(?:align(?:ed)?|eqnarray|equation|gather|displaymath)\*?\}"
)
_RELATION = re.compile(r"[=<>,;:&]|\\\\|\\q?quad|\\text|\\(?:[lg]eq?|approx|to)(?![a-z])")
_LONGEST_OF_A_QUESTION, _MOST_OF_A_QUESTION = 300, 60  # characters of a formula, and formulas


def compare(pair: tuple[str, str, str | None]) -> tuple[bool, int]:
    """Return whether an answer is the ground truth; with a `ParseError`.

    Args:
      pair: the ground truth and the answer, LaTeX; and the question, empty when it is not
        known, None for equality alone.
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
    # Equal for math-verify, which multiplies letters and rounds to six places.
    if differ(truth, answer) or _apart(wanted, parsed):
        return False, ParseError.NONE
    scaled = answer != written[1]  # 0.5 km of the question for 500 m
    truth, answer = written
    wanted = _read(truth)
    parsed = _read(answer)
    # The ground truth is an answer even where the question shows it.
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
    """Read a formula with math-verify's parser, a chain of equations as its two ends.

    None for what it cannot read.
    """
    return _parsed(normalize_latex(latex, _AS_WRITTEN))


@lru_cache(maxsize=128)
def _parsed(latex: str) -> Any:
    in_degrees = OF_ANGLES.search(latex) is not None
    try:
        formula = sympy.sympify(latex2sympy(latex, None, True, in_degrees, None, _OWN_CASE))
    except Exception:  # of any kind: the parser has none of its own
        one = "=" in latex and not re.search("[,;]", latex)
        return _parsed(latex.rpartition("=")[2]) if one else None  # of \det(A) = 3 the 3
    if isinstance(formula, And) and all(isinstance(part, Eq) for part in formula.args):
        parts = formula._unsorted_args
        return Eq(parts[0].lhs, parts[-1].rhs, evaluate=False)
    return _solved(formula)


def _agree(wanted: Any, parsed: Any) -> bool:
    """Ask math-verify; equations, and what has a name, are compared part by part."""
    if isinstance(wanted, Eq):
        if isinstance(parsed, Eq):
            return _same_equation(wanted, parsed)
        return _is_named(wanted) and _agree(wanted.rhs, parsed)
    named = wanted.has(Eq) and parsed.has(Eq)
    pair = [_values(wanted, named)], [_values(parsed, named)]
    return bool(verify(*pair, timeout_seconds=None))


def _solved(formula: Any) -> Any:
    """Inequalities in one letter as the set of its values; other formulas as they are.

    Of inequalities in several letters, each gets its smaller side first.
    """
    parts = formula.args if isinstance(formula, (And, FiniteSet)) else (formula,)
    if not parts or not all(isinstance(part, _INEQUALITIES) for part in parts):
        return formula
    if len(formula.free_symbols) != 1:
        return FiniteSet(*[part.canonical for part in parts])
    try:
        sets = [part.as_set() for part in parts]
    except NotImplementedError:  # sin x < 1/2
        return formula
    overlap = Intersection(*sets)
    # The parser reads "or" and "and" alike.
    return Union(*sets) if isinstance(formula, FiniteSet) and overlap.is_empty else overlap


def _same_equation(wanted: Any, parsed: Any) -> bool:
    if _agree(wanted.lhs, parsed.lhs) and _agree(wanted.rhs, parsed.rhs):
        # A statement such as 5^4 = 625 is made of its numbers.
        return _is_named(wanted) or wanted.atoms() == parsed.atoms()
    # Math-verify finds all equations without a real solution equal.
    try:
        difference = sympy.simplify(wanted.lhs - wanted.rhs)
        ratio = sympy.simplify(difference / (parsed.lhs - parsed.rhs))
    except Exception:  # of sympy's own, for sets and matrices
        return False
    # Of 0 = 1 any other is a multiple.
    return bool(ratio.is_number and ratio.is_finite and ratio != 0 and not difference.is_number)


def _values(formula: Any, named: bool = False) -> Any:
    """The right side of an equation; of several that give values, a point or a set of these.

    A point has its values in the order of the names. Other formulas stay as they are.

    Args:
      named: the names are compared, so that the values form a point.
    """
    if isinstance(formula, Eq):
        return formula.rhs
    if not isinstance(formula, FiniteSet) or not all(map(_is_named, formula.args)):
        return formula
    parts = sorted(formula.args, key=lambda part: str(part.lhs))
    letters = {str(part.lhs).partition("_")[0] for part in parts}
    # x_1 and x_2 are solutions for one unknown.
    kind = sympy.Tuple if named or len(letters) == len(parts) else FiniteSet
    return kind(*[part.rhs for part in parts])


def _operators(latex: str, formula: Any) -> set[Any]:
    operators: set[Any] = {type(part) for part in formula.atoms(*_OPERATORS)}
    for name in _SPELT.findall(latex):
        operators.add("binom" if name[-1] in "me" else "det")
    return operators


def _is_plain(formula: Any) -> bool:
    """Recognise numbers as people write them; and lists, intervals and matrices of them."""
    for part in _parts(formula):
        # 3 · 10^5 has one factor of each kind; of 2 · 3, the product is still to be computed.
        kinds = [_kind(factor) for factor in sympy.Mul.make_args(part) if factor not in (1, -1)]
        if len(set(kinds)) < len(kinds) or None in kinds:
            return False
    return True


def _parts(formula: Any) -> list[Any]:
    """The formulas in lists, intervals and matrices; of what has a name, its value."""
    if _is_named(formula) or not isinstance(formula, Eq):
        formula = _values(formula)
    return list(sympy.flatten([formula], cls=(Set, sympy.Tuple, sympy.MatrixBase)))


def _is_named(formula: Any) -> bool:
    """Recognise an equation that gives the value of a letter, or of a function somewhere."""
    if not isinstance(formula, Eq):
        return False
    name = formula.lhs
    named = isinstance(name, AppliedUndef) or (name.is_Atom and not isinstance(name, Number))
    return named and not formula.rhs.has(name)


def _kind(factor: Any) -> str | None:
    """A number, or what may scale it: a denominator, a power of ten."""
    if isinstance(factor, sympy.Pow):
        base, exponent = factor.args
        scales = exponent == -1 or (base == 10 and exponent.is_Integer)
        return "scale" if isinstance(base, Number) and scales else None
    return "number" if isinstance(factor, (Number, sympy.logic.boolalg.BooleanAtom)) else None


def _apart(wanted: Any, parsed: Any) -> bool:
    """Find two small numbers to differ, in lists too: math-verify rounds to six places."""
    pairs = zip(_numbers(wanted), _numbers(parsed), strict=False)
    return any(abs(a - b) > 1e-3 * max(abs(a), abs(b)) for a, b in pairs)


def _numbers(formula: Any) -> list[Any]:
    """The real numbers in a formula, or in a list of formulas, from the smallest on."""
    parts = [part for part in _parts(formula) if isinstance(part, sympy.Expr) and part.is_number]
    values = [part.evalf() for part in parts]
    return sorted(value for value in values if isinstance(value, Number) and value.is_finite)


def _is_copy(answer: str, parsed: Any, question: str, scaled: bool) -> bool:
    """Recognise a formula of the question, which is no answer to it; a name or a number may be."""
    key = _key(answer, parsed)
    formula = key[1]
    is_fraction = isinstance(formula, Rational) and answer.strip("+- .,0123456789")
    return bool(formula.args or scaled or is_fraction) and key in _formulas(question)


@lru_cache(maxsize=64)
def _formulas(question: str) -> list[Any]:
    """The keys of a question's formulas, and of the sides of its relations."""
    pieces = [piece.strip().rstrip("?.,;:\\ ") for piece in _MATH_MODE.split(question)]
    pieces = [piece for piece in pieces if len(piece) <= _LONGEST_OF_A_QUESTION]
    pieces += [side.strip() for piece in pieces for side in _RELATION.split(piece)]
    pieces = [tidied(piece) for piece in dict.fromkeys(pieces)][:_MOST_OF_A_QUESTION]
    pieces = [without_units(piece, "")[1][0] for piece in pieces]
    read = [(piece, _read(piece)) for piece in pieces]
    return [_key(piece, formula) for piece, formula in read if formula is not None]


def _key(latex: str, formula: Any) -> tuple[list[str], Any]:
    """Return what equal formulas share: their digits, and what is named or in braces."""
    if _is_named(formula):
        latex = latex.rpartition("=")[2]
        formula = formula.rhs
    if isinstance(formula, Set) and len(formula.args) == 1:
        formula = formula.args[0]
    # Digits too: equal numbers in another spelling, as 7/12 for 84/144, are no copy.
    return re.findall(r"\d", latex), formula


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    # Imports, units and grammar, before the first deadline runs.
    compare((r"\frac{1}{2}\text{ m}", "0.5", ""))
    serve_questions(compare)
