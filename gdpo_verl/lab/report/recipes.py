"""Group runs by recipe, so that runs that differ only by seed count together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from omegaconf import OmegaConf

from gdpo_verl.lab.rundir.run import Run, flattened

# The names and the paths of a run, which do not distinguish recipes.
_NAMES = {
    "trainer.experiment_name",
    "trainer.project_name",
    "trainer.default_local_dir",
    "trainer.rollout_data_dir",
    "trainer.validation_data_dir",
}
NOTHING = "–"
# A row of a table: the name of a quantity or a setting, and its value in each column.
Row = tuple[str, tuple[str, ...]]


@dataclass(frozen=True)
class Recipe:
    """Runs whose configurations are the same except for seeds, names and paths."""

    name: str  # the recipe's name; the run's name if there is only one run
    runs: tuple[Run, ...]  # in the order of the command line


def group_by_recipe(runs: Sequence[Run]) -> list[Recipe]:
    """Group runs by recipe, in the order of their first run.

    Runs belong to one recipe if they were launched with the same recipe, and their configurations
    differ only in seeds, names and the runs' own paths. A run without a configuration forms a
    recipe of its own.
    """
    groups: dict[Any, list[Run]] = {}
    for run in runs:
        settings = [(key, text) for key, text in _settings(run).items() if not key.endswith("seed")]
        key = (run.launch.get("recipe"), *settings) if settings else run.path
        groups.setdefault(key, []).append(run)
    named = [_name(members) for members in groups.values()]
    return [
        Recipe(name if named.count(name) == 1 else members[0].name, tuple(members))
        for name, members in zip(named, groups.values(), strict=True)
    ]


def config_differences(runs: Sequence[Run]) -> list[Row]:
    """Return a row for each setting that differs between the runs whose configuration is known."""
    settings = [_settings(run) for run in runs]
    keys = sorted(set().union(*settings))
    rows = []
    for key in keys:
        values = {each.get(key, NOTHING) for each in settings if each}
        if len(values) > 1:
            rows.append((key, tuple(_shown(each, key) for each in settings)))
    return rows


def _name(members: Sequence[Run]) -> str:
    if len(members) == 1:
        return members[0].name
    recipe = members[0].launch.get("recipe")
    return str(recipe or members[0].setting("trainer.experiment_name") or members[0].name)


def _settings(run: Run) -> dict[str, str]:
    """Return the settings of a run as text, by dotted key.

    Names of the run are left out, and the path of the run directory is replaced by RUN.
    """
    directory = str(run.path.resolve())
    # Interpolations stay unresolved, because a reference may lead nowhere.
    flat = flattened("", OmegaConf.to_container(run.config, resolve=False))
    return {
        key: str(value).replace(directory, "RUN")
        for key, value in flat
        if key and key not in _NAMES
    }


def _shown(settings: Mapping[str, str], key: str) -> str:
    if not settings:
        return "no config.yaml"
    value = settings.get(key, NOTHING)
    # Only the last part of a path identifies the file; the rest depends on the machine.
    return f"…/{PurePosixPath(value).name}" if value.startswith("/") else value
