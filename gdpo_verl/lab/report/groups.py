"""Read the groups of a dump: count collapsed and dead groups, and select responses for the page.

A group collapses if an estimator gives the same advantage to responses to which the other estimator
gives different advantages.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gdpo_verl.config.components import ADVANTAGE
from gdpo_verl.distinct import levels
from gdpo_verl.lab.rundir.columns import may_be_reward
from gdpo_verl.lab.rundir.dumps import (
    ADVANTAGES,
    DUMP_BYTES,
    evenly_spaced,
    numbered_rows,
    reward_of,
    short_prompt,
    shorten,
    variant_column,
)
from gdpo_verl.lab.rundir.responses import (
    GroupTable,
    Response,
    places_by_group,
    responses_of,
)

# Limits that keep the page of a long training run readable on a phone: the characters of one step
# (its first group is kept in any case), the responses of a group, and the characters of a text, of
# which the beginning and the end are kept.
STEP_CHARACTERS = 20_000
GROUP_ROWS = 16
TEXT_CHARACTERS = 1_500

Vector = tuple[float | None, ...]


@dataclass(frozen=True)
class DumpSummary:
    """The counts and the selected responses of one dump.

    If a row is incomplete, no groups are counted: the state of a group is unknown unless all its
    responses are known.
    """

    responses: int
    groups: int  # the number of groups with a scored component
    dead: Mapping[Vector, int]  # dead groups, counted by the rewards of their responses
    dead_prompt: str  # the end of the prompt of one dead group
    compared: int  # the number of groups in which both advantages of all responses were dumped
    collapsed: int  # groups in which GRPO, but not GDPO, gives responses the same advantage
    collapsed_by_gdpo: int  # groups in which GDPO, but not GRPO, does: its terms cancel out
    shown: tuple[dict[str, Any], ...]  # the groups for the page's browser, see `_shown_group`
    shown_of: int  # the number of groups from which `shown` was selected
    notes: tuple[str, ...]  # sentences about what could not be read


def prompt_digest(prompt: str) -> bytes:
    """Return the SHA-256 of a prompt, by which groups are sorted independently of their rewards."""
    # JSON can contain one half of a surrogate pair, for which UTF-8 has no code.
    return hashlib.sha256(prompt.encode(errors="replace")).digest()


def reward_vector(row: Mapping[str, Any], components: Sequence[str]) -> Vector:
    """Return the components of a row; None for a component that is not scored."""
    return tuple(reward_of(row.get(key)) for key in components)


def ties_split_elsewhere(first: Sequence[float], second: Sequence[float]) -> list[bool]:
    """Return for each response whether another one has the same first, but another second value.

    >>> ties_split_elsewhere([0.5, 0.5, 1.0], [0.2, 0.9, 0.9])
    [True, True, False]
    """
    pairs = list(zip(levels(first), levels(second), strict=True))
    seconds = Counter(same for same, _ in set(pairs))
    return [seconds[same] > 1 for same, _ in pairs]


@dataclass(frozen=True)
class _Group:
    """The responses to one prompt.

    Attributes:
      members: the responses.
      scored: the names of the rewards that at least one response has.
      constant: those of them that are constant in the group.
      dead: True if there are several responses and all rewards are constant.
      advantages: the advantages of each response, by GDPO and by GRPO; None if not dumped.
      compared: True if each response has both advantages.
      collapsed: for each response, True if another response has the same advantage by GRPO, and
        another advantage by GDPO.
      collapsed_by_gdpo: True if two responses have the same advantage by GDPO, but not by GRPO.
    """

    members: Sequence[Response]
    scored: Sequence[str]
    constant: Sequence[str]
    dead: bool
    advantages: Sequence[Vector]
    compared: bool
    collapsed: Sequence[bool]
    collapsed_by_gdpo: bool

    @property
    def prompt(self) -> str:
        """The prompt of all responses."""
        return self.members[0].prompt


def _groups_of(responses: Sequence[Response], keys: Sequence[str]) -> list[_Group]:
    """Return the groups of the responses, each within one mini-batch.

    They are sorted by the number of responses that collapse under GRPO, the largest first, and then
    by an order that does not depend on rewards.
    """
    ids = [(response.mini_batch, response.group) for response in responses]
    vectors = [reward_vector(response.row, keys) for response in responses]
    advantages = [reward_vector(response.row, ADVANTAGES) for response in responses]
    # NumPy converts None to NaN.
    rewards = np.array(vectors, dtype=np.float64).reshape(len(responses), len(keys))
    table = GroupTable.of(torch.from_numpy(rewards), ids)
    scored = table.scored.tolist()
    constant = table.constant.tolist()
    dead = table.dead.tolist()
    groups = []
    for number, places in enumerate(places_by_group(ids)):
        pairs = [advantages[place] for place in places]
        compared = bool(keys) and all(None not in pair for pair in pairs)
        collapsed = [False] * len(places)
        collapsed_by_gdpo = False
        if compared:
            gdpo, grpo = zip(*pairs, strict=True)
            collapsed = ties_split_elsewhere(grpo, gdpo)
            collapsed_by_gdpo = any(ties_split_elsewhere(gdpo, grpo))
        group = _Group(
            members=[responses[place] for place in places],
            scored=list(compress(keys, scored[number])),
            constant=list(compress(keys, constant[number])),
            dead=dead[number],
            advantages=pairs,
            compared=compared,
            collapsed=collapsed,
            collapsed_by_gdpo=collapsed_by_gdpo,
        )
        groups.append(group)
    groups.sort(key=lambda group: (-sum(group.collapsed), prompt_digest(group.prompt)))
    return groups


def _numbers_of(responses: Sequence[Response]) -> list[str]:
    """Return the columns with numbers, such as the score, of a dump without components."""
    row = responses[0].row if responses else {}
    numbers = [name for name, value in row.items() if reward_of(value) is not None]
    return [name for name in numbers if name in ("score", "reward") or may_be_reward(name)]


def read_step(path: Path, components: Sequence[str]) -> DumpSummary:
    """Read a dump, and keep only what the report shows."""
    size = path.stat().st_size
    responses, incomplete = responses_of(numbered_rows(path, DUMP_BYTES), path)
    name = f"{path.parent.name}/{path.name}"
    notes = []
    if size > DUMP_BYTES and path.suffix != ".parquet":  # a table is read completely
        notes.append(
            f"{name} has {size / 2**20:,.0f} MiB: only its first {DUMP_BYTES >> 20} MiB were read, "
            "which may cut its last group."
        )
        incomplete = []  # reading stopped within a line, which is therefore incomplete
    elif incomplete:
        notes.append(
            f"{name}: {len(incomplete)} lines are not complete rows (the first is line "
            f"{incomplete[0]}). Its responses are shown, and its groups are not counted."
        )
    groups = _groups_of(responses, components)
    scored = [group for group in groups if group.scored]
    if not scored:
        groups = _groups_of(responses, _numbers_of(responses))
    counted = [] if incomplete else scored
    dead = [group for group in counted if group.dead]
    shown: list[dict[str, Any]] = []
    used = 0
    for group in groups:
        content = _shown_group(group, components)
        used += len(content["prompt"]) + len(content["expected"])
        used += sum(len(row["text"]) for row in content["rows"])
        if shown and used > STEP_CHARACTERS:
            break
        shown.append(content)
    return DumpSummary(
        responses=len(responses),
        groups=len(counted),
        dead=Counter(_any_rewards(group, components) for group in dead),
        dead_prompt=short_prompt(dead[0].prompt) if dead else "",
        compared=sum(group.compared for group in counted),
        collapsed=sum(any(group.collapsed) for group in counted),
        collapsed_by_gdpo=sum(group.collapsed_by_gdpo for group in counted),
        shown=tuple(shown),
        shown_of=len(groups),
        notes=tuple(notes),
    )


def _any_rewards(group: _Group, components: Sequence[str]) -> Vector:
    """Return one value of each component; None if no response has it."""
    rewards: list[float | None] = []
    vectors = [reward_vector(response.row, components) for response in group.members]
    for column in zip(*vectors, strict=True):
        values = [value for value in column if value is not None]
        rewards.append(values[0] if values else None)
    return tuple(rewards)


def _shown_group(group: _Group, components: Sequence[str]) -> dict[str, Any]:
    """Return a group as the page's script reads it.

    `keys` contains the names of the scores: the components, or all numbers of the rows if there are
    no components. `unscored` lists the components that no response has, and `constant` lists those
    that do not vary. `variant` is the estimator whose advantages were dumped as well. The responses
    are sorted by GDPO's advantage. If there are too many, evenly spaced ones are kept.
    """
    members = group.members
    column = variant_column(members[0].row)
    # Held-out responses have no advantage, and stay in the order of the dump.
    order = sorted(range(len(members)), key=lambda i: -(group.advantages[i][0] or 0))
    rows = []
    for i in evenly_spaced(order, GROUP_ROWS):
        row = members[i].row
        gdpo, grpo = group.advantages[i]
        rows.append(
            {
                "text": shorten(members[i].text, TEXT_CHARACTERS),
                "scores": reward_vector(row, group.scored),
                "gdpo": gdpo,
                "grpo": grpo,
                "variant": reward_of(row.get(column)),
                "collapsed": group.collapsed[i],
            }
        )
    return {
        "title": short_prompt(group.prompt),
        "prompt": shorten(group.prompt, TEXT_CHARACTERS),
        "expected": shorten(members[0].row.get("gts"), TEXT_CHARACTERS),
        # With many data sources, a prompt may have two of many rewards. Each response lists the
        # scores of these two, and the group lists the others once, as `unscored`.
        "keys": group.scored,
        "unscored": [name for name in components if name not in group.scored],
        "variant": column.removesuffix(ADVANTAGE),
        "constant": group.constant if len(members) > 1 else [],
        "size": len(members),
        "rows": rows,
    }
