"""The length reward that several tasks share: 1 up to a limit of generated tokens, else 0.

Use it together with a reward for correctness, and preferably with a condition on that reward.
Otherwise a policy learns to fail with few tokens.
Assumes: the reward manager passes the number of tokens of the response.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from gdpo_verl.config.arguments import check_positive


def length_reward(extra_info: Mapping[str, Any] | None, limit: float) -> float:
    """Return 1 if the response has at most `limit` tokens, else 0.

    This is the length reward of GDPO's tasks in mathematics and coding
    (https://arxiv.org/abs/2601.05242). To let it count only for correct responses (Eq. 8), set a
    condition in the settings.

    Args:
      extra_info: contains `response_length` in tokens. The manager `gdpo_components` adds it.
      limit: the largest number of tokens of a response that earns the reward.

    Raises:
      ValueError: `response_length` is missing, or the limit is not a positive number.

    >>> [length_reward({"response_length": length}, limit=4000) for length in (4000, 4001)]
    [1.0, 0.0]
    """
    if limit != math.inf:
        check_positive("limit", limit, "tokens")
    length = (extra_info or {}).get("response_length")
    if isinstance(length, bool) or not isinstance(length, (int, float)) or math.isnan(length):
        raise ValueError(
            "extra_info['response_length']: expected the response's length in tokens, found "
            f"{length!r}. Set reward.reward_manager.name=gdpo_components, which adds it."
        )
    return float(length <= limit)
