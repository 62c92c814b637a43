"""Match the calls in a response with the expected calls."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from operator import eq
from typing import Any

import numpy as np

LOWEST, HIGHEST = -3.0, 3.0

Gains = list[list[float]]
"""The similarity of each expected call (a row) to each call in the response (a column)."""
Pairs = list[tuple[int, int]]
"""Pairs of an expected call and a call in the response, by their numbers."""


def match(wanted: list[Any], made: list[Any], *, strict: bool) -> float:
    """Return 6 S / M - 3, from -3 to 3. `tool_call.correctness_reward` defines S and M.

    Args:
      wanted: the expected calls, with `name` and `parameters`.
      made: the calls in the response; there is at least one.
      strict: False for the published rule. With that rule, each expected call, in order, takes the
        best call that is left, and the first one of equally good calls.

    Raises:
      TypeError, KeyError, AttributeError: a value is not a call.
      RecursionError: a value is nested too deeply.
    """
    same = identical if strict else eq
    if same(wanted, made):
        return HIGHEST
    score = _jaccard([call["name"] for call in wanted], [call["name"] for call in made])
    highest = 1.0 + sum(1.0 + len(call["parameters"]) for call in wanted)
    gains: Gains = []
    for call in wanted:
        gains.append([_similarity(call, other, same) for other in made])
    pairs = _best_pairs(gains) if strict else _pairs_in_turn(gains)
    score += sum(gains[row][column] for row, column in pairs)
    if strict:
        highest += _surplus(wanted, made, pairs)
    return (HIGHEST - LOWEST) * score / highest + LOWEST


def identical(a: Any, b: Any) -> bool:
    """Return whether two JSON values are equal. true is not equal to 1, but 1 is equal to 1.0."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(identical(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(identical, a, b))
    return bool(a == b) and isinstance(a, bool) == isinstance(b, bool)


def _jaccard(a: list[Any], b: list[Any]) -> float:
    """Return the Jaccard similarity of two multisets."""
    shared = (Counter(a) & Counter(b)).total()
    return shared / (len(a) + len(b) - shared)


def _similarity(wanted: Any, made: Any, same: Callable[[Any, Any], bool]) -> float:
    """Return J(parameter names) + the number of equal parameters; 0 for different names."""
    if wanted["name"] != made["name"]:
        return 0.0
    expected = wanted["parameters"]
    returned = made["parameters"]
    shared = expected.keys() & returned.keys()
    union = len(expected) + len(returned) - len(shared)
    equal = sum(same(expected[key], returned[key]) for key in shared)
    return (len(shared) / union if union else 1.0) + equal


def _pairs_in_turn(gains: Gains) -> Pairs:
    """Find the pairs of the published rule: each expected call takes the best call that is left."""
    unused = list(range(len(gains[0])))
    pairs = []
    for row, gain in enumerate(gains):
        best = max(unused, key=gain.__getitem__, default=-1)
        # A call that has nothing in common with the expected call is left for the others.
        if best >= 0 and gain[best] > 0:
            pairs.append((row, best))
            unused.remove(best)
    return pairs


def _best_pairs(gains: Gains) -> Pairs:
    """Find the pairs with the largest sum of similarities.

    With these pairs, correcting a call in the response never lowers the sum. This is the Hungarian
    method. Each expected call (row) is added in turn, along the cheapest chain of exchanges that
    ends in a free column. Each column has a price, in which the costs of exchanges are measured.
    """
    height = len(gains)
    columns = len(gains[0])
    # Each row may also take one of the added columns, which mean that it has no partner.
    table = np.pad(np.array(gains), ((0, 0), (0, height)))
    price = np.zeros(columns + height)
    owner = np.full(columns + height, -1)
    taken = [-1] * height
    for entering in range(height):
        cost = np.full_like(price, math.inf)
        before = np.zeros_like(owner)
        free = np.ones_like(owner, dtype=bool)
        row = entering
        walked = 0.0
        while row >= 0:
            profit = table[row] - price
            reached = walked + profit.max() - profit
            cheaper = free & (reached < cost)
            cost[cheaper] = reached[cheaper]
            before[cheaper] = row
            column = int(np.where(free, cost, math.inf).argmin())
            free[column] = False
            row = owner[column]
            walked = cost[column]
        price += np.maximum(0.0, walked - cost)
        while column >= 0:  # go back along the chain; each row gets the column of the next one
            row = int(before[column])
            previous = taken[row]
            owner[column] = row
            taken[row] = column
            column = previous
    # A pair of calls without anything in common is dropped, so that its call counts as surplus.
    return [(row, column) for row, column in enumerate(taken) if table[row, column] > 0]


def _surplus(wanted: list[Any], made: list[Any], pairs: Pairs) -> float:
    """Return the number that surplus calls and parameters add to M.

    It is 1 + the number of parameters for each unmatched call beyond the expected number, and 1 for
    each parameter of a matched call beyond twice the expected number.
    """
    used = {column for _, column in pairs}
    unused = [call for column, call in enumerate(made) if column not in used]
    beyond = unused[len(wanted) - len(used) :]
    penalty = sum(1 + len(call["parameters"]) for call in beyond)
    for row, column in pairs:
        expected = len(wanted[row]["parameters"])
        penalty += max(0, len(made[column]["parameters"]) - 2 * expected)
    return float(penalty)
