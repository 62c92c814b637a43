"""Read the metrics of a run from the files that verl's trackers or TRL wrote.

RUN/metrics.jsonl       the `file` tracker, {"step": int, "data": {metric: number}}
RUN/metrics.<n>.jsonl   the same file of earlier launches, n = 1, 2, … (see set_aside_metrics)
RUN.jsonl               the same file if VERL_FILE_LOGGER_PATH was not set: verl then writes
                        <project>/<experiment>.jsonl
RUN/trainer_state.json  TRL's state, or the state in TRL's last checkpoint; read only if none of
                        the files above exists
RUN/**/events.out.tfevents.*   event files of the `tensorboard` tracker or of TRL; read only if none
                        of the files above exists
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gdpo_verl.advantage.checks import is_number
from gdpo_verl.lab.rundir.dumps import parse_json
from gdpo_verl.lab.rundir.layout import METRICS

STATE = "trainer_state.json"
EVENTS = "events.out.tfevents.*"
Metrics = dict[str, float]
Series = list[tuple[int, float]]
# TRL logs the runtime of an evaluation before its rewards. With several data sets, only the key of
# the runtime contains the data set's name.
_EVALUATION = re.compile(r"eval_(?:(.+)_)?runtime")
_EVALUATED = re.compile(r"eval_rewards/(.+)/mean")
# TRL's names of metrics that verl logs under another name.
_OF_TRL = {
    "completions/mean_length": "response_length/mean",
    "entropy": "actor/entropy",
    "kl": "actor/kl_loss",
}


class RunError(ValueError):
    """A directory that was expected to hold a run does not."""


def read_metrics(run: Path, notes: list[str]) -> tuple[dict[int, Metrics], str]:
    """Read the metrics of each step from a run directory or a tracker's file.

    TRL's metrics get verl's names. A sentence is added to `notes` for everything that could not be
    read.

    Returns:
      the metrics by step, and the name of TRL's file from which they were read; "" for a run of
      verl.

    Raises:
      RunError: TRL's state cannot be read, or the run has only event files and tensorboard is not
        installed.
    """
    if run.is_file():
        return _read_lines([run], notes), ""
    files = [path for _, path in _earlier_metrics(run)]
    if (run / METRICS).is_file():
        files.append(run / METRICS)
    if files:
        return _read_lines(files, notes), ""
    state = trainer_state(run)
    if state:
        return _read_state(state, notes), state.relative_to(run).as_posix()
    events = sorted({path.parent for path in run.rglob(EVENTS)})
    return _read_events(run, events, notes) if events else ({}, "")


def _read_lines(files: Sequence[Path], notes: list[str]) -> dict[int, Metrics]:
    """Read files of the `file` tracker, in the order of the launches."""
    metrics: dict[int, Metrics] = {}
    for path in files:
        for step, data in _records(path, notes):
            # When a step is logged a second time, the run was resumed, and trained the later steps
            # again.
            for later in [logged for logged in metrics if logged > step]:
                del metrics[later]
            # A resumed run begins with a validation at the step of its checkpoint. The training
            # metrics of this step come from before the resume.
            earlier = metrics.get(step, {}) if only_validation(data) else {}
            metrics[step] = {**earlier, **data}
    return metrics


def trainer_state(run: Path) -> Path | None:
    """Return TRL's state file with the largest step, in the run's directory or in a checkpoint.

    The step decides, not the modification time, because copying a run changes this time. A state
    that was not written completely counts last.
    """
    states = [*run.glob(STATE), *run.glob(f"checkpoint-*/{STATE}")]
    return max(states, key=_step_of, default=None)


def _step_of(state: Path) -> int:
    """Return the step of TRL's state; -1 if the file cannot be read."""
    with contextlib.suppress(RunError):
        return int(load_state(state).get("global_step", 0))
    return -1


def set_aside_metrics(run: Path) -> Path | None:
    """Rename metrics.jsonl to the next free metrics.<n>.jsonl.

    Call this function before a run is resumed: verl's `file` tracker opens its file for writing, so
    that a resumed run would erase the steps that were logged before.

    Returns:
      the new path; None if there are no metrics.
    """
    current = run / METRICS
    if not current.is_file() or not current.stat().st_size:
        return None
    number = 1 + max((n for n, _ in _earlier_metrics(run)), default=0)
    return current.rename(current.with_name(f"metrics.{number}.jsonl"))


def parse_metrics_line(line: bytes) -> tuple[int, Metrics] | None:
    """Read one line of the `file` tracker; return None if the line is incomplete.

    >>> parse_metrics_line(b'{"step": 3, "data": {"critic/score/mean": 1, "epoch": null}}')
    (3, {'critic/score/mean': 1.0})
    >>> parse_metrics_line(b'{"step": 4, "da') is None
    True
    """
    try:
        record = parse_json(line)
        step = int(record["step"])
        data = record["data"].items()
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    # orjson writes NaN as null: the value was not measured.
    return step, {key: float(value) for key, value in data if is_number(value)}


def only_validation(data: Mapping[str, float]) -> bool:
    """Return whether a step's metrics come from a validation alone."""
    return all(key.startswith(("val-core/", "val-aux/")) for key in data)


def _earlier_metrics(run: Path) -> list[tuple[int, Path]]:
    """Return the files metrics.<n>.jsonl with their numbers, in the order of the launches."""
    numbered = []
    for path in run.glob("metrics.*.jsonl"):
        number = path.name.removeprefix("metrics.").removesuffix(".jsonl")
        if number.isdecimal():
            numbered.append((int(number), path))
    return sorted(numbered)


def tracker_files(path: Path) -> list[Path]:
    """Return the files at a path whose first line is one of the `file` tracker, the newest last."""
    files = []
    for file in [path, *path.glob("*.jsonl")]:
        if file.is_file():
            with file.open("rb") as stream:
                line = stream.readline(1 << 20)
            if parse_metrics_line(line):
                files.append(file)
    return sorted(files, key=lambda file: file.stat().st_mtime)


def _records(path: Path, notes: list[str]) -> Iterator[tuple[int, Metrics]]:
    for number, line in enumerate(path.read_bytes().split(b"\n"), start=1):
        record = parse_metrics_line(line)
        if record:
            yield record
        elif line.strip():
            notes.append(f"Line {number} of {path.name} is not a complete metrics line; ignored.")


def load_state(path: Path) -> dict[str, Any]:
    """Read TRL's state.

    Raises:
      RunError: the file contains something else.
    """
    try:
        state = parse_json(path.read_bytes())
    except ValueError:
        state = None
    if not isinstance(state, dict) or not isinstance(state.get("log_history"), list):
        raise RunError(f"{path}: expected TRL's state with a log_history, found another file.")
    return state


def _read_state(path: Path, notes: list[str]) -> dict[int, Metrics]:
    metrics: dict[int, Metrics] = {}
    history = load_state(path)["log_history"]
    entries = [each for each in history if isinstance(each, dict) and is_number(each.get("step"))]
    if len(entries) < len(history):
        notes.append(f"{len(history) - len(entries)} entries of {path.name} have no step; ignored.")
    for entry in entries:  # a step may have several entries
        matches = filter(None, map(_EVALUATION.fullmatch, entry))
        data_set = next((match[1] for match in matches), None)
        numbers = metrics.setdefault(int(entry["step"]), {})
        for key, value in entry.items():
            if is_number(value) and key not in ("step", "epoch"):
                numbers[_name_from_trl(key, data_set)] = float(value)
    return metrics


def _name_from_trl(key: str, data_set: str | None) -> str:
    """Return the name that verl or this package has for a metric of TRL.

    Args:
      key: TRL's name.
      data_set: the data set of an evaluation with several; None for a single one.

    >>> _name_from_trl("eval_rewards/short/mean", "gsm8k"), _name_from_trl("eval_loss", None)
    ('val-aux/gsm8k/short/mean@1', 'val-aux/eval/loss')
    """
    source = data_set or "eval"
    match = _EVALUATED.fullmatch(key)
    if match:
        return f"val-aux/{source}/{match[1]}/mean@1"
    if key.startswith("eval_"):
        return f"val-aux/{source}/{key.removeprefix('eval_')}"
    return _OF_TRL.get(key, key)


def _read_events(
    run: Path, directories: list[Path], notes: list[str]
) -> tuple[dict[int, Metrics], str]:
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ModuleNotFoundError:
        raise RunError(
            f"{run}: expected {METRICS}, found only TensorBoard's event files. To read them, run: "
            "pip install tensorboard"
        ) from None
    # The name of an event file contains the time of its creation in seconds.
    newest = max(directories, key=lambda each: max(path.name for path in each.glob(EVENTS)))
    if len(directories) > 1:
        notes.append(
            f"Event files are in {len(directories)} directories; the report reads the newest, "
            f"{newest.relative_to(run).as_posix()}."
        )
    # The limit 0 keeps every value. Apart from scalars verl and TRL log only texts and tables.
    events = EventAccumulator(str(newest), size_guidance={"scalars": 0})
    events.Reload()
    tags = events.Tags()["scalars"]
    logged = [(event, tag) for tag in tags for event in events.Scalars(tag)]
    metrics: dict[int, Metrics] = {}
    data_set = None
    for event, tag in sorted(logged, key=lambda each: each[0].wall_time):
        # TRL writes train/x for x and eval/x for eval_x; verl writes neither prefix. With several
        # data sets only the order of the events says to which of them a reward belongs.
        key = re.sub("^eval/", "eval_", tag.removeprefix("train/"))
        match = _EVALUATION.fullmatch(key)
        data_set = match[1] if match else data_set
        if is_number(event.value) and key != "epoch":
            metrics.setdefault(event.step, {})[_name_from_trl(key, data_set)] = event.value
    of_trl = any(tag.startswith("train/") for tag in tags)
    return dict(sorted(metrics.items())), newest.name if of_trl else ""
