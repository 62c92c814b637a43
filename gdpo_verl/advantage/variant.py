"""A variant: an estimator that combines the components of a response in its own way."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from torch import Tensor

from gdpo_verl.advantage.checks import is_number
from gdpo_verl.advantage.whitening import Whiten
from gdpo_verl.names import did_you_mean

Ranges = Sequence[tuple[float, float] | None]


@dataclass(frozen=True)
class Variant:
    """A function of a `Decomposition`, and the facts that are needed to call it.

    Attributes:
      name: the value of `algorithm.gdpo.variant`.
      combine: takes a `Decomposition` and its own settings as keyword arguments; returns float64,
        shape (B,), before the batch step, in units of the largest weight.
      settings: all keyword arguments.
      by_component: the settings with a value for each component. In the configuration they are
        mappings by name, which `with_columns` turns into lists.
      limits: the smallest and the largest value of a setting that is a number.
      whiten: the batch step of the method's authors.
      unbiased: the batch step divides the squares by n - 1, else by n.
      linear: doubled weights double the advantages.
      may_drop_rows: `combine` may return NaN for a row; the row is then left out of the batch step
        and gets 0.
      keeps_units: a small deviation of the result means small rewards, not noise.
      uses_epsilon: `epsilon` changes the result.
      needs_ranges: every component has to declare its range.
      weights: "any", "positive" (none below 0), or "equal" (all the same, above 0).
      least_group: the number of responses that a group needs if there are several components.
      reads_only_z: the variant uses only the normalised values of the rewards.
    """

    name: str
    combine: Callable[..., Tensor]
    settings: Mapping[str, Any] = field(default_factory=dict)
    limits: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    by_component: tuple[str, ...] = ()
    whiten: Whiten = "token"
    unbiased: bool = True
    linear: bool = True
    may_drop_rows: bool = False
    keeps_units: bool = False
    uses_epsilon: bool = True
    needs_ranges: bool = False
    weights: str = "any"
    least_group: int = 1
    reads_only_z: bool = False

    @cached_property
    def defaults(self) -> dict[str, Any]:
        """The settings and their defaults: the keyword-only parameters of `combine`."""
        parameters = inspect.signature(self.combine).parameters.values()
        return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}

    def with_settings(self, given: Mapping[str, Any], where: str = "") -> Variant:
        """Return the variant with these settings, and the defaults of the others.

        Args:
          given: the settings by name.
          where: the text before the name of a setting in an error.

        Raises:
          ValueError: a setting is unknown, or a value has another type or is outside its limits.
        """
        for name, value in given.items():
            if name not in self.defaults:
                raise ValueError(
                    f"{where}{name}: the variant {self.name!r} has no such setting; it has "
                    f"{sorted(self.defaults)}.{did_you_mean(name, self.defaults)}"
                )
            self._check_setting(where + name, name, value)
        return replace(self, settings={**self.defaults, **given})

    def with_columns(self, keys: Sequence[str]) -> Variant:
        """Return the variant with lists, in the order of the components, for its mappings."""
        lists: dict[str, Any] = {}
        for name in self.by_component:
            named = self.settings.get(name)
            if isinstance(named, Mapping):
                lists[name] = [named.get(key) for key in keys]
        return replace(self, settings={**self.settings, **lists}) if lists else self

    def _check_setting(self, where: str, name: str, value: Any) -> None:
        default = self.defaults[name]
        # bool comes first, because in Python it is an int, and 1 is not accepted for true.
        if isinstance(default, bool):
            if not isinstance(value, bool):
                raise ValueError(f"{where}: expected true or false, found {value!r}")
        elif isinstance(default, (int, float)):
            low, high = self.limits.get(name, (-math.inf, math.inf))
            if not is_number(value) or not low <= value <= high:
                raise ValueError(
                    f"{where}: expected a finite number{_between(low, high)}, found {value!r}"
                )

    def check_weights(self, weights: Sequence[float], where: str = "weights") -> None:
        """Raise ValueError where the method is not defined with these weights."""
        if self.weights == "positive" and min(weights) < 0:
            raise ValueError(
                f"{where}: the variant {self.name!r} is defined for weights of at least 0, found "
                f"{list(weights)}. Reverse the reward instead, for example 1 - r."
            )
        if self.weights == "equal" and (min(weights) != max(weights) or min(weights) <= 0):
            raise ValueError(
                f"{where}: the variant {self.name!r} is not defined with different weights, found "
                f"{list(weights)}. Remove the weights, or use another variant."
            )

    def check_ranges(
        self, ranges: Ranges | None, keys: Sequence[Any], where: str = "ranges"
    ) -> None:
        """Raise ValueError where the method needs the range of a component that has none."""
        given = [None] * len(keys) if ranges is None else list(ranges)
        missing = [key for key, pair in zip(keys, given, strict=True) if pair is None]
        if self.needs_ranges and missing:
            raise ValueError(
                f"{where}: the variant {self.name!r} needs the smallest and the largest value of "
                f"each component, and these have none: {missing}."
            )

    def check_group_size(self, size: int, components: int, where: str = "group_ids") -> None:
        """Raise ValueError where groups are too small for the method."""
        # Groups of one have no advantage under any variant, and a batch may contain some.
        if components > 1 and 1 < size < self.least_group:
            raise ValueError(
                f"{where}: the variant {self.name!r} uses correlations within a group, which are "
                f"always 1 or -1 in groups of {size}; expected at least {self.least_group} "
                "responses to a prompt."
            )


def _between(low: float, high: float) -> str:
    if math.isinf(low) and math.isinf(high):
        return ""
    return f" >= {low:g}" if math.isinf(high) else f" from {low:g} to {high:g}"


# GDPO adds the decomposition's terms and nothing else.
GDPO = Variant("gdpo", lambda decomposition: decomposition.combined, reads_only_z=True)
