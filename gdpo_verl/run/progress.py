"""A line for each step of a training that writes metrics.jsonl and train.log."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import mean
from typing import TextIO

from gdpo_verl.deaths import plain
from gdpo_verl.rundir.alerts import MANY_STEPS, Alert, find_alerts
from gdpo_verl.rundir.metrics import METRICS, Metrics, only_validation, parse_metrics_line
from gdpo_verl.text import duration

POLL_SECONDS = 1.0
PHASE_EVERY_SECONDS = 60.0
_RECENT = 5

# Lines that verl 0.9 and vLLM print as they get further; the last one seen counts.
_PHASES = (
    (re.compile(r"Started a local Ray instance|Connected to Ray cluster"), "loading the policy"),
    (re.compile(r"Initializing a V1 LLM engine"), "starting vLLM"),
    (re.compile(r"Creating file logger at"), "validating or taking the first step"),
    (re.compile(r"Initial validation metrics"), "taking the first step"),
)
_TOTAL_STEPS = re.compile(r"Total training steps: (\d+)")
# As `gdpo_verl.plugin` writes them.
_WARNING = re.compile(r"(?:WARNING|ERROR|CRITICAL):[^a-z]*:gdpo-verl: (.+)")


def follow(
    run: Path,
    *,
    total_steps: int,
    is_alive: Callable[[], bool],
    label: str,
    val_only: bool = False,
    stream: TextIO | None = None,
) -> None:
    """Show how far a training is until its process ends.

    A line a step; with each component its mean and the share of groups in which it does not vary
    ("dead"). Alerts
    (see `gdpo_verl.rundir.alerts`) and the plug-in's warnings get one line each, once. Lines
    that metrics.jsonl holds when the call begins belong to an earlier launch: a resumed run
    continues from what it logs next.

    Args:
      run: the run directory; it may still be empty.
      total_steps: trainer.total_training_steps; 0 when it is not set, then the log tells it.
      is_alive: whether the training's process still runs.
      label: the run's name on the line.
      val_only: trainer.val_only, under which a run has no steps.
      stream: where to write; sys.stderr by default.
    """
    stream = sys.stderr if stream is None else stream
    state = _State(total_steps, val_only)
    metrics, log = _Tail(run / METRICS), _Tail(run / "train.log")
    metrics.read()
    log.read()
    lines = _Lines(stream, label)
    while True:
        # Asked before reading, so that what the process wrote last is read as well.
        alive = is_alive()
        for text in log.read():
            if warning := state.see_log(plain(text.decode(errors="replace"))):
                lines.write(f"warning: {warning}")
        for text in metrics.read():
            record = parse_metrics_line(text)
            if record is not None:
                state.see_metrics(*record)
                if state.training:
                    lines.write(f"{state.place}{state.describe()}")
                for alert in state.new_alerts():
                    lines.write(alert)
        if not alive:
            break
        lines.show(state)
        time.sleep(POLL_SECONDS)
    lines.write(f"{state.place}{state.verdict()}")


class _State:
    """The state of the training so far."""

    def __init__(self, total_steps: int, val_only: bool) -> None:
        self.total_steps = total_steps
        self.val_only = val_only
        self.started = time.monotonic()
        self.phase = "starting Ray, vLLM and FSDP"
        self.step: int | None = None
        self.rewards: dict[str, float] = {}
        self.dead: dict[str, float] = {}
        self.seconds: list[float] = []
        self.recent: dict[int, Metrics] = {}
        self.raised: set[tuple[str, str]] = set()
        self.warnings: set[str] = set()

    def see_log(self, line: str) -> str | None:
        """Take in a line of the log; returns a warning of the plug-in that is new."""
        for pattern, phase in _PHASES:
            if pattern.search(line):
                self.phase = "validating" if self.val_only and "step" in phase else phase
        if not self.total_steps and (match := _TOTAL_STEPS.search(line)):
            self.total_steps = int(match[1])
        match = _WARNING.match(line)
        if match is None or match[1] in self.warnings:
            return None
        self.warnings.add(match[1])
        return match[1]

    def see_metrics(self, step: int, data: Metrics) -> None:
        self.step = step
        for key, value in data.items():
            if key.startswith("rewards/") and key.endswith("/mean"):
                self.rewards[key.removeprefix("rewards/").removesuffix("/mean")] = value
            elif key.startswith("gdpo/") and key.endswith("/constant_groups"):
                self.dead[key.removeprefix("gdpo/").removesuffix("/constant_groups")] = value
        if not only_validation(data):
            self.recent = dict([*self.recent.items(), (step, data)][-MANY_STEPS:])
        if "timing_s/step" in data:
            self.seconds = [*self.seconds, data["timing_s/step"]][-_RECENT:]

    def new_alerts(self) -> Iterator[str]:
        """Alerts that begin; one that ended may begin again."""
        found = {(alert.component, alert.kind): alert for alert in self._alerts()}
        for key, alert in found.items():
            if key not in self.raised:
                yield f"alert: {alert}. {alert.advice}"
        self.raised = set(found)

    def _alerts(self) -> list[Alert]:
        return find_alerts(self.recent, self.rewards)

    @property
    def elapsed(self) -> str:
        return duration(time.monotonic() - self.started)

    @property
    def training(self) -> bool:
        return self.step is not None and bool(self.rewards or self.seconds)

    @property
    def place(self) -> str:
        """The step as a line begins with it; empty before the first."""
        if not self.training:
            return ""
        return f"step {self.step}" + (f"/{self.total_steps}: " if self.total_steps else ": ")

    def describe(self) -> str:
        """The text behind the step: rewards, pace and time left, or the phase."""
        if not self.training:
            return f"{self.phase}… {self.elapsed}"
        parts = [self._rewards()] if self.rewards else []
        if self.seconds:
            parts.append(f"{mean(self.seconds):.1f} s a step")
            if self.total_steps:
                left = max(0, self.total_steps - (self.step or 0)) * mean(self.seconds)
                parts.append(f"about {duration(left)} left" if left else "finishing")
        return ", ".join(parts)

    def _rewards(self) -> str:
        return ", ".join(
            f"{name} {value:.3f}" + (f" ({self.dead[name]:.0%} dead)" if name in self.dead else "")
            for name, value in self.rewards.items()
        )

    def verdict(self) -> str:
        """The last line, once the process has ended."""
        if self.val_only and self.step is not None:
            return f"validated in {self.elapsed}"
        if not self.training:
            return f"ended after {self.elapsed} while {self.phase}"
        if not self.total_steps:
            return f"ended after {self.elapsed}: {self.describe()}"
        if (self.step or 0) < self.total_steps:
            return f"ended early after {self.elapsed}: {self.describe()}"
        return f"done in {self.elapsed}" + (f": {self._rewards()}" if self.rewards else "")


class _Lines:
    """A line a step, and until the first step one for each phase and minute."""

    def __init__(self, stream: TextIO, label: str) -> None:
        self.stream, self.label = stream, label
        self.phase = ""
        self.written = 0.0

    def show(self, state: _State) -> None:
        now = time.monotonic()
        new = state.phase != self.phase or now - self.written >= PHASE_EVERY_SECONDS
        if not state.training and new:
            self.phase, self.written = state.phase, now
            self.write(state.describe())

    def write(self, text: str) -> None:
        self.stream.write(f"{self.label}: {text}\n")
        self.stream.flush()


class _Tail:
    """Reads the whole lines that were added to a file since the last look."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file: int | None = None
        self.offset = 0

    def read(self) -> list[bytes]:
        try:
            with self.path.open("rb") as stream:
                status = os.fstat(stream.fileno())
                # A new launch makes a new file, or empties the old one (verl's tracker does).
                if status.st_ino != self.file or status.st_size < self.offset:
                    self.file, self.offset = status.st_ino, 0
                stream.seek(self.offset)
                new = stream.read()
        except FileNotFoundError:
            return []
        whole = new.rfind(b"\n") + 1
        self.offset += whole
        return new[:whole].splitlines()
