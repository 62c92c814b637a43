"""Components by criterion: each criterion is normalised within its group, as in rubrics.

Use it where each prompt has its own list of weighted criteria, and a response is graded by each.
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
"""The value, NaN where not scored, and the weight of each criterion of one response."""


def rubric_number(graded: Graded | None) -> float:
    """Return the usual number of a rubric: sum_c w_c v_c / sum of the positive w_c.

    Both sums run over the criteria that are scored. Where no weight is positive, the divisor is the
    sum of the absolute weights. The result is NaN where no criterion with a weight is scored.

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
    """The criteria of one component for B responses, at most C in a group.

    A criterion belongs to its group: column c of two groups may be two criteria.

    Attributes:
      column: of the component.
      raw: float64, shape (B, C), as the reward returned them; NaN where not scored.
      values: the same after the conditions.
      weights: float64, shape (B, C), equal within a group; 0 where it has no such criterion.
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
          graded: of each response; None where it is not scored.
          rows: what to call each response in an error, which begins with `where`.

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
        for row, (own, group) in enumerate(zip(graded, codes, strict=True)):
            known = columns[group]
            for name, (value, weight) in (own or {}).items():
                place = known.setdefault(name, len(known))
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
        table = [own + [0.0] * (most - len(own)) for own in weights]
        of_groups = torch.tensor(table, dtype=torch.float64, device=device)
        raw = raw.to(device)
        return cls(column, raw, raw, of_groups.reshape(groups.number, most)[groups.codes])

    def conditioned(self, counts: Tensor) -> Criteria:
        """Return the criteria after the conditions of the component.

        Args:
          counts: shape (B,): 1 where the conditions hold, 0 where one fails, so that every
            criterion of the group counts as not met, and NaN where the response is not scored.
        """
        kept = (counts == 1)[:, None]
        without = counts[:, None].expand_as(self.values)
        without = without.where(self.weights != 0, torch.nan)
        return replace(self, values=self.values.where(kept, without))

    def normalized(self, scored: Tensor, groups: Groups, epsilon: float) -> Tensor:
        """Return the z of the component: shape (B,), unitless; NaN where it is not scored.

        z[i, c] = (v[i, c] - mean of v[., c]) / (std of v[., c] + epsilon) for each criterion c of
        the group, over the responses that it is scored for;
        s_i = sum_c w_c z[i, c];
        z_i = (s_i - mean of s) / (std of s + epsilon).

        Where anything varies in a group, z_i has the deviation 1 there, however many criteria the
        group has. With one criterion it is GDPO's own z, up to epsilon. It is 0 where the criteria
        cancel, so that only rounding and the effect of epsilon are left.

        Args:
          scored: the responses for which the component is scored: bool, shape (B,).
        """
        spread = Spread(self.values, groups)
        z = spread.normalized(epsilon, True).nan_to_num(0.0)
        sums = (z * self.weights).sum(dim=1)
        sums = torch.where(scored, sums, torch.nan)
        # In units of the largest weight whose criterion varies.
        sizes = torch.where(spread.varies, self.weights.abs(), 0.0)
        noise = torch.zeros_like(sums)
        if sizes.numel():
            noise = NOISE_FLOOR * sizes.amax(dim=1)
        return Spread(sums[:, None], groups, noise[:, None]).normalized(epsilon, True)[:, 0]


def check_criteria(variant: Variant, credits_turns: bool, names: Sequence[str], where: str) -> None:
    """Raise ValueError where criteria cannot be decoupled; `where` precedes the keys."""
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
