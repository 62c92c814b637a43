"""Forecast whether a rare reward will be learned, from responses sampled before a training run.

The push on reward k in a step is its influence times the number of groups in the step. The
influence is the mean of A z_k over the responses, where A is the advantage and z_k is the reward,
normalised within its group (`gdpo_verl.diagnostics.influence_metrics`). A group in which the
reward is constant adds nothing.
"""

from __future__ import annotations

import textwrap
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gdpo_verl.advantage import Decomposition
from gdpo_verl.diagnostics import influence_terms
from gdpo_verl.lab.rundir.responses import places_by_group
from gdpo_verl.lab.text import columns

WIDTH = 100
# The numbers are from docs/evidence/push.md and docs/evidence/quickstart.md.
ORIGIN = (
    "How to read it: in runs of a tiny policy, with 16 groups of 8 responses in a step, two "
    "settings whose push on a rare format was 1.0 and 1.1 before training learned the format in 0 "
    "of 16 runs, and two settings with 2.1 and 2.9 in 16 of 16. From seven other policies, the "
    "push in the first five steps of GDPO was between 2.6 and 6.6, and the two runs below 3 did "
    "not learn the format. So no limit holds in general: compare the settings with each other. "
    "For a pretrained model this comparison was right in one of four pairs of runs. "
    "The push rises during a run when another reward becomes constant in more groups."
)


@dataclass
class Forecast:
    """The push on each reward under several estimators, accumulated over batches.

    Attributes:
      keys: the names of the components.
      rows: the number of responses that have an advantage.
      sums: for each estimator, the sum of A z_k over the responses, shape (K,).
    """

    keys: tuple[str, ...] = ()
    rows: int = 0
    sums: dict[str, Tensor] = field(default_factory=dict)

    def add(self, keys: tuple[str, ...], decomposition: Decomposition) -> None:
        """Add a batch of responses under GRPO, GDPO and the configured variant."""
        self.keys = keys
        self.rows += int(decomposition.has_advantage.sum())
        advantages = {"grpo": decomposition.grpo, "gdpo": decomposition.gdpo}
        advantages[decomposition.settings.variant.name] = decomposition.advantage
        for name, advantage in advantages.items():
            terms = influence_terms(decomposition, advantage).sum(dim=0)
            self.sums[name] = self.sums.get(name, torch.zeros_like(terms)) + terms

    def for_step(self, groups: float) -> dict[str, Any]:
        """Return the push by estimator and component in a step with `groups` groups.

        `push` is empty if no response has an advantage.
        """
        pushes: dict[str, dict[str, float]] = {}
        if self.rows:
            for name, total in self.sums.items():
                values = (groups * total / self.rows).tolist()
                pushes[name] = dict(zip(self.keys, values, strict=True))
        return {"groups_per_step": groups, "push": pushes, "origin": ORIGIN}


def groups_of_size(groups: Sequence[Hashable], size: int) -> dict[int, Hashable]:
    """Divide the responses to each prompt into groups of `size` responses.

    Args:
      groups: the prompt of each response.
      size: the number of responses in each new group.

    Returns:
      the new group of each response, by the response's place. Responses that are left over, because
      they do not fill a group, are missing.

    >>> groups_of_size(["a", "a", "b", "a", "b"], 2)
    {0: ('a', 0), 1: ('a', 0), 2: ('b', 0), 4: ('b', 0)}
    """
    new_groups: dict[int, Hashable] = {}
    for places in places_by_group(groups):
        for start in range(0, len(places) - size + 1, size):
            for place in places[start : start + size]:
                new_groups[place] = (groups[place], start)
    return dict(sorted(new_groups.items()))


def forecast_lines(forecast: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a table of pushes and of its explanation, for a terminal."""
    pushes: Mapping[str, Mapping[str, float]] = forecast["push"]
    if not pushes:
        return
    rows: list[Sequence[str]] = [(f"push, {forecast['groups_per_step']:g} groups a step", *pushes)]
    for key in next(iter(pushes.values())):
        values = [f"{push[key]:.2f}" for push in pushes.values()]
        rows.append((key, *values))
    yield from columns(rows)
    yield from textwrap.wrap(forecast["origin"], WIDTH)
