"""The entry point `gdpo_cpu` in verl's group `verl.plugins`: it makes verl run without a GPU.

verl loads it in each of its processes; it does nothing unless the CPU platform is chosen.
"""

from __future__ import annotations

from gdpo_verl import cpu


def activate() -> None:
    """Register the platform and fix what keeps verl from running on it."""
    from gdpo_verl.cpu import patches

    patches.apply()

    from gdpo_verl.cpu import platform  # imports verl, before which one of them has to be in place

    platform.register()


if cpu.chosen():
    activate()
