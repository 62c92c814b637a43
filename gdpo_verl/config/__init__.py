"""The settings, which are read and checked once, and the declaration of components.

A reward function declares its components with `gdpo_verl.config.components`, which does not need
torch. The settings need torch, so they are imported only when they are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gdpo_verl.config.settings import GdpoConfig, Objective

__all__ = ["GdpoConfig", "Objective"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from gdpo_verl.config import settings

    return getattr(settings, name)
