"""Components by criterion (rubrics): each criterion is normalised within its group.

Use it where each prompt has its own list of weighted criteria, and a response gets a grade for each
criterion.
Assumes: the responses to a prompt are graded by the same criteria, with the same weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from gdpo_verl.advantage.groups import Groups, Spread
from gdpo_verl.advantage.variant import Variant
from gdpo_verl.advantage.whitening import NOISE_FLOOR

CriteriaSetting = Literal["decoupled", "sum"]
Graded = Mapping[str, tuple[float, float]]
"""The value and the weight of each criterion of one response; the value is NaN if not scored."""


def rubric_number(graded: Graded | None) -> float:
    """Return the usual total of a rubric: sum_c w_c v_c / sum of the positive w_c.

    Both sums run over the criteria that are scored. If no weight is positive, the divisor is the
    sum of the absolute weights. The result is NaN if no criterion with a weight is scored.

    >>> rubric_number({"a": (1.0, 2.0), "b": (0.0, 1.0), "pitfall": (1.0, -1.0)})
    0.3333333333333333
    """
    total = positive = size = 0.0
    for value, weight in (graded or {}).values():
        if value == value:
            total += weight * value
            positive += max(weight, 0.0)
            size += abs(weight)
    if not size:
        return math.nan
    return total / (positive or size)


@dataclass(frozen=True, eq=False)
class Criteria:
    """The criteria of one component for B responses; a group has at most C criteria.

    Each prompt has its own criteria, so column c may be a different criterion in each group.

    Attributes:
      column: the column of the component in the rewards.
      raw: the values that the reward function returned: float64, shape (B, C); NaN where not
        scored.
      values: the values after the conditions: float64, shape (B, C).
      weights: the weights of the criteria: float64, shape (B, C). They are equal within a group,
        and 0 in the columns beyond the criteria of the group.
    """

    column: int
    raw: Tensor
    values: Tensor
    weights: Tensor

    @classmethod
    def of(
        cls,
        column: int,
        graded: Sequence[Graded | None],
        groups: Groups,
        rows: Sequence[str],
        where: str,
    ) -> Criteria:
        """Put the criteria of each response into the columns of its group.

        Args:
          column: the column of the component in the rewards.
          graded: the criteria of each response; None for a response that is not scored.
          groups: the groups of the responses.
          rows: the name of each response in error messages.
          where: the beginning of error messages.

        Raises:
          ValueError: two responses of a group give a criterion different weights.
        """
        codes = groups.codes.tolist()
        columns: list[dict[str, int]] = [{} for _ in range(groups.number)]
        weights: list[list[float]] = [[] for _ in range(groups.number)]
        # Row, column and value of each entry.
        entry_rows: list[int] = []
        entry_columns: list[int] = []
        values: list[float] = []
        for row, (criteria, group) in enumerate(zip(graded, codes, strict=True)):
            column_of = columns[group]
            for name, (value, weight) in (criteria or {}).items():
                # A criterion that is new in its group gets the next column.
                place = column_of.setdefault(name, len(column_of))
                if place == len(weights[group]):
                    weights[group].append(weight)
                elif weights[group][place] != weight:
                    raise ValueError(
                        f"{where}: expected one weight of the criterion {name!r} for all responses "
                        f"to a prompt, found {weights[group][place]:g}, and {weight:g} for row "
                        f"{rows[row]}"
                    )
                entry_rows.append(row)
                entry_columns.append(place)
                values.append(value)
        most = max(map(len, weights), default=0)
        device = groups.codes.device
        raw = torch.full((len(codes), most), torch.nan, dtype=torch.float64)
        if values:
            raw[entry_rows, entry_columns] = torch.tensor(values, dtype=torch.float64)
        table = [of_group + [0.0] * (most - len(of_group)) for of_group in weights]
        of_groups = torch.tensor(table, dtype=torch.float64, device=device)
        raw = raw.to(device)
        return cls(column, raw, raw, of_groups.reshape(groups.number, most)[groups.codes])

    def conditioned(self, counts: Tensor) -> Criteria:
        """Return the criteria after the conditions of the component.

        Args:
          counts: shape (B,). 1 means that the conditions hold. 0 means that a condition fails;
            every criterion then gets the value 0. NaN means that the response is not scored.
        """
        kept = (counts == 1)[:, None]
        without = counts[:, None].expand_as(self.values)
        without = without.where(self.weights != 0, torch.nan)
        return replace(self, values=self.values.where(kept, without))

    def normalized(self, scored: Tensor, groups: Groups, epsilon: float) -> Tensor:
        """Return the z of the component: shape (B,), unitless; NaN where it is not scored.

        z[i, c] = (v[i, c] - mean of v[., c]) / (std of v[., c] + epsilon)
        s_i = sum_c w_c z[i, c]
        z_i = (s_i - mean of s) / (std of s + epsilon)

        The first line holds for each criterion c of the group. Its mean and deviation run over the
        responses for which the criterion is scored.

        If any criterion varies in a group, z_i has the deviation 1 there, regardless of the number
        of criteria. With one criterion it is GDPO's own z, apart from epsilon. It is 0 if the
        criteria cancel, so that only rounding and the effect of epsilon are left.

        Args:
          scored: the responses for which the component is scored: bool, shape (B,).
          groups: the groups of the responses.
          epsilon: the number that is added to the deviations.
        """
        spread = Spread(self.values, groups)
        z = spread.normalized(epsilon, True).nan_to_num(0.0)
        sums = (z * self.weights).sum(dim=1)
        sums = torch.where(scored, sums, torch.nan)
        # The noise is proportional to the largest weight among the criteria that vary.
        sizes = torch.where(spread.varies, self.weights.abs(), 0.0)
        noise = torch.zeros_like(sums)
        if sizes.numel():
            noise = NOISE_FLOOR * sizes.amax(dim=1)
        return Spread(sums[:, None], groups, noise[:, None]).normalized(epsilon, True)[:, 0]


def check_criteria(variant: Variant, credits_turns: bool, names: Sequence[str], where: str) -> None:
    """Raise ValueError if the criteria of these settings cannot be normalised one by one.

    Args:
      variant: the chosen variant.
      credits_turns: whether turns have advantages of their own.
      names: the components by criterion.
      where: the key of the section in error messages.
    """
    remedy = f"Or set {where}.criteria=sum, which makes one number of the criteria of {names}."
    if not variant.reads_only_z:
        raise ValueError(
            f"{where}.variant: {variant.name!r} uses the raw rewards in addition to their "
            "normalised values, and a component by criterion has no raw reward that its normalised "
            f"value belongs to. Use gdpo. {remedy}"
        )
    if credits_turns:
        raise ValueError(
            f"{where}.credit: criteria are graded for the complete response, and are not "
            f"normalised for each turn. Set {where}.credit=answer. {remedy}"
        )
