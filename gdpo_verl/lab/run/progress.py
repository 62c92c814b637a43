"""Print a line for each step of a run that writes metrics.jsonl and train.log."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import mean

from gdpo_verl.lab.run.log import plain
from gdpo_verl.lab.rundir import layout
from gdpo_verl.lab.rundir.alerts import MANY_STEPS, find_alerts
from gdpo_verl.lab.rundir.metrics import Metrics, only_validation, parse_metrics_line
from gdpo_verl.lab.text import duration
from gdpo_verl.names import CONSTANT_GROUPS, MEAN

POLL_SECONDS = 1.0
PHASE_EVERY_SECONDS = 60.0
_RECENT = 5  # the number of steps over which the pace is averaged

# Lines that verl 0.9 and vLLM log at the beginning of a phase. The last one in the log is the
# current phase.
RAY_STARTED = re.compile(r"Started a local Ray instance|Connected to Ray cluster")
_PHASES = (
    (RAY_STARTED, "loading the policy"),
    (re.compile(r"Initializing a V1 LLM engine"), "starting vLLM"),
    (re.compile(r"Creating file logger at"), "validating or taking the first step"),
    (re.compile(r"Initial validation metrics"), "the first validation has ended"),
)
_TOTAL_STEPS = re.compile(r"Total training steps: (\d+)")
# The warnings in the log, in the format of `gdpo_verl.plugin.entry`.
_WARNING = re.compile(r"(?:WARNING|ERROR|CRITICAL):[^a-z]*:gdpo-verl: (.+)")


def follow(
    run: Path,
    *,
    total_steps: int,
    is_alive: Callable[[], bool],
    label: str,
) -> None:
    """Show the progress of a run until its process ends.

    A line is printed for each step, with the mean of each component and the share of groups in
    which the component is constant. Before the first step, a line is printed for each phase and
    after each minute. A line is printed for each warning of the plug-in and each alert
    (`gdpo_verl.lab.rundir.alerts`).

    Args:
      run: the run directory, without metrics of an earlier start.
      total_steps: trainer.total_training_steps; 0 if it is not set and has to be read from the log.
      is_alive: returns whether the process of the run is still alive.
      label: the name of the run on each line.
    """
    state = _State(total_steps)
    metrics = _Tail(run / layout.METRICS)
    log = _Tail(run / layout.LOG)

    def write(text: str) -> None:
        sys.stderr.write(f"{label}: {text}\n")
        sys.stderr.flush()

    shown = ""
    written = 0.0
    while True:
        # The process is checked before the files are read, so that its last lines are read as well.
        alive = is_alive()
        for text in log.read():
            warning = state.see_log(plain(text.decode(errors="replace")))
            if warning:
                write(f"warning: {warning}")
        for record in filter(None, map(parse_metrics_line, metrics.read())):
            for line in state.see_metrics(*record):
                write(line)
        if not alive:
            break
        late = time.monotonic() - written >= PHASE_EVERY_SECONDS
        if not state.recent and (state.phase != shown or late):
            shown = state.phase
            written = time.monotonic()
            write(f"{shown}… {state.elapsed}")
        time.sleep(POLL_SECONDS)
    write(state.verdict())


class _State:
    """The state of a run, from its log and its metrics."""

    def __init__(self, total_steps: int) -> None:
        self.total_steps = total_steps
        self.started = time.monotonic()
        self.phase = "starting Ray, vLLM and FSDP"
        self.recent: dict[int, Metrics] = {}  # the metrics of the last training steps
        self.alerts: set[tuple[str, str]] = set()
        self.warnings: set[str] = set()

    def see_log(self, line: str) -> str | None:
        """Read a line of the log; return a warning of the plug-in unless it was shown before."""
        for pattern, phase in _PHASES:
            if pattern.search(line):
                self.phase = phase
        total = _TOTAL_STEPS.search(line)
        if total and not self.total_steps:
            self.total_steps = int(total[1])
        match = _WARNING.match(line)
        if match is None or match[1] in self.warnings:
            return None
        self.warnings.add(match[1])
        return match[1]

    def see_metrics(self, step: int, data: Metrics) -> Iterator[str]:
        """Read the metrics of a step; yield its line, and each alert that begins, also again."""
        if only_validation(data):
            return
        self.recent[step] = data
        while len(self.recent) > MANY_STEPS + 1:
            oldest = next(iter(self.recent))
            del self.recent[oldest]
        yield self.place + self.describe()
        keys = dict.fromkeys(key for metrics in self.recent.values() for key in metrics)
        components = [name for name in map(MEAN.name_in, keys) if name is not None]
        alerts = {}
        for alert in find_alerts(self.recent, components):
            if alert.ongoing:
                alerts[alert.component, alert.kind] = alert
        for key, alert in alerts.items():
            if key not in self.alerts:
                yield f"alert: {alert}. {alert.advice}"
        self.alerts = set(alerts)

    @property
    def elapsed(self) -> str:
        return duration(round(time.monotonic() - self.started))

    @property
    def step(self) -> int:
        return max(self.recent, default=0)

    @property
    def place(self) -> str:
        return f"step {self.step}" + (f"/{self.total_steps}: " if self.total_steps else ": ")

    def describe(self) -> str:
        """Return the text after the step: components, constant groups, pace and remaining time."""
        last = self.recent[self.step]
        parts = []
        for key, value in last.items():
            name = MEAN.name_in(key)
            if name is not None:
                constant = last.get(CONSTANT_GROUPS.of(name))
                share = "" if constant is None else f" ({constant:.0%} constant)"
                parts.append(f"{name} {value:.3f}{share}")
        steps = [*self.recent.values()][-_RECENT:]
        seconds = [data["timing_s/step"] for data in steps if "timing_s/step" in data]
        if seconds:
            parts.append(f"{mean(seconds):.1f} s a step")
            left = self.total_steps - self.step
            if left > 0:
                parts.append(f"about {duration(round(left * mean(seconds)))} left")
        return ", ".join(parts)

    def verdict(self) -> str:
        """Return the last line, after the process has ended."""
        if not self.recent:
            return f"ended after {self.elapsed} ({self.phase})"
        how = "ended early after" if self.step < self.total_steps else "done in"
        if not self.total_steps:
            how = "ended after"
        return f"{self.place}{how} {self.elapsed}: {self.describe()}"


class _Tail:
    """Reads the complete lines that were added to a file since the last call."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # The lines of an earlier start are skipped.
        self.offset = path.stat().st_size if path.exists() else 0

    def read(self) -> list[bytes]:
        if not self.path.exists():
            return []
        with self.path.open("rb") as stream:
            stream.seek(self.offset)
            new = stream.read()
        complete = new.rfind(b"\n") + 1  # the last line may still be incomplete
        self.offset += complete
        return new[:complete].splitlines()
