"""The best protection of this machine, found by trying each until a probe finds every door shut."""

from __future__ import annotations

import functools
import logging
import os
import tempfile
from pathlib import Path

from gdpo_verl.sandbox import protection
from gdpo_verl.sandbox.protection import Protection, Unprotected
from gdpo_verl.sandbox.session import Limits, Sandbox

logger = logging.getLogger(__name__)

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


@functools.lru_cache(maxsize=8)
def best_protection(
    *, allow_unprotected: bool = False, site_packages: str | None = None
) -> Protection:
    """The best protection, under which programs may read the packages in `site_packages`.

    Raises Unprotected where neither bubblewrap nor Landlock works, unless that is allowed.
    """
    reasons = []
    for name, candidate in protection.candidates(site_packages).items():
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
        found = protection.unprotected(site_packages)
    protection.used.add(found.name)
    return found
