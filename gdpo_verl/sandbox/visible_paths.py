"""The part of the file system that a program in a sandbox can read: Python's standard library."""

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
    """Return the paths that a Python program needs to read. `hidden` has exceptions."""
    shared = [str(path) for path in Path(STDLIB).parent.glob("libpython*")]
    system = [*_LIBRARIES, "/etc/ld.so.cache", "/usr/share/zoneinfo"]
    return [*system, PYTHON, STDLIB, SERVER, *shared]


def hidden(site_packages: str | None) -> list[str]:
    """Return the directories of packages that must be hidden within the readable paths.

    Packages may contain data sets and tests. Each directory is listed with its name among the
    readable paths and with its real name. Directories in `site_packages` are not hidden.
    """
    places = [glob.escape(STDLIB)]
    places += [f"{library}/*" for library in _LIBRARIES]
    packages = []
    for place in places:
        for name in ("site-packages", "dist-packages"):
            packages += [path for path in glob.glob(f"{place}/{name}") if os.path.isdir(path)]
    packages += [os.path.realpath(path) for path in packages]
    if site_packages:
        shown = Path(site_packages).resolve()
        packages = [path for path in packages if not Path(path).resolve().is_relative_to(shown)]
    return list(dict.fromkeys(packages))


def landlock_rules(path: str, hidden: list[str]) -> Iterator[tuple[str, bool]]:
    """Yield the paths that may be read, and whether everything below a path may be read.

    Landlock can allow a directory, but cannot forbid a part of it. Therefore a directory with
    hidden parts is split into its entries.
    """
    if path in hidden:
        return
    if not any(other.startswith(path + "/") for other in hidden):
        yield path, True
        return
    yield path, False
    for entry in os.scandir(path):
        if not entry.is_symlink():  # a rule for a link would allow the target of the link
            yield from landlock_rules(entry.path, hidden)


def readable_by_all(path: str) -> bool:
    """Return whether every user may enter each directory of the path."""
    return all(
        os.stat(parent).st_mode & stat.S_IXOTH for parent in [path, *map(str, Path(path).parents)]
    )
