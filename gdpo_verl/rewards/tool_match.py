"""How well the calls that an answer makes match the calls asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

LOWEST, HIGHEST = -3.0, 3.0

MANY = 200
"""More calls of one name than this, and than are asked for, are compared as arrays."""

Same = Callable[[Any, Any], bool]


def match(wanted: list[Any], found: list[Any], same: Same, *, spray_costs: bool) -> float:
    """6 S / M - 3, where S begins with J(names) and M with 1, J being Jaccard's similarity.

    For every call asked for, M grows by 1 + its number of parameters, and S by the best, over
    unused calls of its name, of J(parameter names) + the number of equal parameters; the first
    call that has it is then used.

    Args:
      wanted: the calls asked for, with `name` and `parameters`.
      found: the calls that were made; at least one.
      same: whether two JSON values are equal, `identical` or `operator.eq`.
      spray_costs: each unused call beyond the number asked adds 1 + its number of parameters
        to M.

    Returns:
      float in [-3, 3].

    Raises:
      TypeError, KeyError, AttributeError: something in the lists is no call.
      RecursionError: values are nested too deep to compare.
    """
    if same(wanted, found):
        return HIGHEST
    names = [call["name"] for call in found]
    score = _name_similarity([call["name"] for call in wanted], names)
    highest = 1.0
    used: set[int] = set()
    pools: list[tuple[Any, _Few | _Many]] = []  # no dict: the published rules take any name
    for call in wanted:
        name, parameters = call["name"], call["parameters"]
        highest += 1.0 + len(parameters)
        for known, pool in pools:  # noqa: B007, used behind the loop
            if known == name:
                break
        else:
            given = {i: found[i]["parameters"] for i, other in enumerate(names) if other == name}
            if len(given) <= max(MANY, len(wanted)):
                pool = _Few(given, same)
            else:
                asked = [other["parameters"] for other in wanted if other["name"] == name]
                pool = _Many(given, asked, same)
            pools.append((name, pool))
        best, index = pool.take_best(parameters)
        score += best
        used |= {index} if best > 0 else set()
    if spray_costs and len(found) > len(wanted):
        highest += _spray_cost(found, used, asked=len(wanted))
    return (HIGHEST - LOWEST) * score / highest + LOWEST


def identical(a: Any, b: Any) -> bool:
    """Equality of JSON values: true is not 1, but 1 is 1.0."""
    return bool(a == b) and _of_one_kind(a, b)


def meets_booleans(value: Any) -> bool:
    """Whether a boolean stands in a JSON value, or a 0 or 1 that equals one."""
    if not isinstance(value, (dict, list)):
        return value in (0, 1)
    for item in value.values() if isinstance(value, dict) else value:
        if not isinstance(item, str) and meets_booleans(item):
            return True
    return False


def _of_one_kind(a: Any, b: Any) -> bool:
    """Whether booleans stand at the same places of two equal values."""
    if isinstance(a, dict):
        pairs: Iterable[tuple[Any, Any]] = [(a[key], b[key]) for key in a]
    elif isinstance(a, list):
        pairs = zip(a, b, strict=True)
    else:
        return isinstance(a, bool) == isinstance(b, bool)
    for x, y in pairs:  # noqa: SIM110, all() takes longer on a few
        if not isinstance(x, str) and not _of_one_kind(x, y):
            return False
    return True


def _name_similarity(wanted: list[Any], found: list[Any]) -> float:
    if wanted == found:
        return 1.0
    both = set(wanted) & set(found)
    shared = sum([min(wanted.count(name), found.count(name)) for name in both])
    return shared / (len(wanted) + len(found) - shared)


def _spray_cost(found: list[Any], used: set[int], *, asked: int) -> float:
    """What the unused calls cost, but for the first ones, which fill the places asked for."""
    unused = [call for index, call in enumerate(found) if index not in used]
    sprayed = unused[asked - len(used) :]
    return float(len(sprayed) + sum([len(call["parameters"]) for call in sprayed]))


class _Few:
    """The unused calls of one name, compared one by one."""

    def __init__(self, given: dict[int, Any], same: Same) -> None:
        self._unused = given
        self._same = same

    def take_best(self, wanted: Any) -> tuple[float, int]:
        """The highest similarity, and the first call that has it, which is then used."""
        best, best_index = 0.0, -1
        for index, found in self._unused.items():
            shared = equal = 0
            for key, value in wanted.items():
                if key in found:
                    shared += 1
                    equal += bool(value == found[key] and self._same(value, found[key]))
            union = len(wanted) + len(found.keys()) - shared
            similarity = (shared / union if union else 1.0) + equal
            if similarity > best:
                best, best_index = similarity, index
        self._unused.pop(best_index, None)
        return best, best_index


class _Many:
    """The unused calls of one name, as `_Few` has them, with the same result.

    Each value that is asked for has a number; of each parameter asked for, `_columns` holds
    which of them every call gives it: 0 for another value, -1 where it has no such parameter.
    """

    def __init__(self, given: dict[int, Any], asked: list[Any], same: Same) -> None:
        self._indices = list(given)
        self._numbers: dict[str, _Numbers] = {}
        for parameters in asked:
            for key, value in parameters.items():
                self._numbers.setdefault(key, _Numbers(same)).add(value)
        self._lengths = np.array([len(parameters.keys()) for parameters in given.values()])
        self._columns = {
            key: np.array([number(p[key]) if key in p else -1 for p in given.values()])
            for key, number in self._numbers.items()
        }
        self._used: list[int] = []

    def take_best(self, wanted: dict[str, Any]) -> tuple[float, int]:
        """The highest similarity, and the first call that has it, which is then used."""
        shared, equal = np.zeros((2, len(self._indices)), dtype=int)
        for key, value in wanted.items():
            shared += self._columns[key] >= 0
            if number := self._numbers[key](value):
                equal += self._columns[key] == number
        union = len(wanted) + self._lengths - shared
        similarity = np.where(union > 0, shared / np.maximum(union, 1), 1.0) + equal
        similarity[self._used] = 0.0
        best = int(similarity.argmax())
        if similarity[best] == 0:
            return 0.0, -1
        self._used.append(best)
        return float(similarity[best]), self._indices[best]


class _Numbers:
    """Numbers from 1 for the values asked for; equal values share one."""

    def __init__(self, same: Same) -> None:
        self._same = same
        self._apart = not same(True, 1)
        self._plain: dict[Any, int] = {}
        self._nested: list[tuple[Any, int]] = []

    def add(self, value: Any) -> None:
        if self(value) or value != value:
            return
        number = len(self._plain) + len(self._nested) + 1
        if isinstance(value, (dict, list)):
            self._nested.append((value, number))
        else:
            self._plain[self._key(value)] = number

    def __call__(self, value: Any) -> int:
        """The number of a value, 0 when it equals none that was added."""
        if not isinstance(value, (dict, list)):
            return self._plain.get(self._key(value), 0)
        for other, number in self._nested:
            if self._same(other, value):
                return number
        return 0

    def _key(self, value: Any) -> Any:
        return (value, isinstance(value, bool)) if self._apart else value
