"""GDPO for verl: each reward is normalised within its group before the rewards are added.

The paper is https://arxiv.org/abs/2601.05242. Importing this package loads neither verl nor Ray.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gdpo_verl.advantage import (
        apply_conditions,
        gdpo_advantages,
        group_normalize,
        grpo_advantages,
    )
    from gdpo_verl.reward_dicts import advantages_of

__version__ = "0.1.0"
__all__ = [
    "__version__",
    "advantages_of",
    "apply_conditions",
    "gdpo_advantages",
    "group_normalize",
    "grpo_advantages",
]


def __getattr__(name: str) -> Any:
    # The public functions are imported at first use: they need torch, which takes seconds to
    # import, and each of verl's processes imports this package.
    if name == "advantages_of":
        from gdpo_verl.reward_dicts import advantages_of

        return advantages_of
    if name in __all__:
        from gdpo_verl import advantage

        return getattr(advantage, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
