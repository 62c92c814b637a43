"""Read one training run from its run directory: metrics, dumps and configuration.

`rundir.layout` lists the files of a run directory. Only a source of metrics is required;
`rundir.metrics` lists the sources. `Run.notes` names every other file that is missing.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from gdpo_verl.config.parsing import plain
from gdpo_verl.lab.rundir.dumps import parse_json, step_files
from gdpo_verl.lab.rundir.layout import (
    CONFIG,
    LAUNCH,
    METRICS,
    ROLLOUTS,
    VALIDATION,
)
from gdpo_verl.lab.rundir.metrics import (
    EVENTS,
    STATE,
    Metrics,
    RunError,
    Series,
    only_validation,
    read_metrics,
    tracker_files,
    trainer_state,
)
from gdpo_verl.names import MEAN, UNSCORED

# The remedy for a lost config.yaml.
WRITE_ANEW = (
    f"Write {CONFIG} anew with the command of the last start and `--cfg job > FILE`, or choose "
    "another run directory."
)
# An interpolation that calls a resolver instead of referring to a key, with the backslashes
# before it.
_RESOLVER = re.compile(r"(\\*)\$\{(?![\w.]+\})")
_VALIDATION = re.compile(r"val-(?:core|aux)/(?P<name>.+)/mean@(?P<n>\d+)")


@dataclass(frozen=True)
class Run:
    """One training run, as read from its directory."""

    path: Path
    name: str  # the run's name in figures and tables
    metrics: dict[int, Metrics]  # by step; step 0 holds the validation before training
    rollouts: dict[int, Path]  # the dump of each step
    notes: tuple[str, ...]  # what is missing or was ignored, as sentences
    validation: dict[int, Path] = field(default_factory=dict)
    config: DictConfig = field(default_factory=lambda: DictConfig({}))  # empty when not stored
    launch: dict[str, Any] = field(default_factory=dict)  # empty when another command started it

    def setting(self, key: str) -> Any:
        """Return the configuration's value at a dotted key; None when the value is unknown."""
        return select(self.config, key)

    @property
    def estimator(self) -> str:
        return str(self.setting("algorithm.adv_estimator") or self.name)

    @cached_property
    def components(self) -> list[str]:
        """The reward components, in the order in which they were first logged."""
        names = (MEAN.name_in(key) or UNSCORED.name_in(key) for key in logged_keys([self]))
        return [name for name in dict.fromkeys(names) if name]

    @cached_property
    def training_steps(self) -> list[int]:
        return [step for step, data in self.metrics.items() if not only_validation(data)]

    def series(self, key: str) -> Series:
        """Return (step, value) pairs of one metric, in the order of steps."""
        return [(step, data[key]) for step, data in self.metrics.items() if key in data]

    def values(self, key: str) -> list[float]:
        """Return the values of one metric, in the order of steps."""
        return [value for _, value in self.series(key)]

    def validation_series(self, component: str) -> dict[str, Series]:
        """Return (step, mean over prompts) of a component for each held-out data source."""
        by_name = self._held_out
        end = f"/{component}"
        by_source = {
            name.removesuffix(end): series for name, series in by_name.items() if name.endswith(end)
        }
        # A logged name is SOURCE/COMPONENT, and both parts may contain slashes. verl logs a
        # "reward" for each source, which tells the sources. Where it is missing, every name that
        # ends in the component counts.
        sources = {name.removesuffix("/reward") for name in by_name if name.endswith("/reward")}
        sources = sources or set(by_source)
        return {source: series for source, series in by_source.items() if source in sources}

    @cached_property
    def _held_out(self) -> dict[str, Series]:
        """The validation metrics, each under its name SOURCE/COMPONENT."""
        result: dict[str, Series] = {}
        for step, data in self.metrics.items():
            # verl logs mean@n for several n when some prompts lost a rollout. The mean with the
            # largest n covers all rollouts.
            largest: dict[str, tuple[int, float]] = {}
            for key, value in data.items():
                match = _VALIDATION.fullmatch(key)
                if match:
                    candidate = (int(match["n"]), value)
                    largest[match["name"]] = max(largest.get(match["name"], (0, 0.0)), candidate)
            for name, (_, value) in largest.items():
                result.setdefault(name, []).append((step, value))
        return result


def logged_keys(runs: Sequence[Run]) -> list[str]:
    """Return the names of all metrics of the runs, in the order in which they were first logged."""
    keys: dict[str, None] = {}
    for run in runs:
        for data in run.metrics.values():
            keys |= dict.fromkeys(data)
    return list(keys)


def find_runs(paths: Sequence[Path]) -> list[Path]:
    """Return the runs at these paths.

    A path may be a run, or a directory that contains several runs or several files of metrics.
    """
    found: list[Path] = []
    for path in map(Path, paths):
        found += _runs_at(path)
    return list(dict.fromkeys(found))


def _runs_at(path: Path) -> list[Path]:
    named = path.parent / f"{path.name}.jsonl"
    if any(path.glob("metrics.*")):
        return [path]
    path = named if named.is_file() else path
    files = tracker_files(path)
    children = [child for child in path.glob("*/") if not child.name.startswith("checkpoint-")]
    inside = [child for child in children if (child / METRICS).is_file() or _is_trls(child)]
    # A single folder of event files may belong to the run at this path. Several such folders are
    # one run each.
    logged = [child for child in children if child not in inside and any(child.glob(EVENTS))]
    inside += logged if inside or len(logged) > 1 else []
    at_path = [path] if _is_trls(path) else files
    return sorted([*at_path, *inside]) or [path]


def _is_trls(path: Path) -> bool:
    """Return whether TRL wrote its state, or its event files under `runs/`, into a directory."""
    return trainer_state(path) is not None or any(path.glob(f"runs/*/{EVENTS}"))


def read_run(path: Path) -> Run:
    """Read a run from its directory, or from its file of metrics.

    With a file PROJECT/EXPERIMENT.jsonl, the directory PROJECT/EXPERIMENT is read as well.

    Raises:
      RunError: the path does not exist, or contains no metrics.
    """
    path = Path(path)
    if path.is_file() and path.name in (METRICS, STATE):
        path = path.parent
    if not path.is_dir() and not tracker_files(path):
        instead = "another file" if path.exists() else "nothing"
        raise RunError(
            f"{path}: expected a run directory that holds {METRICS}, or a file of verl's `file` "
            f"tracker or TRL's {STATE}, found {instead}. "
            "Give for example runs/quickstart/gdpo or PROJECT/EXPERIMENT.jsonl."
        )
    notes: list[str] = []
    metrics, from_trl = read_metrics(path, notes)
    path = path if path.is_dir() else path.with_suffix("")
    if not metrics:
        files = sorted(entry.name for entry in path.iterdir())[:5]
        raise RunError(
            f"{path}: expected {METRICS} with at least one complete line of verl's `file` tracker, "
            f"found the files {files}. Train with trainer.logger=[console,file] and "
            f"VERL_FILE_LOGGER_PATH={path / METRICS} (in TRL call trainer.save_state()), or wait "
            "for the first step."
        )
    config = DictConfig({})
    with contextlib.suppress(ValueError):
        config = settings_with(path / CONFIG)
    launch: dict[str, Any] = {}
    with contextlib.suppress(RunError):
        launch = read_launch(path)
    rollouts = path / "completions" if from_trl else path / ROLLOUTS
    run = Run(
        path=path,
        name=path.resolve().name,
        metrics=metrics,
        rollouts=dict(step_files(rollouts)),
        validation=dict(step_files(path / VALIDATION)),
        config=config,
        launch=launch,
        notes=(),
    )
    if not from_trl:
        return replace(run, notes=(*notes, *_gaps(run)))
    notes.append(f"Of TRL's run, {from_trl} is read: no settings.")
    if not run.components:
        notes.append(f"No {MEAN.of('<name>')} in it: there is nothing to draw for each reward.")
    return replace(run, notes=tuple(notes))


def config_of(run: Path | None) -> DictConfig:
    """Return the configuration in a run's directory; empty where none was stored.

    Raises:
      RunError: the file is empty or incomplete.
    """
    file = run and run / CONFIG
    if not file or not file.is_file():
        return OmegaConf.create({})
    with contextlib.suppress(OSError, ValueError, yaml.YAMLError, OmegaConfBaseException):
        loaded = OmegaConf.load(file)
        if isinstance(loaded, DictConfig) and loaded:
            return loaded
    raise RunError(
        f"{file}: expected the configuration of the run's last start, found a file that is empty "
        f"or not YAML. {WRITE_ANEW}"
    )


def settings_with(file: Path, *nodes: str) -> DictConfig:
    """Read a run's configuration, and check that each of `nodes` is a mapping or absent.

    References to other keys of the file are resolved. Every other interpolation stays text, because
    ``${oc.env:HOME}`` would otherwise show an environment variable of the person who reads the run.

    Raises:
      ValueError: the file is no configuration of a run; the message names the file.
    """
    try:
        # `DictConfig` rejects a configuration whose root is a list.
        root = DictConfig(OmegaConf.load(file))
        settings = as_settings(OmegaConf.to_container(root, resolve=False))
    # OmegaConf raises any of these classes for a file that is no configuration.
    except (OmegaConfBaseException, yaml.YAMLError, AssertionError, TypeError, OSError) as error:
        raise ValueError(_other_configuration(file, error)) from error
    for key in nodes:
        node = select(settings, key)
        if node is not None and not isinstance(node, DictConfig):
            raise ValueError(_other_configuration(file, f"{key}: {node}"))
    return settings


def node_of(file: Path, key: str) -> dict[str, Any] | None:
    """Return a node of a run's configuration with its references resolved; None if it is absent.

    Raises:
      ValueError: `settings_with` rejects the file, or a reference leads nowhere.
    """
    node = settings_with(file, key).get(key)
    try:
        return None if node is None else plain(node)
    except OmegaConfBaseException as error:
        raise ValueError(_other_configuration(file, error)) from error


def _other_configuration(file: Path, found: Any) -> str:
    return (
        f"{file}: expected the run's configuration, with a mapping in each of its sections, found: "
        f"{found}. Correct it, or give a copy of only the folder of dumps"
    )


def select(config: DictConfig, key: str) -> Any:
    """Return a configuration's value at a dotted key; None when the value is unknown."""
    try:
        return OmegaConf.select(config, key)
    except OmegaConfBaseException:
        return None  # a value that was never set, or a reference that leads nowhere


def as_settings(root: Any) -> DictConfig:
    """Return a configuration in which only references to keys are interpolations.

    `settings_with` gives the reason.
    """
    return DictConfig(_without_resolvers(root))


def _without_resolvers(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: _without_resolvers(value) for key, value in node.items()}
    if isinstance(node, list):
        return [_without_resolvers(value) for value in node]
    if isinstance(node, str):
        # OmegaConf treats an interpolation after a backslash as text.
        return _RESOLVER.sub(r"\1\1\\${", node)
    return node


def read_launch(run: Path) -> dict[str, Any]:
    """Return the content of `launch.json`, which describes the run's last start.

    The result is empty where the file does not exist.

    Raises:
      RunError: the file is empty or incomplete.
    """
    file = run / LAUNCH
    if not file.exists():
        return {}
    with contextlib.suppress(ValueError):
        before = parse_json(file.read_bytes())
        if isinstance(before, dict):
            return before
    raise RunError(
        f"{file}: expected the JSON object that the last start wrote, found a file that is empty "
        "or incomplete. Remove the file if the recipe, the data and the model are still those of "
        "that start, or choose another run directory."
    )


def _gaps(run: Run) -> Iterator[str]:
    """Yield a sentence for each file and each kind of metric that the run lacks."""
    if not run.config:
        yield f"No {CONFIG} that can be read: names are taken from the directory's name."
    if not run.rollouts:
        yield _no_dumps(run, ROLLOUTS, "trainer.rollout_data_dir")
    if not run.validation:
        yield _no_dumps(run, VALIDATION, "trainer.validation_data_dir")
    steps = run.training_steps
    if not run.components:
        yield (
            f"No {MEAN.key} in the metrics: there is nothing to draw for each reward. "
            "Train with gdpo-verl installed and algorithm.gdpo.metrics=true."
        )
    if not steps:
        yield "No training step has been logged yet."
    elif steps[0] > 1:
        yield f"The metrics begin at step {steps[0]}; verl overwrites them on a resume."
    # A validation computes no derived components.
    derived = run.setting("algorithm.gdpo.derived") or {}
    validated = [component for component in run.components if component not in derived]
    missing = [component for component in validated if not run.validation_series(component)]
    if missing:
        yield f"No held-out {', '.join(missing)} in the metrics: set trainer.test_freq."


def _no_dumps(run: Run, folder: str, key: str) -> str:
    return f"No {run.name}/{folder}/<step>.jsonl: set {key} to keep the responses there."


def flattened(prefix: str, node: Any) -> Iterator[tuple[str, Any]]:
    """Yield each value of a nested configuration with its full dotted key."""
    if isinstance(node, dict) and node:
        for key, value in node.items():
            yield from flattened(f"{prefix}.{key}" if prefix else str(key), value)
    else:
        yield prefix, node
