"""Keep a report current while its runs go on."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from gdpo_verl.report.page import write_report
from gdpo_verl.rundir.metrics import RunError
from gdpo_verl.rundir.run import find_runs, is_running

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
