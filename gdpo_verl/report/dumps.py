"""One pass over a dump: what its groups show, and the rollouts that the page keeps of it."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from gdpo_verl.report.collapse import (
    Combination,
    Vector,
    cancels,
    combinations,
    constant_components,
    reward_vector,
    stuck_at,
)
from gdpo_verl.rundir.dumps import (
    ADVANTAGES,
    DUMP_BYTES,
    Row,
    cut,
    group_of,
    is_padding,
    read_rows,
    short_prompt,
    thin,
    variant_of,
)
from gdpo_verl.rundir.metrics import is_number

# What the page keeps of a dump, so that a long training stays readable on a phone: groups until
# the step's characters are used up (the first in any case), rollouts of each, and of a text its
# beginning and its end.
STEP_CHARACTERS = 20_000
GROUP_ROWS = 16
TEXT_CHARACTERS = 1_500
DEAD_PROMPTS = 5
_NO_SCORES = {"step", *ADVANTAGES}


@dataclass(frozen=True)
class Step:
    """A dump, read once.

    Attributes:
      rows: those that could be read.
      groups: those with a scored component; padding is left out.
      dead: the groups in which nothing varies, by the rewards that all of their rollouts got.
      dead_prompts: the ends of a few of their prompts.
      compared: groups of which both advantages were dumped.
      collapsed: those in which GRPO alone takes different rewards for equal.
      reverse: those in which GDPO alone does: components that cancel after normalisation.
      example: the combinations of the group with the most that GRPO takes for equal.
      shown: what the page's browser shows, see `_shown_group`.
      shown_of: of how many groups.
      notes: what could not be read, as sentences.
    """

    rows: int
    groups: int
    dead: Mapping[Vector, int]
    dead_prompts: tuple[str, ...]
    compared: int
    collapsed: int
    reverse: int
    example: tuple[Combination, ...]
    shown: tuple[dict[str, Any], ...]
    shown_of: int
    notes: tuple[str, ...]


def read_step(path: Path, components: Sequence[str]) -> Step:
    """Read a dump; one that has not changed since is not read again."""
    status = path.stat()
    return _read_step(path, status.st_mtime_ns, status.st_size, tuple(components))


def prompt_digest(prompt: str) -> bytes:
    """A prompt's SHA-256: an order that knows nothing of how good the answers are."""
    return hashlib.sha256(prompt.encode(errors="replace")).digest()


@lru_cache(maxsize=4096)
def _read_step(path: Path, modified: int, size: int, components: tuple[str, ...]) -> Step:
    name = f"{path.parent.name}/{path.name}"
    notes = []
    broken: list[int] = []
    groups, rows = _groups(read_rows(path, broken=broken))
    if size > DUMP_BYTES:
        notes.append(
            f"{name} has {size / 2**20:,.0f} MiB: only its first {DUMP_BYTES >> 20} MiB were read, "
            "which may cut its last group."
        )
    elif broken:
        notes.append(f"{name}: {len(broken)} lines are no whole rows (line {broken[0]} first).")
    judged = [_judge(members, components) for members in groups]
    # Those with the most that GRPO takes for equal, then in an order that knows no score.
    judged.sort(key=lambda group: (-group.confused, prompt_digest(group.prompt)))
    dead = [group for group in judged if group.stuck is not None]
    compared = [group.different for group in judged if group.different is not None]
    return Step(
        rows=rows,
        groups=sum(group.scored for group in judged),
        dead=Counter(group.stuck for group in dead if group.stuck is not None),
        dead_prompts=tuple(short_prompt(group.prompt) for group in dead[:DEAD_PROMPTS]),
        compared=len(compared),
        collapsed=sum(group.confused > 0 for group in judged),
        reverse=sum(map(cancels, compared)),
        example=judged[0].different or () if judged and judged[0].confused else (),
        shown=_shown(judged, components),
        shown_of=len(judged),
        notes=tuple(notes),
    )


@dataclass(frozen=True)
class _Group:
    """A group, its prompt, whether a component is scored, the rewards it is stuck at, its
    combinations where every row has both advantages, and how many of these GRPO takes for equal."""

    members: Sequence[Row]
    prompt: str
    scored: bool
    stuck: Vector | None
    different: tuple[Combination, ...] | None
    confused: int


def _judge(members: Sequence[Row], components: Sequence[str]) -> _Group:
    whole = [
        reward_vector(row, (*components, "grpo_advantage", "gdpo_advantage")) for row in members
    ]
    vectors = [each[:-2] for each in whole]
    pairs = [(grpo, gdpo) for *_, grpo, gdpo in whole if grpo is not None and gdpo is not None]
    comparable = bool(components) and len(pairs) == len(members)
    different = combinations(vectors, pairs) if comparable else None
    return _Group(
        members=members,
        prompt=str(members[0].get("input", "")),
        scored=any(value is not None for vector in vectors for value in vector),
        stuck=stuck_at(vectors) if len(members) > 1 else None,
        different=different,
        confused=sum(each.collapsed for each in different or ()),
    )


def _groups(rows: Iterable[Row]) -> tuple[list[list[Row]], int]:
    """Rows by prompt, without the padding that verl adds, and how many rows there were."""
    groups: dict[tuple[str, str], list[Row]] = {}
    count = 0
    for row in rows:
        count += 1
        if not is_padding(row):
            groups.setdefault(group_of(row), []).append(row)
    return list(groups.values()), count


def _shown(groups: Iterable[_Group], components: Sequence[str]) -> tuple[dict[str, Any], ...]:
    shown: list[dict[str, Any]] = []
    used = 0
    for each in groups:
        group = _shown_group(each.members, each.different or (), components)
        used += len(group["prompt"]) + len(group["expected"])
        used += sum(len(row["text"]) for row in group["rows"])
        if shown and used > STEP_CHARACTERS:
            break
        shown.append(group)
    return tuple(shown)


def _shown_group(
    members: Sequence[Row], different: Sequence[Combination], components: Sequence[str]
) -> dict[str, Any]:
    """A group as the page's script reads it.

    `keys` names the scores: the components, or without them every number of the rows. `constant`
    names those that do not vary, `variant` the estimator whose advantages are there besides.
    Rows are in the order of GDPO's advantage; of many, evenly spaced ones are kept.
    """
    keys = list(components)
    variant, column = variant_of(members[0])
    if not any(is_number(row.get(key)) for row in members for key in keys):
        keys = [key for key, value in members[0].items() if is_number(value)]
        keys = [key for key in keys if key not in _NO_SCORES and key != column]
    vectors = [reward_vector(row, keys) for row in members]
    confused = {each.rewards for each in different if each.collapsed}
    order = sorted(range(len(members)), key=lambda i: -_number(members[i].get(ADVANTAGES[0])))
    return {
        "title": short_prompt(str(members[0].get("input", ""))),
        "prompt": cut(members[0].get("input"), TEXT_CHARACTERS),
        "expected": cut(members[0].get("gts"), TEXT_CHARACTERS),
        "keys": keys,
        "variant": variant,
        "constant": [
            key
            for key, same in zip(keys, constant_components(vectors), strict=True)
            if same and len(members) > 1
        ],
        "size": len(members),
        "rows": [
            {
                "text": cut(members[i].get("output"), TEXT_CHARACTERS),
                "scores": vectors[i],
                "gdpo": _or_none(members[i].get("gdpo_advantage")),
                "grpo": _or_none(members[i].get("grpo_advantage")),
                "variant": _or_none(members[i].get(column)),
                "collapsed": vectors[i] in confused and keys == list(components),
            }
            for i in thin(order, GROUP_ROWS)
        ],
    }


def _number(value: Any) -> float:
    return float(value) if is_number(value) else 0.0


def _or_none(value: Any) -> float | None:
    return float(value) if is_number(value) else None
