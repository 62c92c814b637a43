"""The settings, read and checked once, and the declaration of a reward's components.

A reward declares them with `gdpo_verl.config.components` and needs no torch, which the settings do:
they are imported when they are asked for.
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
