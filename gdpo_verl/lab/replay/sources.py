"""Places where answers lie: a run, verl's dumps, TRL's completions, rows of anybody's."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from gdpo_verl.config.components import ADVANTAGE, RESERVED
from gdpo_verl.config.parsing import plain
from gdpo_verl.lab.rundir import layout
from gdpo_verl.lab.rundir.dumps import ADVANTAGES, Row, numbered_rows
from gdpo_verl.lab.rundir.metrics import RunError, is_number
from gdpo_verl.lab.rundir.run import read_run
from gdpo_verl.names import did_you_mean

_STEP = re.compile(r"(?:completions_)?0*(\d+)\.(?:jsonl|parquet)")
# Rows that are looked at to know the columns: a component may be unscored in the first of them.
_PEEK = 1024
# Columns with numbers that no reward returned.
_NO_REWARD = (*RESERVED, "advantage", "parse_error", "prompt", "completion")


@dataclass(frozen=True)
class Layout:
    """The columns of a source's rows.

    Attributes:
      kind: `run` (dumped with the plug-in), `verl`, `trl` or `rows`.
      group: the column that names the group; "" for verl's uid, else its prompt.
      components: in order.
      score: the column that GRPO normalises, "" where there is none.
      columns: all of them.
    """

    kind: str
    group: str
    components: tuple[str, ...]
    score: str
    columns: tuple[str, ...]


@dataclass(frozen=True)
class Source:
    """The files of one place.

    Attributes:
      path: as it was given.
      files: by step; by None where a file holds several steps.
      algorithm: verl's node of a run whose configuration was kept.
      named: the components that a run's metrics name.
      notes: sentences for the user.
    """

    path: Path
    files: dict[int | None, Path]
    algorithm: dict[str, Any] | None
    named: tuple[str, ...]
    notes: tuple[str, ...]


def find_source(path: Path) -> Source:
    """The dumps that a path holds.

    Raises:
      ValueError: there are none, or those of several runs.
    """
    if path.is_file():
        step = _STEP.fullmatch(path.name)
        files: dict[int | None, Path] = {int(step[1]) if step else None: path}
        return Source(path, files, *_run_of(path.parent), ())
    if not path.is_dir():
        raise ValueError(
            f"{path}: expected a run, a folder of dumps or a file of rows, found nothing there"
        )
    inside = [*path.glob("*/"), *path.glob("*/*/")]
    folders = [each for each in inside if each.name != layout.VALIDATION]
    found = {each: steps for each in (path, *folders) if (steps := _dumps(each))}
    if not found:
        raise ValueError(
            f"{path}: expected rollouts/<step>.jsonl of a run, verl's <step>.jsonl "
            "(trainer.rollout_data_dir) or TRL's completions_<step>.parquet (log_completions), "
            f"found {sorted(each.name for each in path.iterdir())[:8]}. A file of other rows is "
            "named itself."
        )
    if len(found) > 1:
        raise ValueError(
            f"{path}: expected the dumps of one run, found those of {len(found)}: "
            f"{', '.join(map(str, found))}. Give one of them."
        )
    folder, files = next(iter(found.items()))
    return Source(path, files, *_run_of(folder), tuple(_missing(folder, files)))


def read_layout(
    source: Source,
    group: str | None,
    components: Sequence[str] | None,
    keys: Iterable[str],
    *,
    scored: bool = False,
    bare: bool = False,
) -> Layout:
    """The columns of the rows, by the first of them.

    Args:
      group, components: the columns that the user named.
      keys: components that a setting or a reward names.
      scored: the answers are scored anew, so that components are no columns.
      bare: rows without components will do.

    Raises:
      ValueError: no rows, no such column, or no component.
    """
    first = next(iter(source.files.values()))
    rows = [row for (_, row), _ in zip(numbered_rows(first), range(_PEEK), strict=False) if row]
    if not rows:
        raise ValueError(f"{first}, line 1: expected rows, one JSON object a line, found none")
    columns = tuple(dict.fromkeys(key for row in rows for key in row))
    kind = _kind(columns)
    for option, names in (
        ("--group", [group] if group else []),
        ("--components", components or ()),
    ):
        for name in names:
            if name not in columns:
                raise ValueError(
                    f"{option}: {name!r} is no column of {first}, line 1; there are "
                    f"{list(columns)}.{did_you_mean(name, columns)}"
                )
    if kind == "rows" and not group:
        raise ValueError(
            f"{first}, line 1: the rows hold neither uid nor prompt. Name the column that answers "
            f"to one prompt share with --group; there are {list(columns)}"
        )
    score = next((name for name in ("score", "reward") if name in columns and kind != "trl"), "")
    named = tuple(components or keys) or (() if scored else source.named or _numbers(rows))
    if not named and not bare:
        raise ValueError(
            f"{first}, line 1: a dump without components: there is nothing to decouple in "
            f"{list(columns)}. Score the answers anew with --function FILE:NAME, or train with "
            "gdpo-verl installed."
        )
    return Layout(kind, group or "", named, score, columns)


def returned_numbers(
    source: Source, score: Callable[[Row, str], Mapping[str, Any]]
) -> tuple[str, ...]:
    """The components that a reward without a declaration returns for the first answer."""
    first = next(iter(source.files.values()))
    for line, row in numbered_rows(first):
        if row is not None:
            return _numbers([dict(score(row, f"{first}, line {line}"))])
    return ()


def _kind(columns: Sequence[str]) -> str:
    if ADVANTAGES[0] in columns:
        return "run"
    if "advantage" in columns and "completion" in columns:
        return "trl"
    return "verl" if "uid" in columns or "input" in columns else "rows"


def _numbers(rows: Sequence[Row]) -> tuple[str, ...]:
    """The columns that hold a number in one of the rows."""
    columns = dict.fromkeys(key for row in rows for key in row)
    numbers = {
        key for row in rows for key, value in row.items() if is_number(value) or value is True
    }
    own = [n for n in columns if n not in _NO_REWARD and not n.endswith(ADVANTAGE)]
    return tuple(name for name in own if name in numbers)


def _dumps(folder: Path) -> dict[int | None, Path]:
    files: dict[int | None, Path] = {}
    named = ((_STEP.fullmatch(each.name), each) for each in folder.iterdir() if each.is_file())
    for match, each in sorted(named, key=lambda pair: pair[1].name):
        if match and (other := files.setdefault(int(match[1]), each)) != each:
            raise ValueError(
                f"{folder}: expected the dumps of one run, found {other.name} and {each.name}, "
                "both of one step. Give a folder with one of them."
            )
    return dict(sorted(files.items()))


def _run_of(folder: Path) -> tuple[dict[str, Any] | None, tuple[str, ...]]:
    """The settings of the run that a folder of dumps belongs to, and its components."""
    place = folder.parent if folder.name in (layout.ROLLOUTS, layout.VALIDATION) else folder
    algorithm = None
    # A run of verl's own command has what Hydra kept of it.
    for config in (place / ".hydra/config.yaml", place / layout.CONFIG):
        if config.is_file():
            algorithm = _algorithm_of(config)
    try:
        return algorithm, tuple(read_run(place).components)
    except RunError:
        return algorithm, ()


def _algorithm_of(config: Path) -> dict[str, Any] | None:
    try:
        node = OmegaConf.select(OmegaConf.load(config), "algorithm")
        return None if node is None else plain(node)
    except (OmegaConfBaseException, yaml.YAMLError, TypeError) as error:
        raise ValueError(
            f"{config}: expected the run's configuration with `algorithm`, found: {error}. "
            "Mend it, or give a copy of the folder of dumps alone"
        ) from error


def _missing(folder: Path, files: dict[int | None, Path]) -> Iterable[str]:
    steps = [step for step in files if step is not None]
    absent = sorted(set(range(min(steps), max(steps) + 1)) - set(steps))
    # A run may dump every tenth step alone.
    strides = {after - before for before, after in itertools.pairwise(steps)}
    if absent and len(strides) > 1:
        more = ", …" if len(absent) > 8 else ""
        yield (
            f"{folder}: of steps {min(steps)} to {max(steps)} are missing "
            f"{', '.join(map(str, absent[:8]))}{more}"
        )
