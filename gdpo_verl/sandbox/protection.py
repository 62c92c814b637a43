"""The protections that this machine can give, to start a sandbox with; the best is found by trying.

Tried in this order; the first whose probe finds every door shut is taken, once a process:

* **bubblewrap** (the program `bwrap`): its own namespaces, and a view of the file system that
  holds Python's standard library, read-only, and an empty scratch directory in memory.
* **landlock**, where no namespace can be made: the kernel's rules leave the standard library
  readable and nothing writable. Threads only when run as root.
* **unprotected**, only where the user allows it: limits, and whichever of the other parts works.

In each the server (`child`) adds limits and the system call filter (`filters`) to every program.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from gdpo_verl.sandbox import filters, visible_paths
from gdpo_verl.sandbox.session import Limits, Protection, Sandbox

logger = logging.getLogger(__name__)

used: set[str] = set()
"""The protection of this process's programs: names of protections, or a service's URL."""

_SERVER = (visible_paths.PYTHON, "-I", "-S", "-X", "utf8", visible_paths.SERVER)

# Not /tmp: Python itself may be installed below it.
_SCRATCH = "/.scratch"


class Unprotected(RuntimeError):
    """Untrusted code would run without protection, and nobody allowed that."""

    argument = "allow_unprotected"  # under which it is allowed


# Prints the name of every door that it finds open.
_PROBE = """
import os, socket, _thread, threading
import decimal  # a library that is loaded late
secret, here, parent = {secret!r}, {here!r}, {parent}
def door(name, *actions):
    for action in actions:
        try:
            action()
        except Exception:
            continue
        print(name)
        return
door("reads files", lambda: open(secret).read(), lambda: os.listdir(here))
door("writes files", lambda: open(here + "/probe", "w"), lambda: os.unlink(secret))
door("opens sockets", lambda: socket.socket(), lambda: socket.socket(socket.AF_UNIX))
door("starts processes", lambda: os.fork() or os._exit(0), lambda: os.execv("/bin/true", ["true"]))
door("sends signals", lambda: os.kill(parent, 0), lambda: os.kill(os.getppid(), 0))
lock = _thread.allocate_lock()
lock.acquire()
try:
    for _ in range(300):
        _thread.start_new_thread(lock.acquire, ())
    print("starts any number of threads")
except RuntimeError:
    pass
print("done", flush=True)
os._exit(0)
"""


def probe(found: Protection) -> None:
    """Raise RuntimeError unless a program in this sandbox finds every door shut."""
    with tempfile.TemporaryDirectory() as here:
        secret = os.path.join(here, "secret")
        Path(secret).write_text("secret")
        for path in (here, secret):
            os.chmod(path, 0o777)  # so that nothing but the sandbox keeps the program out
        with Sandbox(found, Limits(timeout=5, deadline=30)) as sandbox:
            outcome = sandbox.run(_PROBE.format(secret=secret, here=here, parent=os.getpid()))
    if outcome.text != "done\n":  # without its last word it did not try every door
        doors = ", ".join(outcome.text.split("\n")[:-1]) or outcome.status.name
        raise RuntimeError(f"the probe found a door open: {doors}")


@lru_cache(maxsize=8)
def best_protection(
    *, allow_unprotected: bool = False, site_packages: str | None = None
) -> Protection:
    """The best protection, under which programs may read the packages in `site_packages`.

    Raises Unprotected where neither bubblewrap nor Landlock works, unless that is allowed.
    """
    reasons = []
    for name, candidate in candidates(site_packages).items():
        try:
            found = candidate()
            probe(found)
            break
        except (OSError, RuntimeError) as error:
            reasons.append(f"{name}: {error}")
    else:  # none of them holds
        why = "; ".join(reasons)
        if not allow_unprotected:
            raise Unprotected(
                f"{Unprotected.argument}: false, and this machine gives no protection for running "
                f"the answers' code ({why}). Install bubblewrap (Debian and Ubuntu: apt install "
                "bubblewrap) or allow user namespaces in the container; or give the address of a "
                "Sandbox Fusion service; or, on a machine with nothing to lose, set it to true."
            )
        text = "%s=true: the answers' code runs without protection (%s)"
        logger.warning(text, Unprotected.argument, why)
        found = unprotected(site_packages)
    used.add(found.name)
    return found


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
    spaces = ["pid", "net", "ipc", "uts", "cgroup-try"]
    command = [program, *(f"--unshare-{space}" for space in spaces)]
    command += ["--die-with-parent", "--as-pid-1", "--new-session", "--cap-drop", "ALL"]
    if as_root:  # the server gives these two up when it becomes another user
        command += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        command += ["--unshare-user", "--uid", "65534", "--gid", "65534"]
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
    code = filters.compiled(threads=threads, own_files=bool(scratch))
    settings = _settings(code, site_packages) | {"scratch": scratch}
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
    code = filters.compiled(threads=own_user, own_files=False)
    hidden = visible_paths.hidden(site_packages)
    readable = visible_paths.readable() + ([site_packages] if site_packages else [])
    rules = [
        rule
        for path in readable
        for rule in visible_paths.landlock_rules(os.path.realpath(path), hidden)
    ]
    rules = list(dict.fromkeys(rules))  # /lib may be /usr/lib
    settings = _settings(code, site_packages) | {"landlock": rules, "drop_capabilities": root}
    return Protection("landlock", _SERVER, settings, own_user)


def unprotected(site_packages: str | None) -> Protection:
    """Limits alone, and the system call filter where it works."""
    code = b""
    with contextlib.suppress(RuntimeError):
        code = filters.compiled(threads=True, own_files=True)
    return Protection("unprotected", _SERVER, _settings(code, site_packages))


def _settings(code: bytes, site_packages: str | None) -> dict[str, Any]:
    return {
        "filter": code.hex(),
        "path": [site_packages] if site_packages else [],
        "scratch": None,
        "landlock": None,
        "drop_capabilities": False,
    }
