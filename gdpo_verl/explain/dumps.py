"""The user's own rollouts: one step of verl's rollout dumps, as groups to compare.

A dump of a run with this plug-in has the components and both advantages of each row. What is
missing is computed where that is possible, and named in `Dump.notes`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import filterfalse, islice
from pathlib import Path
from typing import Any

import torch

from gdpo_verl.advantage import gdpo_scalars, grpo_scalars
from gdpo_verl.distinct import levels
from gdpo_verl.explain.compare import Rollout, mark_ties
from gdpo_verl.report.groups import reward_vector
from gdpo_verl.rundir.dumps import (
    ADVANTAGES,
    DUMP_BYTES,
    group_of,
    is_padding,
    read_rows,
    short_prompt,
    shorten,
    variant_of,
)
from gdpo_verl.rundir.metrics import is_number
from gdpo_verl.rundir.run import find_runs, read_run

MAX_ROWS = 4096
MAX_CHARACTERS = 4000
# Numbers of a dump's row that are no reward components.
_NOT_COMPONENTS = {"score", "step", "acc", "reward", "parse_error", *ADVANTAGES}


@dataclass(frozen=True)
class Group:
    """The rollouts of one prompt, with their texts and a variant's advantages in the same order."""

    prompt: str
    rollouts: tuple[Rollout, ...]
    texts: tuple[str, ...]
    variant: tuple[float | None, ...] = ()

    @property
    def title(self) -> str:
        """The end of the prompt, where the question usually stands, and what collapsed."""
        tied = sum(each.split for each in self.rollouts)
        return f"{short_prompt(self.prompt, 60)} ({tied} collapsed)"


@dataclass(frozen=True)
class Dump:
    """One step's groups, those with the most to show first.

    Attributes:
      variant: the estimator whose advantages the dump holds beside GDPO's and GRPO's; may be "".
    """

    components: tuple[str, ...]
    groups: tuple[Group, ...]
    notes: tuple[str, ...]
    variant: str = ""


def find_dumps(path: Path) -> dict[int, Path]:
    """The dumps of a run directory or of a folder of dumps, by step.

    Raises:
      ValueError: there are none; says what was found instead.
    """
    path = Path(path).expanduser()
    for folder in (path / "rollouts", path):
        found = {int(p.stem): p for p in folder.glob("*.jsonl") if p.stem.isdecimal()}
        if found:
            return dict(sorted(found.items()))
    expected = "expected a run directory with rollouts/<step>.jsonl, or that folder itself, found"
    if not path.is_dir():
        raise ValueError(f"{path}: {expected} {'a file' if path.exists() else 'nothing'}.")
    names = sorted(entry.name for entry in path.iterdir())
    inside = [name for name in names if any((path / name / "rollouts").glob("*.jsonl"))]
    if inside:
        raise ValueError(f"{path}: {expected} several runs. Give one of them: {', '.join(inside)}.")
    held = ", ".join(names[:5]) + (", …" if len(names) > 5 else "") if names else "it empty"
    raise ValueError(f"{path}: {expected} {held}. Set trainer.rollout_data_dir to keep rollouts.")


def known_components(path: Path) -> tuple[str, ...]:
    """The components that a run's metrics name; none when it has no metrics."""
    try:
        return tuple(read_run(find_runs([Path(path).expanduser()])[0]).components)
    except ValueError:
        return ()


def read_dump(path: Path, known: Sequence[str] = ()) -> Dump:
    """Read one step's dump, at most `MAX_ROWS` rows of it.

    Lines that are not whole are left out, as are rows that have no reward.

    Args:
      path: a dump, <step>.jsonl.
      known: the run's components. Without them every number is one that is not known to be
        something else.
    """
    notes: list[str] = []
    broken: list[int] = []
    rows = list(islice(filterfalse(is_padding, read_rows(path, broken=broken)), MAX_ROWS + 1))
    if len(rows) > MAX_ROWS or path.stat().st_size > DUMP_BYTES:
        del rows[MAX_ROWS:]
        notes.append(
            f"{path.name} is long: only its first {len(rows)} rows were read, which may cut the "
            "last group."
        )
    elif broken:
        notes.append(f"Lines of {path.name} that are no whole rows: {len(broken)}; left out.")
    variant, column = variant_of(rows[0]) if rows else ("", "")
    numbers = dict.fromkeys(key for row in rows for key in row if is_number(row[key]))
    components = tuple(key for key in known if key in numbers) or tuple(
        key for key in numbers if key not in _NOT_COMPONENTS and key != column
    )
    if missing := [key for key in known if key not in numbers]:
        notes.append(f"{path.name} lacks what the run's metrics name: {', '.join(missing)}.")
    if not components:
        found = ", ".join(sorted(rows[0])) if rows else "no whole row"
        notes.append(
            f"{path.name} has no reward components ({found}). Train with gdpo-verl installed and a "
            "reward function that declares its components."
        )
        return Dump((), (), tuple(notes))
    without = [row for row in rows if not any(is_number(row.get(key)) for key in components)]
    if without:
        notes.append(f"Rows without any reward component: {len(without)}; left out.")
        rows = [row for row in rows if any(is_number(row.get(key)) for key in components)]
    if any("uid" not in row for row in rows):
        notes.append("Some rows have no uid: rows with the same prompt are taken for a group.")
    advantages = _advantages(rows, components, notes)
    by_group: dict[tuple[str, str], list[int]] = {}
    for i, row in enumerate(rows):
        by_group.setdefault(group_of(row), []).append(i)
    groups = [
        _group(rows, advantages, members, components, column) for members in by_group.values()
    ]
    groups.sort(key=_interest, reverse=True)
    return Dump(components, tuple(groups), tuple(notes), variant)


def _interest(group: Group) -> tuple[int, int]:
    """Collapsed rollouts, then different advantages: groups that teach nothing come last."""
    collapsed = sum(each.split for each in group.rollouts)
    return collapsed, len(set(levels([each.gdpo for each in group.rollouts])))


def _advantages(
    rows: Sequence[Mapping[str, Any]], components: Sequence[str], notes: list[str]
) -> list[tuple[float, float]]:
    """GRPO's and GDPO's advantage of each row: the dumped ones, where every row has them."""
    if all(is_number(row.get(key)) for row in rows for key in ADVANTAGES):
        return [(float(row["grpo_advantage"]), float(row["gdpo_advantage"])) for row in rows]
    notes.append(
        "Some rows have no grpo_advantage and gdpo_advantage: both are computed from the rewards "
        "in this file, with all weights 1, no conditions, and whitening over its sequences."
    )
    rewards = torch.tensor([_rewards(row, components) for row in rows], dtype=torch.float64)
    group_ids = [group_of(row) for row in rows]
    grpo = grpo_scalars(rewards, group_ids).tolist()
    gdpo = gdpo_scalars(rewards, group_ids, torch.ones(len(rows)), whiten="sequence").tolist()
    return list(zip(grpo, gdpo, strict=True))


def _rewards(row: Mapping[str, Any], components: Sequence[str]) -> tuple[float, ...]:
    values = reward_vector(row, components)
    return tuple(math.nan if value is None else value for value in values)


def _group(
    rows: Sequence[Mapping[str, Any]],
    advantages: Sequence[tuple[float, float]],
    members: Sequence[int],
    components: Sequence[str],
    column: str,
) -> Group:
    names = [str(n) for n in range(1, len(members) + 1)]
    rollouts = mark_ties(
        names,
        [_rewards(rows[i], components) for i in members],
        [advantages[i][0] for i in members],
        [advantages[i][1] for i in members],
    )
    places = [members[int(each.name) - 1] for each in rollouts]
    return Group(
        shorten(rows[members[0]].get("input"), MAX_CHARACTERS),
        tuple(rollouts),
        tuple(shorten(rows[i].get("output"), MAX_CHARACTERS) for i in places),
        tuple(_or_none(rows[i].get(column)) for i in places),
    )


def _or_none(value: Any) -> float | None:
    return float(value) if is_number(value) else None
