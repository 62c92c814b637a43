"""Read the log of a run: remove the prefixes of Ray, and find the process that died first.

If no process died, the launcher shows the last error of the log.
"""

from __future__ import annotations

import re

from gdpo_verl.plugin.watch.deaths import deaths_in, describe_memory_death, signal_name

_TRAINERS = {"TaskRunner", "TaskRunnerV1"}
# The error that gdpo-verl itself raises after the death of a process.
_DEATH = re.compile(r"(?:RuntimeError|gdpo-verl): ((?:an?|the) [\w (),.']+ died: .+)")
_PREFIX = re.compile(r"^(?:\([^()]*pid=[^()]*\) )+", re.M)  # one prefix of Ray, and one of vLLM
_REPEATED = re.compile(r" \[repeated \d+x across cluster\].*$", re.M)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def plain(log: str) -> str:
    """Return a log without colours, and without the name of the process in front of each line."""
    return _REPEATED.sub("", _PREFIX.sub("", _COLOUR.sub("", log)))


def describe_log(log: str) -> str | None:
    """Describe the first process that died, from the log of a run; None if no process died.

    The death of the trainer's process usually follows another death. It counts only if no other
    process died.
    """
    text = plain(log)
    reported = _DEATH.search(text)
    if reported:
        return reported[1]
    deaths = deaths_in(text)
    others = [death for death in deaths if death[0] not in _TRAINERS]
    sentences = [sentence for _, sentence in others or deaths]
    return describe_memory_death(text) or next(iter(sentences), None)


def describe_driver_death(pid: int, status: int) -> str | None:
    """Describe the driver's death from its return code; None if it exited by itself."""
    if status >= 0:
        return None
    return f"the driver died: pid {pid} was killed by {signal_name(-status)}"
