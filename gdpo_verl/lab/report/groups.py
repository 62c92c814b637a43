"""The groups of a dump: which collapse, which are dead, and the rollouts that the page keeps."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from gdpo_verl.config.components import MINI_BATCH, TOKENS
from gdpo_verl.distinct import levels
from gdpo_verl.lab.rundir.dumps import (
    ADVANTAGES,
    DUMP_BYTES,
    Row,
    evenly_spaced,
    group_of,
    is_padding,
    read_rows,
    short_prompt,
    shorten,
    variant_of,
)
from gdpo_verl.lab.rundir.metrics import is_number

# What the page keeps of a dump, so that a long training stays readable on a phone: groups until
# the step's characters are used up (the first in any case), rollouts of each, and of a text its
# beginning and its end.
STEP_CHARACTERS = 20_000
GROUP_ROWS = 16
TEXT_CHARACTERS = 1_500
# Numbers of a row that no reward returned.
_NO_SCORES = ("step", TOKENS, MINI_BATCH)

Vector = tuple[float | None, ...]


@dataclass(frozen=True)
class RewardPattern:
    """Rollouts of one group that got the same rewards."""

    rewards: Vector  # one a component; None where it is not scored
    count: int
    grpo: float
    gdpo: float
    collapsed: bool  # GRPO gives it the advantage of another pattern, GDPO does not


@dataclass(frozen=True)
class DumpSummary:
    """A dump, read once."""

    rows: int  # those that could be read
    groups: int  # those with a scored component; padding is left out
    dead: Mapping[Vector, int]  # groups in which nothing varies, by what all their rollouts got
    dead_prompt: str  # the end of the prompt of one of them
    compared: int  # groups of which both advantages were dumped
    collapsed: int  # those in which GRPO alone gives one advantage to different rewards
    collapsed_by_gdpo: int  # those in which GDPO alone does: components that cancel out
    example: tuple[RewardPattern, ...]  # of the group with the most that GRPO takes for equal
    shown: tuple[dict[str, Any], ...]  # what the page's browser shows, see `_shown_group`
    shown_of: int  # the number of groups that `shown` is taken from
    notes: tuple[str, ...]  # what could not be read, as sentences


def read_step(path: Path, components: Sequence[str]) -> DumpSummary:
    """Read a dump; one that has not changed since is not read again."""
    status = path.stat()
    return _read_step(path, status.st_mtime_ns, status.st_size, tuple(components))


def prompt_digest(prompt: str) -> bytes:
    """A prompt's SHA-256: an order that knows nothing of how good the answers are."""
    # Half of a surrogate pair, which JSON can hold, has no UTF-8.
    return hashlib.sha256(prompt.encode(errors="replace")).digest()


def reward_vector(row: Mapping[str, Any], components: Sequence[str]) -> Vector:
    """A row's components, None where it is not scored."""
    return tuple(_number(row, key) for key in components)


def constant_rewards(vectors: Sequence[Vector]) -> Vector:
    """For each component the value that all its scored rollouts share; None if there is none.

    >>> constant_rewards([(1.0, 0.0, None), (1.0, 2.0, None)])
    (1.0, None, None)
    """
    columns = [
        {value for value in column if value is not None} for column in zip(*vectors, strict=True)
    ]
    return tuple(next(iter(values)) if len(values) == 1 else None for values in columns)


def reward_patterns(
    vectors: Sequence[Vector], advantages: Sequence[tuple[float, float]]
) -> tuple[RewardPattern, ...]:
    """A group's different rewards, the largest GRPO advantage first.

    Args:
      vectors: the rewards of each rollout of the group.
      advantages: of each rollout, GRPO's and GDPO's.
    """
    counts = Counter(vectors)
    # An advantage follows from the rewards: within a group one rollout speaks for all like it.
    firsts: dict[Vector, tuple[float, float]] = {}
    for rewards, pair in zip(vectors, advantages, strict=True):
        firsts.setdefault(rewards, pair)
    order = sorted(firsts, key=lambda rewards: firsts[rewards], reverse=True)
    grpo, gdpo = ([firsts[rewards][k] for rewards in order] for k in (0, 1))
    collapsed = ties_split_elsewhere(grpo, gdpo)
    return tuple(
        RewardPattern(rewards, counts[rewards], *firsts[rewards], collapsed[i])
        for i, rewards in enumerate(order)
    )


def ties_split_elsewhere(first: Sequence[float], second: Sequence[float]) -> list[bool]:
    """For each response: does another share its first advantage but not its second?

    >>> ties_split_elsewhere([0.5, 0.5, 1.0], [0.2, 0.9, 0.9])
    [True, True, False]
    """
    seconds = defaultdict(set)
    pairs = list(zip(levels(first), levels(second), strict=True))
    for same, other in pairs:
        seconds[same].add(other)
    return [len(seconds[same]) > 1 for same, _ in pairs]


@lru_cache(maxsize=4096)
def _read_step(path: Path, modified: int, size: int, components: tuple[str, ...]) -> DumpSummary:
    # Time and size are there for the cache, which else would answer from before the last change.
    name = f"{path.parent.name}/{path.name}"
    notes = []
    broken: list[int] = []
    members: dict[tuple[str, str], list[Row]] = {}
    rows = 0
    for row in read_rows(path, broken=broken):
        rows += 1
        if not is_padding(row):
            members.setdefault(group_of(row), []).append(row)
    if size > DUMP_BYTES:
        notes.append(
            f"{name} has {size / 2**20:,.0f} MiB: only its first {DUMP_BYTES >> 20} MiB were read, "
            "which may cut its last group."
        )
    elif broken:  # a file that is not read to its end ends within a line
        notes.append(f"{name}: {len(broken)} lines are no whole rows (line {broken[0]} first).")
    groups = [_summarise_group(each, components) for each in members.values()]
    # Those with the most that GRPO takes for equal, then in an order that knows no score.
    groups.sort(key=lambda group: (-group.collapsed_count, prompt_digest(group.prompt)))
    dead = [(group.dead, group.prompt) for group in groups if group.dead is not None]
    compared = [group.patterns for group in groups if group.patterns]
    shown: list[dict[str, Any]] = []
    used = 0
    for group in groups:
        found = _shown_group(group, components)
        texts = [found["prompt"], found["expected"], *(row["text"] for row in found["rows"])]
        used += sum(map(len, texts))
        if shown and used > STEP_CHARACTERS:
            break
        shown.append(found)
    return DumpSummary(
        rows=rows,
        groups=sum(group.scored for group in groups),
        dead=Counter(rewards for rewards, _ in dead),
        dead_prompt=short_prompt(dead[0][1]) if dead else "",
        compared=len(compared),
        collapsed=sum(group.collapsed_count > 0 for group in groups),
        collapsed_by_gdpo=sum(
            any(ties_split_elsewhere([p.gdpo for p in found], [p.grpo for p in found]))
            for found in compared
        ),
        example=groups[0].patterns if groups and groups[0].collapsed_count else (),
        shown=tuple(shown),
        shown_of=len(groups),
        notes=tuple(notes),
    )


@dataclass(frozen=True)
class _Group:
    members: Sequence[Row]
    prompt: str
    scored: bool
    dead: Vector | None  # the rewards that all rollouts got, where nothing varies
    patterns: tuple[RewardPattern, ...]  # none where a row lacks an advantage
    collapsed_count: int


def _summarise_group(members: Sequence[Row], components: Sequence[str]) -> _Group:
    whole = [
        reward_vector(row, (*components, "grpo_advantage", "gdpo_advantage")) for row in members
    ]
    vectors = [each[:-2] for each in whole]
    pairs = [(grpo, gdpo) for *_, grpo, gdpo in whole if grpo is not None and gdpo is not None]
    comparable = bool(components) and len(pairs) == len(members)
    patterns = reward_patterns(vectors, pairs) if comparable else ()
    values = [{v for v in column if v is not None} for column in zip(*vectors, strict=True)]
    # A rollout alone has nothing that it could differ from.
    still = len(members) > 1 and any(values) and all(len(each) < 2 for each in values)
    return _Group(
        members=members,
        prompt=str(members[0].get("input", "")),
        scored=any(values),
        dead=constant_rewards(vectors) if still else None,
        patterns=patterns,
        collapsed_count=sum(each.collapsed for each in patterns),
    )


def _shown_group(group: _Group, components: Sequence[str]) -> dict[str, Any]:
    """A group as the page's script reads it.

    `keys` names the scores: the components, or without them every number of the rows. `unscored`
    names components that no row has, `constant` those that do not vary, `variant` the estimator
    whose advantages are there too. Rows are in the order of GDPO's advantage; of many, evenly
    spaced ones are kept.
    """
    keys = list(components)
    members = group.members
    variant, column = variant_of(members[0])
    # A dump without the plug-in's components has verl's score, and what its reward function adds.
    if not any(is_number(row.get(key)) for row in members for key in keys):
        keys = [key for key, value in members[0].items() if is_number(value)]
        keys = [key for key in keys if key not in (*_NO_SCORES, *ADVANTAGES) and key != column]
    vectors = [reward_vector(row, keys) for row in members]
    # Of many rewards a prompt may have two: the others are named once.
    scored = [k for k in range(len(keys)) if any(vector[k] is not None for vector in vectors)]
    confused = {each.rewards for each in group.patterns if each.collapsed}
    # Held-out rows, which have no advantage, stay in the order of the dump.
    order = sorted(range(len(members)), key=lambda i: -(_number(members[i], ADVANTAGES[0]) or 0))
    return {
        "title": short_prompt(group.prompt),
        "prompt": shorten(group.prompt, TEXT_CHARACTERS),
        "expected": shorten(members[0].get("gts"), TEXT_CHARACTERS),
        "keys": [keys[k] for k in scored],
        "unscored": [key for k, key in enumerate(keys) if k not in scored],
        "variant": variant,
        "constant": [
            key
            for key, value in zip(keys, constant_rewards(vectors), strict=True)
            if value is not None and len(members) > 1
        ],
        "size": len(members),
        "rows": [
            {
                "text": shorten(members[i].get("output"), TEXT_CHARACTERS),
                "scores": tuple(vectors[i][k] for k in scored),
                "gdpo": _number(members[i], "gdpo_advantage"),
                "grpo": _number(members[i], "grpo_advantage"),
                "variant": _number(members[i], column),
                "collapsed": vectors[i] in confused and keys == list(components),
            }
            for i in evenly_spaced(order, GROUP_ROWS)
        ],
    }


def _number(row: Mapping[str, Any], key: str) -> float | None:
    return float(row[key]) if is_number(row.get(key)) else None
