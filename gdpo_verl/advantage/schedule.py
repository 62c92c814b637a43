"""Weights that change during a run. They depend only on the global step."""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass
from typing import Literal

Shape = Literal["linear", "cosine", "list"]


@dataclass(frozen=True)
class Schedule:
    """The weight of a component at each global step.

    With the shape "linear" or "cosine", the weight goes from ``weights[0]`` at step 0 to
    ``weights[1]`` at ``steps[1]``, and then stays the same. With the shape "list", the weight is
    ``weights[i]`` from ``steps[i]`` on. Weights are applied after the group normalisation, because
    the normalisation would cancel a factor in the reward.

    >>> Schedule((0, 200), (0.0, 1.0)).weight(50)
    0.25
    >>> Schedule((0, 100), (0.0, 2.0), "list").weight(100)
    2.0
    """

    steps: tuple[int, ...]
    weights: tuple[float, ...]
    shape: Shape = "linear"

    def weight(self, step: int) -> float:
        """Return the weight at a global step.

        Before the first step of a list, the weight is the first weight of the list.
        """
        # The weight must not depend on earlier calls, because a resumed run may begin at any step.
        if self.shape == "list":
            return self.weights[max(bisect.bisect_right(self.steps, step) - 1, 0)]
        share = min(max(step, 0) / self.steps[-1], 1.0)
        if self.shape == "cosine":
            share = (1.0 - math.cos(math.pi * share)) / 2.0
        return self.weights[0] + (self.weights[1] - self.weights[0]) * share
