"""The length reward that several tasks share: 1 up to a limit of generated tokens, else 0.

Use it beside a correctness, best conditioned on it, or a policy learns to fail briefly.
Assumes: the reward manager tells the response's tokens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from gdpo_verl.config.arguments import check_positive


def length_reward(extra_info: Mapping[str, Any] | None, limit: float) -> float:
    """1 when the response has at most `limit` tokens, else 0.

    The length reward of GDPO's mathematics and coding tasks (https://arxiv.org/abs/2601.05242).
    That it counts only for right answers (Eq. 8) is a condition of the settings, not this.

    Args:
      extra_info: holds `response_length` in tokens (the manager `gdpo_components` puts it there).
      limit: the longest response that earns the reward, in tokens.

    Raises:
      ValueError: there is no `response_length`, or the limit is not a positive number.

    >>> [length_reward({"response_length": length}, limit=4000) for length in (4000, 4001)]
    [1.0, 0.0]
    """
    if limit != math.inf:
        check_positive("limit", limit, "tokens")
    length = (extra_info or {}).get("response_length")
    if isinstance(length, bool) or not isinstance(length, (int, float)) or math.isnan(length):
        raise ValueError(
            "extra_info['response_length']: expected the response's length in tokens, found "
            f"{length!r}. The reward manager gdpo_components puts it there."
        )
    return float(length <= limit)
