"""How well the calls that an answer makes match the calls asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

LOWEST, HIGHEST = -3.0, 3.0

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
    pools: list[tuple[Any, dict[int, Any]]] = []  # no dict: the published rules take any name
    for call in wanted:
        name, parameters = call["name"], call["parameters"]
        highest += 1.0 + len(parameters)
        for known, unused in pools:  # noqa: B007, used behind the loop
            if known == name:
                break
        else:
            unused = {i: found[i]["parameters"] for i, other in enumerate(names) if other == name}
            pools.append((name, unused))
        best, index = _best(parameters, unused, same)
        score += best
        if best > 0:
            used.add(index)
            del unused[index]
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
    for name in found:  # no set of them: an adversary knows many integers of one hash
        hash(name)
    shared = sum([min(wanted.count(name), found.count(name)) for name in set(wanted)])
    return shared / (len(wanted) + len(found) - shared)


def _spray_cost(found: list[Any], used: set[int], *, asked: int) -> float:
    """What the unused calls cost, but for the first ones, which fill the places asked for."""
    unused = [call for index, call in enumerate(found) if index not in used]
    sprayed = unused[asked - len(used) :]
    return float(len(sprayed) + sum([len(call["parameters"]) for call in sprayed]))


def _best(wanted: Any, unused: dict[int, Any], same: Same) -> tuple[float, int]:
    """The highest similarity of parameters, and the first call that has it."""
    best, best_index = 0.0, -1
    for index, found in unused.items():
        shared = equal = 0
        for key, value in wanted.items():
            if key in found:
                shared += 1
                equal += bool(value == found[key] and same(value, found[key]))
        union = len(wanted) + len(found.keys()) - shared
        similarity = (shared / union if union else 1.0) + equal
        if similarity > best:
            best, best_index = similarity, index
    return best, best_index
