"""Read the log of a run: without what Ray adds to each line, and which process died first.

Where no process died, the launcher shows the last error of the log.
"""

from __future__ import annotations

import re

from gdpo_verl.plugin.watch.deaths import deaths_in, describe_memory_death, signal_name

_TRAINERS = {"TaskRunner", "TaskRunnerV1"}
# The error that gdpo-verl raised itself after a death.
_TOLD = re.compile(r"(?:RuntimeError|gdpo-verl): ((?:an?|the) [\w (),.']+ died: .+)")
_PREFIX = re.compile(r"^(?:\([^()]*pid=[^()]*\) )+", re.M)  # vLLM adds another
_REPEATED = re.compile(r" \[repeated \d+x across cluster\].*$", re.M)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def plain(log: str) -> str:
    """Return a log without colours and without the name of the process before each line."""
    return _REPEATED.sub("", _PREFIX.sub("", _COLOUR.sub("", log)))


def describe_log(log: str) -> str | None:
    """Name the first process that died, from the output of a run; None when none did.

    The death of the trainer's own process follows another death, so it counts only when there is no
    other.
    """
    text = plain(log)
    told = _TOLD.search(text)
    if told:
        return told[1]
    deaths = deaths_in(text)
    others = [death for death in deaths if death[0] not in _TRAINERS]
    sentences = [sentence for _, sentence in others or deaths]
    return describe_memory_death(text) or next(iter(sentences), None)


def describe_driver_death(pid: int, status: int) -> str | None:
    """Describe the driver's death from its return code; None if it exited by itself."""
    if status >= 0:
        return None
    return f"the driver died: pid {pid} was killed by {signal_name(-status)}"
