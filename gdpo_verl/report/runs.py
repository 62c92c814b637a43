"""Read what a training left in its run directory: metrics, dumps, configuration.

RUN/metrics.jsonl            verl's `file` tracker, {"step": int, "data": {metric: number}}
RUN/metrics.<n>.jsonl        the same of earlier launches, n = 1, 2, … (see set_aside_metrics)
RUN/rollouts/<step>.jsonl    trainer.rollout_data_dir
RUN/validation/<step>.jsonl  trainer.validation_data_dir; step 0 is before training
RUN/config.yaml              the resolved configuration
RUN/train.log                what the driver printed

Only the metrics are needed; whatever else is missing is named in `Run.notes`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

METRICS = "metrics.jsonl"
Metrics = dict[str, float]
Series = list[tuple[int, float]]

_COMPONENT = re.compile(r"gdpo/(.+)/mean")
_VALIDATION = re.compile(r"val-(?:core|aux)/(?P<source>.+)/(?P<name>[^/]+)/mean@(?P<n>\d+)")


class RunError(ValueError):
    """A directory that was expected to hold a run does not."""


@dataclass(frozen=True)
class Run:
    """One training, as read from its directory.

    Attributes:
      path: the run directory.
      name: what figures and tables call it.
      metrics: step to metrics; step 0 holds the validation before training.
      rollouts: step to dump of the training rollouts.
      validation: step to dump of the held-out completions.
      config: the resolved configuration; empty when it was not kept.
      notes: what is missing or was ignored, as sentences.
    """

    path: Path
    name: str
    metrics: dict[int, Metrics]
    rollouts: dict[int, Path]
    validation: dict[int, Path]
    config: DictConfig
    notes: tuple[str, ...]

    def setting(self, key: str) -> Any:
        """The configuration's value at a dotted key; None when it is not known."""
        try:
            return OmegaConf.select(self.config, key)
        except OmegaConfBaseException:
            # A configuration that was kept unresolved may use resolvers nobody registered here.
            return None

    @property
    def estimator(self) -> str:
        return str(self.setting("algorithm.adv_estimator") or self.name)

    @property
    def components(self) -> list[str]:
        """Reward components, in the order in which they were first logged."""
        found = (_COMPONENT.fullmatch(key) for data in self.metrics.values() for key in data)
        return list(dict.fromkeys(match[1] for match in found if match))

    @property
    def training_steps(self) -> list[int]:
        return [step for step, data in self.metrics.items() if not _only_validation(data)]

    def series(self, key: str) -> Series:
        """(step, value) of one metric, in the order of steps."""
        return [(step, data[key]) for step, data in self.metrics.items() if key in data]

    def validation_series(self, component: str) -> dict[str, Series]:
        """(step, mean over prompts) of a component for each held-out data source."""
        result: dict[str, Series] = {}
        for step, data in self.metrics.items():
            # mean@n exists for several n when some prompts lost a session: the largest is whole.
            largest: dict[str, tuple[int, float]] = {}
            for key, value in data.items():
                match = _VALIDATION.fullmatch(key)
                if match and match["name"] == component:
                    candidate = (int(match["n"]), value)
                    largest[match["source"]] = max(
                        largest.get(match["source"], (0, 0.0)), candidate
                    )
            for source, (_, value) in largest.items():
                result.setdefault(source, []).append((step, value))
        return result


def read_run(path: Path) -> Run:
    """Read a run directory.

    Raises:
      RunError: there is no such directory, or it holds no metrics.
    """
    path = Path(path)
    if not path.is_dir():
        raise RunError(
            f"{path}: expected a run directory that holds {METRICS}, found "
            f"{'a file' if path.exists() else 'nothing'}. Give the directory of a training, "
            "for example runs/quickstart/gdpo."
        )
    notes: list[str] = []
    metrics = _read_metrics(path, notes)
    if not metrics:
        raise RunError(
            f"{path}: expected {METRICS} with at least one line of verl's `file` tracker, found "
            f"{_contents(path)}. Train with trainer.logger=[console,file] and "
            f"VERL_FILE_LOGGER_PATH={path / METRICS}, or wait for the first step."
        )
    run = Run(
        path=path,
        name=path.resolve().name,
        metrics=metrics,
        rollouts=_dumps(path / "rollouts", "trainer.rollout_data_dir", notes),
        validation=_dumps(path / "validation", "trainer.validation_data_dir", notes),
        config=_read_config(path / "config.yaml", notes),
        notes=(),
    )
    return Run(**{**vars(run), "notes": (*notes, *_gaps(run))})


def set_aside_metrics(run: Path) -> Path | None:
    """Move metrics.jsonl to the next free metrics.<n>.jsonl; call before a run is resumed.

    verl's `file` tracker opens its file for writing, so a resumed run would erase
    the steps logged before it. Returns the new name, or None when there is nothing to keep.
    """
    current = Path(run) / METRICS
    if not current.is_file() or not current.stat().st_size:
        return None
    number = 1 + max((n for n, _ in _earlier_metrics(Path(run))), default=0)
    return current.rename(current.with_name(f"metrics.{number}.jsonl"))


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a dump; lines that are not whole are left out."""
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if isinstance(row, dict):
                yield row


def parse_metrics_line(line: bytes) -> tuple[int, Metrics] | None:
    """One line of the `file` tracker; None when it is not a whole one.

    >>> parse_metrics_line(b'{"step": 3, "data": {"critic/score/mean": 1, "epoch": null}}')
    (3, {'critic/score/mean': 1.0})
    >>> parse_metrics_line(b'{"step": 4, "da') is None
    True
    """
    try:
        record = json.loads(line)
        step, data = int(record["step"]), record["data"].items()
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    # orjson writes NaN as null: such a value was not measured.
    return step, {key: float(value) for key, value in data if is_number(value)}


def is_number(value: Any) -> bool:
    """Whether a value from JSON is a finite number.

    >>> [is_number(value) for value in (1, 0.5, float("nan"), None, "1", True)]
    [True, True, False, False, False, False]
    """
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _earlier_metrics(run: Path) -> list[tuple[int, Path]]:
    found = ((re.fullmatch(r"metrics\.(\d+)\.jsonl", path.name), path) for path in run.iterdir())
    return sorted((int(match[1]), path) for match, path in found if match)


def _read_metrics(run: Path, notes: list[str]) -> dict[int, Metrics]:
    files = [path for _, path in _earlier_metrics(run)]
    files += [run / METRICS] if (run / METRICS).is_file() else []
    metrics: dict[int, Metrics] = {}
    for path in files:
        lines = path.read_bytes().split(b"\n")
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            record = parse_metrics_line(line)
            if record is not None:
                _add(metrics, *record)
            elif number == len(lines):
                notes.append(f"The last line of {path.name} is cut off and was ignored.")
            else:
                notes.append(f"Line {number} of {path.name} is not a metrics line; ignored.")
    return metrics


def _add(metrics: dict[int, Metrics], step: int, data: Metrics) -> None:
    """A step that was logged before means a resume: what followed it was done again."""
    for later in [known for known in metrics if known > step]:
        del metrics[later]
    # A resumed run first validates at the step of its checkpoint, which was trained before.
    earlier = metrics.get(step, {}) if _only_validation(data) else {}
    metrics[step] = {**earlier, **data}


def _only_validation(data: Mapping[str, float]) -> bool:
    return all(key.startswith(("val-core/", "val-aux/")) for key in data)


def _dumps(directory: Path, key: str, notes: list[str]) -> dict[int, Path]:
    found = {int(p.stem): p for p in directory.glob("*.jsonl") if p.stem.isdecimal()}
    if not found:
        notes.append(f"No {directory.name}/<step>.jsonl: set {key} to keep the completions.")
    return dict(sorted(found.items()))


def _read_config(path: Path, notes: list[str]) -> DictConfig:
    if not path.is_file():
        notes.append("No config.yaml: names and settings are taken from the directory's name.")
        return OmegaConf.create({})
    try:
        config = OmegaConf.load(path)
    except (OSError, yaml.YAMLError, OmegaConfBaseException) as error:
        notes.append(f"config.yaml could not be read ({type(error).__name__}); it is left out.")
        return OmegaConf.create({})
    if not isinstance(config, DictConfig):
        notes.append("config.yaml is not a mapping; it is left out.")
        return OmegaConf.create({})
    return config


def _gaps(run: Run) -> Iterator[str]:
    steps, total = run.training_steps, run.setting("trainer.total_training_steps")
    if not run.components:
        yield (
            "No gdpo/<component>/mean in the metrics: there is nothing to draw for each reward. "
            "Train with gdpo-verl installed and algorithm.gdpo.metrics=true."
        )
    if not steps:
        yield "No training step has been logged yet."
    elif steps[0] > 1:
        yield f"The metrics begin at step {steps[0]}; verl overwrites them on a resume."
    if steps and is_number(total) and steps[-1] < total:
        yield f"The run was at step {steps[-1]} of {total} when it was read."
    for component in run.components:
        if not run.validation_series(component):
            yield f"No held-out {component} in the metrics: set trainer.test_freq."


def _contents(path: Path) -> str:
    names = sorted(entry.name for entry in path.iterdir())
    if METRICS in names:
        return f"no whole line in {METRICS}"
    return ", ".join(names[:5]) + (", …" if len(names) > 5 else "") if names else "it empty"
