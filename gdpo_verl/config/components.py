"""The declaration of a reward function's components: names, ranges, and which may be missing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

# Columns of verl's dumps, which a component with the same name would overwrite, and `reward`, under
# which verl's validation collects the scores (verl/trainer/ppo/v1/trainer_base.py, `_validate`).
TOKENS, MINI_BATCH = "response_tokens", "mini_batch"
"""Our own columns in the dumps, in addition to the advantages."""
RESERVED = ("score", "reward", "input", "output", "gts", "uid", "step", TOKENS, MINI_BATCH)
BY_TURN = "_by_turn"
"""The end of the name of the column with the list of a per-turn component."""
BY_CRITERION = "_by_criterion"
"""The end of the name of the column with the mapping of a component by criterion."""
ADVANTAGE = "_advantage"
"""The end of the names of our own columns in the dumps."""


@dataclass(frozen=True)
class Component:
    """One named reward component."""

    name: str  # its key in the dict that the reward function returns
    low: float | None = None  # the smallest value it can take; None when unbounded
    high: float | None = None  # the largest value it can take; None when unbounded
    # The key may be missing for some data sources: a missing, None or NaN value is *not scored*.
    optional: bool = False
    # If a larger share of a batch's responses has no value, the run ends; None: it never ends.
    most_unscored: float | None = None
    # A list, one number for each turn of the model in the response; low and high are of one turn.
    by_turn: bool = False
    # A mapping, one number for each criterion of the prompt; low and high are of `rubric_number`.
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
        """The smallest and the largest value; None unless both are known and differ."""
        if self.low is None or self.high is None or self.low == self.high:
            return None
        return float(self.low), float(self.high)


def declares(
    *components: Component | str,
    by_turn: Sequence[str] = (),
    by_criterion: Sequence[str] = (),
) -> Callable[[F], F]:
    """Attach the declaration that the estimator, the metrics and the checks read.

    The function, sync or async, returns `score`, every component that is not optional, and any
    further values to log. It returns the same keys for every text.

    >>> @declares(Component("format", 0, 1), "correctness")
    ... def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    ...     return {"score": 0.0, "format": 0.0, "correctness": 0.0}
    >>> [component.name for component in declared_components(compute_score)]
    ['format', 'correctness']

    Args:
      by_turn: the names of the components whose value is a list, one number for each turn of the
        model. Names that are not among `components` are added after them. In verl the number of
        the model's turns is `extra_info["num_turns"] // 2`, because verl also counts the question
        and the results of the tools.
      by_criterion: the names of the components whose value is a mapping, one entry for each
        criterion of the prompt: a number, None where it is not scored, or
        ``{"value": number, "weight": number}``. Without a weight it is 1.
    """
    declared = {each.name: each for each in _checked(components)}
    for name in as_names(by_turn):
        declared[name] = replace(declared.get(name, Component(name)), by_turn=True)
    for name in as_names(by_criterion):
        declared[name] = replace(declared.get(name, Component(name)), by_criterion=True)

    def attach(function: F) -> F:
        function.components = _checked(declared.values())  # type: ignore[attr-defined]
        return function

    return attach


def as_names(names: Sequence[str]) -> Sequence[str]:
    """Return a sequence of names; one name alone would be read as one name per letter."""
    return (names,) if isinstance(names, str) else names


def declared_components(reward: Any) -> tuple[Component, ...]:
    """Return the declaration of a reward function or manager class; empty when it has none.

    Raises ValueError for an entry that is neither a `Component` nor a name, and the errors of
    `check_names`.
    """
    return _checked(getattr(reward, "components", None) or ())


def _checked(entries: Iterable[Component | str]) -> tuple[Component, ...]:
    components = as_components(entries)
    check_names([component.name for component in components], "components")
    return components


def as_components(entries: Iterable[Component | str]) -> tuple[Component, ...]:
    """Return components; an entry without a range may be given by its name alone.

    Raises ValueError for an entry that is neither a `Component` nor a name, and for a name that
    occurs twice.
    """
    if isinstance(entries, str):  # a string would be read as one name per letter
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
    """Raise ValueError, beginning with `where`, for an entry that is no name or occurs twice."""
    if not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise ValueError(f"{where}: expected distinct names of components, found {list(names)}")


def check_names(names: Sequence[Any], where: str) -> None:
    """Raise ValueError, beginning with `where`, for names that no component can have in verl."""
    check_distinct(names, where)
    for name in names:
        if name in RESERVED or name.endswith(ADVANTAGE):
            raise ValueError(
                f"{where}: {name!r} cannot be the name of a component, because it would overwrite "
                f"a column of verl's or gdpo-verl's dumps. Reserved are {list(RESERVED)} and all "
                f"names that end in {ADVANTAGE!r}. Choose another name."
            )
