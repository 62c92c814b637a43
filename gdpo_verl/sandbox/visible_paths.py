"""The view of the file system that a sandboxed program gets: Python's standard library."""

from __future__ import annotations

import glob
import os
import stat
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from gdpo_verl.sandbox import child

PYTHON = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
STDLIB = os.path.realpath(sysconfig.get_path("stdlib", vars={"installed_base": sys.base_prefix}))
SERVER = os.path.realpath(child.__file__)
_LIBRARIES = ["/usr/lib", "/usr/lib64", "/lib", "/lib64"]


def readable() -> list[str]:
    """The paths that a Python program must read: `hidden` takes the packages out of them."""
    shared = [str(path) for path in Path(STDLIB).parent.glob("libpython*")]
    system = [*_LIBRARIES, "/etc/ld.so.cache", "/usr/share/zoneinfo"]
    return [*system, PYTHON, STDLIB, SERVER, *shared]


def hidden(site_packages: str | None) -> list[str]:
    """The packages in what is readable: they may carry data sets, and so the tests.

    Every directory with the name that it has in the view and with its real one, but for what
    is part of `site_packages`.
    """
    places = [glob.escape(STDLIB), *(f"{library}/*" for library in _LIBRARIES)]
    found = [
        path
        for place in places
        for name in ("site-packages", "dist-packages")
        for path in glob.glob(f"{place}/{name}")
        if os.path.isdir(path)
    ]
    found += [os.path.realpath(path) for path in found]
    if site_packages:
        shown = Path(site_packages).resolve()
        found = [path for path in found if not Path(path).resolve().is_relative_to(shown)]
    return list(dict.fromkeys(found))


def landlock_rules(path: str, hidden: list[str]) -> Iterator[tuple[str, bool]]:
    """Name everything beside what is hidden: Landlock cannot take back what it gave."""
    if path in hidden:
        return
    if not any(other.startswith(path + "/") for other in hidden):
        yield path, True
        return
    yield path, False
    for entry in os.scandir(path):
        if not entry.is_symlink():  # a rule would open what it points to
            yield from landlock_rules(entry.path, hidden)


def readable_by_all(path: str) -> bool:
    """Return whether every user may enter each directory on the way."""
    return all(
        os.stat(parent).st_mode & stat.S_IXOTH for parent in [path, *map(str, Path(path).parents)]
    )
