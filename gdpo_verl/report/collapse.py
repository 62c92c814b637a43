"""Advantage collapse in the rollout dumps: different rewards, the same GRPO advantage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gdpo_verl.report.runs import Run, is_number, read_rows

# Dumps hold float32 values; advantages closer than this are the same one.
SAME = 1e-4


@dataclass(frozen=True)
class Combination:
    """Rollouts of one group that got the same components."""

    rewards: tuple[float, ...]
    count: int
    grpo: float
    gdpo: float
    collapsed: bool


@dataclass(frozen=True)
class Group:
    """All rollouts of one prompt in one training step."""

    run: str
    step: int
    components: tuple[str, ...]
    combinations: tuple[Combination, ...]


@dataclass(frozen=True)
class Collapse:
    """How many groups were looked at, in how many which estimator saw less, and one to show.

    Attributes:
      groups: groups whose rows have components and both advantages.
      collapsed: those in which only GRPO gives one advantage to different components.
      reverse: those in which only GDPO does: components that cancel after normalisation.
      example: the group with the most combinations that GRPO takes for equal to another.
    """

    groups: int
    collapsed: int
    reverse: int
    example: Group | None


def find_collapse(runs: Sequence[Run]) -> Collapse:
    """Count the groups in which one estimator gives the same advantage to different
    components that the other tells apart.

    Of groups that would do as the example, the first by run and step is taken.
    """
    groups = collapsed = reverse = 0
    example: Group | None = None
    most = 0
    for run in runs:
        components = tuple(run.components)
        for step, path in run.rollouts.items():
            for rows in _groups(read_rows(path), components):
                combinations = _combinations(rows, components)
                groups += 1
                size = sum(each.collapsed for each in combinations)
                collapsed += size > 0
                reverse += any(
                    abs(one.gdpo - other.gdpo) < SAME <= abs(one.grpo - other.grpo)
                    for one in combinations
                    for other in combinations
                )
                if size > most:
                    most, example = size, Group(run.name, step, components, combinations)
    return Collapse(groups, collapsed, reverse, example)


def _groups(
    rows: Iterator[dict[str, Any]], components: Sequence[str]
) -> Iterator[list[dict[str, Any]]]:
    """Rows by prompt; padding and unscored rows have no numbers and drop out."""
    needed = (*components, "grpo_advantage", "gdpo_advantage")
    by_uid: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if components and all(is_number(row.get(key)) for key in needed):
            # verl's key of an output is {uid}_{session}_{output}.
            by_uid.setdefault(str(row.get("uid", "")).rsplit("_", 2)[0], []).append(row)
    yield from by_uid.values()


def _combinations(
    rows: Sequence[Mapping[str, Any]], components: Sequence[str]
) -> tuple[Combination, ...]:
    found: dict[tuple[float, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        found.setdefault(tuple(float(row[key]) for key in components), []).append(row)
    firsts = {
        rewards: (float(same[0]["grpo_advantage"]), float(same[0]["gdpo_advantage"]))
        for rewards, same in found.items()
    }
    return tuple(
        Combination(
            rewards=rewards,
            count=len(found[rewards]),
            grpo=grpo,
            gdpo=gdpo,
            collapsed=any(
                abs(grpo - other_grpo) < SAME <= abs(gdpo - other_gdpo)
                for other_grpo, other_gdpo in firsts.values()
            ),
        )
        for rewards, (grpo, gdpo) in sorted(
            firsts.items(), key=lambda item: (-item[1][0], -item[1][1])
        )
    )
