"""The definition of a variant: an estimator that changes how GDPO combines the components."""

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
      combine: the function. Its arguments are a `Decomposition`, and its settings as keyword
        arguments. It returns float64, shape (B,), before the batch step (the whitening), in units
        of the largest weight.
      settings: the keyword arguments of `combine`.
      by_component: the names of the settings that have a value for each component. In the
        configuration they are mappings by the name of the component; `with_columns` turns them
        into lists.
      limits: the lowest and the highest value of each setting that is a number.
      whiten: the whitening that the authors of the method use.
      unbiased: whether the variance of the whitening is divided by n - 1 instead of n.
      linear: whether doubled weights double the advantages.
      may_drop_rows: whether `combine` may return NaN for a row. The row is then left out of the
        whitening, and its advantage is 0.
      keeps_units: whether the result is in reward units. Then a small deviation of the result
        means small rewards, not noise.
      uses_epsilon: whether `epsilon` changes the result.
      needs_ranges: whether every component has to declare its range.
      weights: the weights that are allowed: "any", "positive" (none below 0), or "equal" (all the
        same, above 0).
      least_group: the smallest number of responses in a group if there are several components.
      reads_only_z: whether the variant uses only the normalised values of the rewards.
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
        """The default of each setting. Settings are the keyword-only parameters of `combine`."""
        parameters = inspect.signature(self.combine).parameters.values()
        return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}

    def with_settings(self, given: Mapping[str, Any], where: str = "") -> Variant:
        """Return the variant with these settings; the other settings have their defaults.

        Args:
          given: the settings by name.
          where: the text before the name of a setting in error messages.

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
        """Return the variant with its settings by component as lists in the order of `keys`."""
        lists: dict[str, Any] = {}
        for name in self.by_component:
            by_name = self.settings.get(name)
            if isinstance(by_name, Mapping):
                lists[name] = [by_name.get(key) for key in keys]
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
        """Raise ValueError if the method is not defined for these weights."""
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
        """Raise ValueError if the method needs ranges, and a component has none."""
        pairs = [None] * len(keys) if ranges is None else list(ranges)
        missing = [key for key, pair in zip(keys, pairs, strict=True) if pair is None]
        if self.needs_ranges and missing:
            raise ValueError(
                f"{where}: the variant {self.name!r} needs the smallest and the largest value of "
                f"each component, and these have none: {missing}."
            )

    def check_group_size(self, size: int, components: int, where: str = "group_ids") -> None:
        """Raise ValueError if groups are too small for the method."""
        # Groups of one response are allowed: they get no advantage under any variant.
        if components > 1 and 1 < size < self.least_group:
            raise ValueError(
                f"{where}: the variant {self.name!r} uses correlations within a group, which are "
                f"always 1 or -1 in groups of {size}; expected at least {self.least_group} "
                "responses to a prompt."
            )


def _between(low: float, high: float) -> str:
    """Describe the limits of a setting for an error message; the text is empty without limits."""
    if math.isinf(low) and math.isinf(high):
        return ""
    return f" >= {low:g}" if math.isinf(high) else f" from {low:g} to {high:g}"


# GDPO itself is the variant that only adds the terms of the decomposition.
GDPO = Variant("gdpo", lambda decomposition: decomposition.combined, reads_only_z=True)
