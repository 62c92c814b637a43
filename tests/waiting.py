"""Waiting for what a test has started."""

import time
from pathlib import Path

# Seconds. What takes longer will never end, on however busy a machine.
HANGS = 1800.0


def wait_for(condition, state=str, *, every=0.05):
    """Until the condition holds; an AssertionError with the state where it never does."""
    deadline = time.monotonic() + HANGS
    while not condition():
        assert time.monotonic() < deadline, state()
        time.sleep(every)


def is_alive(pid):
    """Return whether a process runs; one that ended and waits for its parent does not."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def start_ray(**options):
    """`ray.init`, once more where Ray gives up: the plug-in's patience is not everywhere."""
    import ray

    deadline = time.monotonic() + HANGS
    while not ray.is_initialized():
        try:
            ray.init(include_dashboard=False, log_to_driver=False, **options)
        except Exception as error:
            if "timed out during startup" not in str(error) or time.monotonic() > deadline:
                raise
