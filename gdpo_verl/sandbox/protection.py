"""The protections that this machine can give, found by trying, to start a sandbox with.

Tried in this order; the first whose probe finds every door shut is taken, once a process:

* **bubblewrap** (the program `bwrap`): its own namespaces, and a view of the file system that
  holds Python's standard library, read-only, and an empty scratch directory in memory.
* **landlock**, where no namespace can be made: the kernel's rules leave the standard library
  readable and nothing writable. Threads only when run as root.
* **unprotected**, only where the user allows it: limits, and whichever of the other parts works.

In each the server (`child`) adds limits and the system call filter (`filters`) to every program.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gdpo_verl.sandbox import filters, visible_paths

used: set[str] = set()
"""The protection of this process's programs: names of protections, or a service's URL."""

_SERVER = (visible_paths.PYTHON, "-I", "-S", "-X", "utf8", visible_paths.SERVER)

# Not /tmp: Python itself may be installed below it.
_SCRATCH = "/.scratch"


class Unprotected(RuntimeError):
    """Untrusted code would run without protection, and nobody allowed that."""

    argument = "allow_unprotected"  # under which it is allowed


@dataclass(frozen=True)
class Protection:
    """A way to start a sandbox."""

    name: str  # bubblewrap (as root or not), landlock or unprotected
    command: tuple[str, ...]  # starts the server
    settings: dict[str, Any]  # what the server must know of it (`child.confine`)
    # The server becomes a user that no other process has; then its threads can be limited although
    # this process is root's.
    own_user: bool = False


def candidates(site_packages: str | None) -> dict[str, Callable[[], Protection]]:
    """The ways to protect that this machine may give, by name, best first; each may raise."""
    ways: dict[str, Callable[[], Protection]] = {}
    if os.geteuid() == 0:
        ways["bubblewrap as root"] = partial(_bubblewrap, site_packages, as_root=True)
    ways["bubblewrap"] = partial(_bubblewrap, site_packages, as_root=False)
    ways["landlock"] = partial(_landlock, site_packages)
    return ways


def _bubblewrap(site_packages: str | None, *, as_root: bool) -> Protection:
    program = shutil.which("bwrap")
    if not program:
        raise RuntimeError("the program bwrap is not installed")
    spaces = ["pid", "net", "ipc", "uts", "cgroup-try"] + ([] if as_root else ["user"])
    command = [program, *(f"--unshare-{space}" for space in spaces)]
    command += ["--die-with-parent", "--as-pid-1", "--new-session", "--cap-drop", "ALL"]
    if as_root:  # the server gives these two up when it becomes another user
        command += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        command += ["--uid", "65534", "--gid", "65534"]
    hidden = [path for path in visible_paths.hidden(site_packages) if not os.path.islink(path)]
    for path in visible_paths.readable():
        command += _bind(path, as_root=as_root)
    for path in hidden:
        command += ["--tmpfs", path]
    if site_packages:  # perhaps within what is hidden
        command += _bind(site_packages, as_root=as_root)
    for path in hidden:
        command += ["--remount-ro", path]
    if as_root:  # else a directory that root alone may enter
        command += ["--perms", "0755", "--dir", "/dev"]
    command += ["--dev-bind", "/dev/null", "/dev/null"]
    scratch = None
    if _bubblewrap_version(program) >= (0, 7):  # earlier ones cannot limit a directory's size
        scratch = _SCRATCH
        command += f"--perms 1777 --size {16 << 20} --tmpfs {scratch} --chdir {scratch}".split()
        command += ["--setenv", "TMPDIR", scratch]
    command += ["--remount-ro", "/", "--", *_SERVER]
    # Root's processes are never counted against a limit, unless the server changes the user.
    threads = as_root or os.geteuid() != 0
    settings = _settings(threads=threads, scratch=scratch, site_packages=site_packages)
    name = "bubblewrap as root" if as_root else "bubblewrap"
    return Protection(name, tuple(command), settings, own_user=as_root)


def _bind(path: str, *, as_root: bool) -> list[str]:
    options = []
    if as_root:  # else the way there would be as private as a directory in root's home is
        for parent in list(Path(path).parents)[-2::-1]:
            options += ["--perms", "0755", "--dir", str(parent)]
    return [*options, "--ro-bind-try", path, path]


def _bubblewrap_version(program: str) -> tuple[int, ...]:
    shown = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    return tuple(int(number) for number in re.findall(r"\d+", shown.stdout)[:2])


def _landlock(site_packages: str | None) -> Protection:
    root = os.geteuid() == 0
    own_user = root and visible_paths.readable_by_all(visible_paths.STDLIB)
    settings = _settings(threads=own_user, scratch=None, site_packages=site_packages)
    hidden = visible_paths.hidden(site_packages)
    readable = visible_paths.readable() + ([site_packages] if site_packages else [])
    rules = [
        rule
        for path in readable
        for rule in visible_paths.landlock_rules(os.path.realpath(path), hidden)
    ]
    rules = list(dict.fromkeys(rules))  # /lib may be /usr/lib
    settings |= {"landlock": rules, "drop_capabilities": root}
    return Protection("landlock", _SERVER, settings, own_user)


def unprotected(site_packages: str | None) -> Protection:
    """Limits alone, and the system call filter where it works."""
    settings = _settings(threads=True, scratch=None, site_packages=site_packages, optional=True)
    return Protection("unprotected", _SERVER, settings)


def _settings(
    *, threads: bool, scratch: str | None, site_packages: str | None, optional: bool = False
) -> dict[str, Any]:
    code = ""
    try:
        code = filters.compiled(threads=threads, own_files=bool(scratch) or optional).hex()
    except RuntimeError:
        if not optional:
            raise
    return {
        "filter": code,
        "scratch": scratch,
        "path": [site_packages] if site_packages else [],
        "landlock": None,
        "drop_capabilities": False,
    }
