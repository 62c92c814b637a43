"""The declaration of a reward function's components: names, ranges, and which may be missing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

TOKENS, MINI_BATCH = "response_tokens", "mini_batch"
"""The columns that we add to verl's dumps, in addition to the advantages."""
# Names that no component may have. A component with the name of a column of the dumps would
# overwrite that column, and verl's validation collects the scores under the name `reward`
# (verl/trainer/ppo/v1/trainer_base.py, `_validate`).
RESERVED = ("score", "reward", "input", "output", "gts", "uid", "step", TOKENS, MINI_BATCH)
BY_TURN = "_by_turn"
"""The suffix of the column that has the list of a per-turn component."""
BY_CRITERION = "_by_criterion"
"""The suffix of the column that has the mapping of a component by criterion."""
ADVANTAGE = "_advantage"
"""The suffix of the columns with advantages, which we add to the dumps."""


@dataclass(frozen=True)
class Component:
    """One named reward component."""

    name: str  # the key in the dict that the reward function returns
    low: float | None = None  # the lowest possible value; None when unbounded
    high: float | None = None  # the highest possible value; None when unbounded
    # The key may be missing, for example for some data sources. The component is then *not scored*,
    # as if its value were None or NaN.
    optional: bool = False
    # If the component is not scored in a larger share of a batch's responses, the run ends with an
    # error. None means that there is no limit.
    most_unscored: float | None = None
    # The value is a list with one number for each turn of the model. `low` and `high` are the
    # limits of one turn.
    by_turn: bool = False
    # The value is a mapping with one number for each criterion of the prompt. `low` and `high` are
    # the limits of the rubric's total (`rubric_number`).
    by_criterion: bool = False

    def __post_init__(self) -> None:
        if self.by_turn and self.by_criterion:
            raise ValueError(
                f"component {self.name!r}: it is declared by turn and by criterion. Declare one of "
                "them."
            )
        ends = [end for end in (self.low, self.high) if end is not None]
        if not all(isinstance(end, Real) and math.isfinite(end) for end in ends):
            fault = "finite numbers, or None where unbounded"
        elif ends != sorted(ends):
            fault = "low <= high"
        else:
            return
        raise ValueError(
            f"component {self.name!r}: expected {fault}, found low={self.low!r}, high={self.high!r}"
        )

    @property
    def range(self) -> tuple[float, float] | None:
        """The lowest and the highest value; None unless both are declared and differ."""
        if self.low is None or self.high is None or self.low == self.high:
            return None
        return float(self.low), float(self.high)


def declares(
    *components: Component | str,
    by_turn: Sequence[str] = (),
    by_criterion: Sequence[str] = (),
) -> Callable[[F], F]:
    """Declare the components that a reward function returns.

    The estimator, the metrics and the checks read this declaration. The function may be sync or
    async. It returns a dict with `score`, every component that is not optional, and any further
    values to log. The dict has the same keys for every response.

    >>> @declares(Component("format", 0, 1), "correctness")
    ... def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    ...     return {"score": 0.0, "format": 0.0, "correctness": 0.0}
    >>> [component.name for component in declared_components(compute_score)]
    ['format', 'correctness']

    Args:
      components: the components. One without a range may be given by its name alone.
      by_turn: the names of the components whose value is a list, with one number for each turn of
        the model. Names that are not among `components` are added after them. In verl the number
        of the model's turns is `extra_info["num_turns"] // 2`, because verl also counts the
        question and the results of the tools.
      by_criterion: the names of the components whose value is a mapping, with one entry for each
        criterion of the prompt. An entry is a number, None if it is not scored, or
        ``{"value": number, "weight": number}``. The default weight is 1.
    """
    declared = {component.name: component for component in _checked(components)}
    for name in as_names(by_turn):
        declared[name] = replace(declared.get(name, Component(name)), by_turn=True)
    for name in as_names(by_criterion):
        declared[name] = replace(declared.get(name, Component(name)), by_criterion=True)

    def attach(function: F) -> F:
        function.components = _checked(declared.values())  # type: ignore[attr-defined]
        return function

    return attach


def as_names(names: Sequence[str]) -> Sequence[str]:
    """Return a sequence of names; a single name is allowed, too."""
    # A string is itself a sequence, and would be read as one name for each letter.
    return (names,) if isinstance(names, str) else names


def declared_components(reward: Any) -> tuple[Component, ...]:
    """Return the components that a reward function or a reward manager class declares.

    The result is empty if nothing is declared. Raises ValueError for an entry that is neither a
    `Component` nor a name, and for the names that `check_names` rejects.
    """
    return _checked(getattr(reward, "components", None) or ())


def _checked(entries: Iterable[Component | str]) -> tuple[Component, ...]:
    """Return the entries as components, after checking their names."""
    components = as_components(entries)
    check_names([component.name for component in components], "components")
    return components


def as_components(entries: Iterable[Component | str]) -> tuple[Component, ...]:
    """Return the entries as components. An entry is a `Component`, or the name of a component.

    Raises ValueError for an entry of another type, and for a name that occurs twice.
    """
    if isinstance(entries, str):  # a string would be read as one name for each letter
        entries = (entries,)
    if not isinstance(entries, Iterable):
        raise ValueError(f"components: expected names or Component objects, found {entries!r}")
    components = tuple(Component(entry) if isinstance(entry, str) else entry for entry in entries)
    names = [getattr(component, "name", component) for component in components]
    if not all(isinstance(component, Component) for component in components):
        raise ValueError(f"components: expected names or Component objects, found {names}")
    check_distinct(names, "components")
    return components


def check_distinct(names: Sequence[Any], where: str) -> None:
    """Raise ValueError for an entry that is not a text or occurs twice.

    The text of the error begins with `where`.
    """
    if not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise ValueError(f"{where}: expected distinct names of components, found {list(names)}")


def check_names(names: Sequence[Any], where: str) -> None:
    """Raise ValueError for names that no component can have in verl.

    The text of the error begins with `where`.
    """
    check_distinct(names, where)
    for name in names:
        if name in RESERVED or name.endswith(ADVANTAGE):
            raise ValueError(
                f"{where}: {name!r} cannot be the name of a component, because it would overwrite "
                f"a column of verl's or gdpo-verl's dumps. Reserved are {list(RESERVED)} and all "
                f"names that end in {ADVANTAGE!r}. Choose another name."
            )
