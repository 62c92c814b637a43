"""The tools of this task, and `guarded`, which prevents that a call of a tool harms a run.

verl itself would run a tool in a thread, which cannot be ended, and would accept a result of any
length.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import re
from collections.abc import Callable, Iterable
from typing import Any

from gdpo_verl.rewards.deadline import DeadlinePool, serve_questions
from gdpo_verl.rewards.tool_turns import CUT, EXECUTED, RAISED, TIMED_OUT

MOST = 200  # the largest number of characters of a result
ERROR = "Error: "
ITEMS = ("tea", "salt", "rice", "soap", "flour", "sugar", "beans", "honey")
CITIES = ("Paris", "Tokyo", "Lima", "Oslo", "Cairo", "Delhi", "Quito", "Hanoi")
# The number of smaller units in one larger unit.
UNITS = {("pounds", "ounces"): 16, ("gallons", "quarts"): 4, ("gallons", "pints"): 8}

_FORMULA = re.compile(r"[0-9.+*/() -]+")


def calculate(expression: str) -> str:
    """Compute an arithmetic expression.

    Args:
        expression: numbers with + - * / ** and brackets, such as 3 * (4 + 5)
    """
    try:
        # The expression has no letters, so that it can contain no names, and `eval` is safe.
        value: Any = eval(expression.strip()) if _FORMULA.fullmatch(expression) else None
        return f"{value:.10g}" if isinstance(value, float) else str(int(value))
    except (SyntaxError, TypeError, ArithmeticError) as error:
        expected = "expected numbers with + - * / ** and brackets"
        raise ValueError(f"{expected}, found {expression!a:.60}") from error


def convert(amount: float, source: str, target: str) -> str:
    """Convert an amount into another unit.

    Args:
        amount: how many of the source unit
        source: pounds or gallons
        target: ounces for pounds; quarts or pints for gallons
    """
    factors = {" to ".join(pair): factor for pair, factor in UNITS.items()}
    return calculate(f"{amount} * {factors[_known(factors, f'{source} to {target}')]}")


def look_up(item: str, city: str) -> str:
    """Look up the price of an item in a city.

    Args:
        item: tea, salt, rice, soap, flour, sugar, beans or honey
        city: Paris, Tokyo, Lima, Oslo, Cairo, Delhi, Quito or Hanoi
    """
    place = f"{_known(ITEMS, item)}/{_known(CITIES, city)}"
    return str(2 + hashlib.sha256(place.encode()).digest()[0] % 48)


TOOLS = {tool.__name__: tool for tool in (calculate, convert, look_up)}


def _known(names: Iterable[str], name: object) -> str:
    if name not in [*names]:
        raise ValueError(f"expected one of {', '.join(names)}, found {name!a:.40}")
    return str(name)


def guarded(
    tool: Callable[..., Any], *, deadline: float = 2.0, most: int = MOST
) -> Callable[..., tuple[str, float]]:
    """Return a tool whose calls run in another process, each within a deadline.

    The result is meant for verl's `function_tool`.

    Args:
      tool: a function at the top of a module that can be imported. verl makes the tool's schema
        from the annotations and the docstring in Google's style. The policy gets the texts of the
        tool's errors.
      deadline: the time limit of a call, in seconds. After it the process is killed.
      most: the largest number of characters of a result; the rest is cut.

    Returns:
      the tool, which now returns a text, and `EXECUTED`, `CUT`, `RAISED` or `TIMED_OUT`, which verl
      collects for the reward.

    Raises:
      ImportError: another process cannot import the tool.
    """
    # The other process imports the tool now, and not at the first call during a rollout.
    where = {"module": tool.__module__, "name": tool.__name__}
    text, outcome = _pool.ask([__name__, "find", where, MOST], 60)
    if outcome == RAISED:
        expected = "expected a function at the top of a module on PYTHONPATH"
        raise ImportError(f"{tool.__name__}: {expected}; {text}")

    @functools.wraps(tool)
    def call(**arguments: Any) -> tuple[str, float]:
        question = [tool.__module__, tool.__name__, arguments, most]
        try:
            return tuple(_pool.ask(question, deadline))
        except TimeoutError:
            return f"{ERROR}no answer within {deadline:g} seconds", TIMED_OUT
        except EOFError:
            return f"{ERROR}the tool crashed", RAISED

    return call


def find(module: str, name: str) -> Any:
    """Import a module, and return its tool with this name."""
    return getattr(importlib.import_module(module), name)


def run(question: tuple[str, str, dict[str, Any], int]) -> tuple[str, float]:
    """Run one call, and return its text and its outcome.

    Args:
      question: the module and the name of the tool, its arguments, and the largest number of
        characters of the text.
    """
    module, name, arguments, most = question
    outcome = EXECUTED
    try:
        text = str(find(module, name)(**arguments))
    except Exception as error:  # the policy gets the text of the error, and the rollout continues
        outcome = RAISED
        text = f"{ERROR}{str(error) or type(error).__name__}"
    if len(text) > most:
        text = f"{text[:most]} [cut: the first {most} of {len(text)} characters]"
        outcome = min(outcome, CUT)  # an error that was cut stays an error
    # No tokenizer accepts one half of a surrogate pair.
    return text.encode(errors="backslashreplace").decode(), outcome


# A rollout worker can run two calls at a time.
_pool = DeadlinePool("gdpo_verl.recipes.tool_turns.tools", size=2)

if __name__ == "__main__":
    serve_questions(run)
