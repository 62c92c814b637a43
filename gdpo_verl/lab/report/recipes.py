"""Runs of one recipe belong together: their mean and spread over seeds, and what differs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from omegaconf import OmegaConf

from gdpo_verl.lab.rundir.run import Run, flattened

# What a run is called and where it writes.
_NAMES = {
    "trainer.experiment_name",
    "trainer.project_name",
    "trainer.default_local_dir",
    "trainer.rollout_data_dir",
    "trainer.validation_data_dir",
}
NOTHING = "–"
# A quantity or a setting, and its value in each column.
Row = tuple[str, tuple[str, ...]]


@dataclass(frozen=True)
class Recipe:
    """Runs whose configurations are the same but for seeds, names and places."""

    name: str  # the recipe's, or the only run's
    runs: tuple[Run, ...]  # in the order in which they were given


def group_by_recipe(runs: Sequence[Run]) -> list[Recipe]:
    """Runs by recipe, in the order of their first run.

    Together are runs that were launched with the same recipe and whose configurations differ in
    seeds, names and the runs' own paths alone. A run without configuration stays alone.
    """
    groups: dict[Any, list[Run]] = {}
    for run in runs:
        settings = [each for each in _settings(run).items() if not each[0].endswith("seed")]
        key = (run.launch.get("recipe"), *settings) if settings else run.path
        groups.setdefault(key, []).append(run)
    named = [_name(members) for members in groups.values()]
    return [
        Recipe(name if named.count(name) == 1 else members[0].name, tuple(members))
        for name, members in zip(named, groups.values(), strict=True)
    ]


def config_differences(runs: Sequence[Run]) -> list[Row]:
    """The settings that differ between the runs whose configuration is known, by key."""
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
    """Dotted keys to values as text, without names and with the run's own directory as RUN."""
    own = str(run.path.resolve())
    # Interpolations stay as they are written: a reference may lead nowhere.
    flat = flattened("", OmegaConf.to_container(run.config, resolve=False))
    return {key: str(value).replace(own, "RUN") for key, value in flat if key and key not in _NAMES}


def _shown(settings: Mapping[str, str], key: str) -> str:
    if not settings:
        return "no config.yaml"
    value = settings.get(key, NOTHING)
    # A path says where this machine keeps a file; its last part says which one it is.
    return f"…/{PurePosixPath(value).name}" if value.startswith("/") else value
