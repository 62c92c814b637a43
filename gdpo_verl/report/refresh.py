"""Keep a report current while its runs go on."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from gdpo_verl.report.metrics import RunError
from gdpo_verl.report.page import write_report
from gdpo_verl.report.runs import find_runs, read_run

EVERY_SECONDS = 30.0


def follow_report(
    runs: Sequence[Path],
    out_dir: Path,
    *,
    every: float = EVERY_SECONDS,
    say: Callable[[str], None] = lambda text: None,
) -> Path | None:
    """Write the report anew every `every` seconds until all runs have ended, then a last time.

    While it follows, the open page loads itself anew. Dumps that have not changed are not read
    again. A run without metrics is waited for while its training runs.

    Args:
      runs, out_dir: as for `write_report`.
      every: seconds from the end of one report to the beginning of the next.
      say: gets a line when there is something to say.

    Returns:
      the path of index.html.

    Raises:
      RunError: a run that has ended holds nothing to report, or there are no runs.
      ValueError: `every` is not positive.
    """
    if every <= 0:
        raise ValueError(
            f"every: expected more than 0 seconds between two reports, found {every:g}"
        )
    shown = False
    while True:
        # Asked before reading, so that the last report holds what a run wrote last.
        alive = any(map(is_running, find_runs(runs)))
        refresh = max(1, round(every)) if alive else None
        try:
            page = write_report(runs, out_dir, refresh=refresh)
        except RunError as error:
            if not alive:
                raise
            say(f"nothing to show yet: {error}")
        else:
            if not shown:
                say(f"{page}: kept current every {every:g} s" if alive else str(page))
            shown = True
            if not alive:
                return page
        time.sleep(every)


def is_running(run: Path) -> bool:
    """Return whether a training still goes on in a run directory.

    `gdpo-verl train` leaves `done` at the end and holds the directory's lock until then. Without
    its files a run goes on until it has logged trainer.total_training_steps; where that is not
    known, it is taken to go on.
    """
    if (run / "done").exists():
        return False
    if (run / "lock").exists():
        return _locked(run / "lock")
    try:
        found = read_run(run)
    except RunError:
        return False
    total = found.setting("trainer.total_training_steps")
    return not isinstance(total, int) or max(found.training_steps, default=0) < total


def _locked(path: Path) -> bool:
    with path.open("rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
