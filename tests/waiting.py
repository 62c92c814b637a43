"""Wait for processes that a test has started."""

import time
from pathlib import Path

# A process that takes longer than this, in seconds, counts as hanging, even on a busy machine.
HANGS = 1800.0


def wait_for(condition, state=str, *, every=0.05):
    """Wait until the condition holds; raise AssertionError with the state if it never does."""
    deadline = time.monotonic() + HANGS
    while not condition():
        assert time.monotonic() < deadline, state()
        time.sleep(every)


def is_alive(pid):
    """Return whether a process runs; a zombie does not."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def start_ray(**options):
    """Start Ray, and try again if Ray's time limit for its start is too short.

    The plug-in's hook that extends this limit is not active in every process.
    """
    import ray

    deadline = time.monotonic() + HANGS
    while not ray.is_initialized():
        try:
            ray.init(include_dashboard=False, log_to_driver=False, **options)
        except Exception as error:
            if "timed out during startup" not in str(error) or time.monotonic() > deadline:
                raise
