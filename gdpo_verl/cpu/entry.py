"""The entry point `gdpo_cpu` in verl's group `verl.plugins`, which lets verl run without a GPU.

verl loads it in each of its processes. It does nothing unless the CPU platform is chosen.
"""

from __future__ import annotations

from gdpo_verl import cpu


def activate() -> None:
    """Register the platform and apply the patches that verl needs to run on it."""
    from gdpo_verl.cpu import patches

    patches.apply(__name__)

    from gdpo_verl.cpu import platform  # this imports verl, so the patches must come first

    platform.register()


if cpu.chosen():
    activate()
