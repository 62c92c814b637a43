"""The protections of the sandbox that work on this machine."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from gdpo_verl.sandbox import Protection
from gdpo_verl.sandbox import protection as protections


def working_protections(site_packages: str | None = None) -> Iterator[Protection]:
    """Yield every protection that works on this machine, the best first."""
    for candidate in protections.candidates(site_packages).values():
        with contextlib.suppress(OSError, RuntimeError):
            found = candidate()
            protections.probe(found)
            yield found
