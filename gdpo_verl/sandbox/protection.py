"""Find the best protection that this machine offers for a sandbox.

Each process tries the protections once, in the following order. It uses the first protection in
which a test program, the *probe*, can do nothing that is forbidden.

* **bubblewrap** (the program `bwrap`): the sandbox has its own namespaces. It sees a file system
  with Python's standard library, which is read-only, and an empty scratch directory in memory.
* **landlock**, if namespaces cannot be created: the kernel allows reading the standard library, and
  writing nothing. Threads are possible only if the process runs as root.
* **unprotected**, only if the user allows it: there are only limits, and the system call filter if
  it works.

With each protection, the server (`child`) sets limits and the system call filter (`filters`) for
every program.
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
"""The protections that this process has used: their names, or the URL of a service."""

_SERVER = (visible_paths.PYTHON, "-I", "-S", "-X", "utf8", visible_paths.SERVER)

# The scratch directory is not /tmp, because Python itself may be installed below /tmp.
_SCRATCH = "/.scratch"


class Unprotected(RuntimeError):
    """Untrusted code would run without protection, which is not allowed."""

    argument = "allow_unprotected"  # the argument that allows it


# A program that tries what is forbidden, and prints what it was able to do.
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


def probe(protection: Protection) -> None:
    """Raise RuntimeError if a program in this sandbox can do something forbidden."""
    with tempfile.TemporaryDirectory() as here:
        secret = os.path.join(here, "secret")
        Path(secret).write_text("secret")
        for path in (here, secret):
            os.chmod(path, 0o777)  # only the sandbox must protect the files, not their mode
        with Sandbox(protection, Limits(timeout=5, deadline=30)) as sandbox:
            outcome = sandbox.run(_PROBE.format(secret=secret, here=here, parent=os.getpid()))
    if outcome.text != "done\n":  # without this last line, the probe did not try everything
        doors = ", ".join(outcome.text.split("\n")[:-1]) or outcome.status.name
        raise RuntimeError(f"the sandbox does not isolate programs; a test program {doors}")


@lru_cache(maxsize=8)
def best_protection(
    *, allow_unprotected: bool = False, site_packages: str | None = None
) -> Protection:
    """Return the best protection that works on this machine.

    Args:
      allow_unprotected: whether to run programs even if no protection works.
      site_packages: a directory with packages that programs may read.

    Raises:
      Unprotected: neither bubblewrap nor Landlock works, and `allow_unprotected` is False.
    """
    reasons = []
    for name, candidate in candidates(site_packages).items():
        try:
            protection = candidate()
            probe(protection)
            break
        except (OSError, RuntimeError) as error:
            reasons.append(f"{name}: {error}")
    else:  # no protection works
        why = "; ".join(reasons)
        if not allow_unprotected:
            raise Unprotected(
                f"{Unprotected.argument}: expected a protection for running the code in responses, "
                f"found none on this machine ({why}). Install bubblewrap (Debian and Ubuntu: apt "
                "install bubblewrap), allow user namespaces in the container, or set the address "
                "of a Sandbox Fusion service. On a machine without anything to protect you may set "
                "this key to true."
            )
        text = "%s=true: the code in responses runs without protection (%s)"
        logger.warning(text, Unprotected.argument, why)
        protection = unprotected(site_packages)
    used.add(protection.name)
    return protection


def candidates(site_packages: str | None) -> dict[str, Callable[[], Protection]]:
    """Return functions that create the protections to try, by name, with the best one first.

    Each function may raise an error.
    """
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
    command = [program]
    command += [f"--unshare-{space}" for space in spaces]
    command += ["--die-with-parent", "--as-pid-1", "--new-session", "--cap-drop", "ALL"]
    if as_root:  # the server needs these two to change the user, and then loses them
        command += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        command += ["--unshare-user", "--uid", "65534", "--gid", "65534"]
    hidden = [path for path in visible_paths.hidden(site_packages) if not os.path.islink(path)]
    for path in visible_paths.readable():
        command += _bind(path, as_root=as_root)
    for path in hidden:
        command += ["--tmpfs", path]
    if site_packages:  # this comes later, because it may be inside a hidden directory
        command += _bind(site_packages, as_root=as_root)
    for path in hidden:
        command += ["--remount-ro", path]
    if as_root:  # otherwise only root could enter this directory
        command += ["--perms", "0755", "--dir", "/dev"]
    command += ["--dev-bind", "/dev/null", "/dev/null"]
    scratch = None
    if _bubblewrap_version(program) >= (0, 7):  # older versions cannot limit the size
        scratch = _SCRATCH
        command += f"--perms 1777 --size {16 << 20} --tmpfs {scratch} --chdir {scratch}".split()
        command += ["--setenv", "TMPDIR", scratch]
    command += ["--remount-ro", "/", "--", *_SERVER]
    # The kernel does not limit the number of threads of root, unless the server changes the user.
    threads = as_root or os.geteuid() != 0
    code = filters.compiled(threads=threads, own_files=bool(scratch))
    settings = _settings(code, site_packages) | {"scratch": scratch}
    name = "bubblewrap as root" if as_root else "bubblewrap"
    return Protection(name, tuple(command), settings, own_user=as_root)


def _bind(path: str, *, as_root: bool) -> list[str]:
    options = []
    # With root, bubblewrap would create the parent directories so that only root may enter them.
    if as_root:
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
    rules = list(dict.fromkeys(rules))  # there may be duplicates, because /lib may be /usr/lib
    settings = _settings(code, site_packages) | {"landlock": rules, "drop_capabilities": root}
    return Protection("landlock", _SERVER, settings, own_user)


def unprotected(site_packages: str | None) -> Protection:
    """Return a protection with only limits, and with the system call filter if it works."""
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
