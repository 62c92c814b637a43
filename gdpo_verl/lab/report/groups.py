"""The groups of a dump: which collapse, which are dead, and the responses that the page keeps."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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

# What the page keeps of a dump, so that a long training stays readable on a phone: groups until
# the step's characters are used up (the first in any case), rollouts of each, and of a text its
# beginning and its end.
STEP_CHARACTERS = 20_000
GROUP_ROWS = 16
TEXT_CHARACTERS = 1_500

Vector = tuple[float | None, ...]


@dataclass(frozen=True)
class DumpSummary:
    """A dump, read once.

    Where a row is incomplete, nothing is counted: a group whose responses are not all known may be
    dead or collapsed, or not.
    """

    responses: int
    groups: int  # those with a scored component
    dead: Mapping[Vector, int]  # groups in which nothing varies, by the rewards of their responses
    dead_prompt: str  # the end of the prompt of one of them
    compared: int  # groups of which both advantages were dumped
    collapsed: int  # those in which GRPO alone gives one advantage to different rewards
    collapsed_by_gdpo: int  # those in which GDPO alone does: components that cancel out
    shown: tuple[dict[str, Any], ...]  # what the page's browser shows, see `_shown_group`
    shown_of: int  # the number of groups that `shown` is taken from
    notes: tuple[str, ...]  # what could not be read, as sentences


def prompt_digest(prompt: str) -> bytes:
    """A prompt's SHA-256: an order that knows nothing of how good the answers are."""
    # Half of a surrogate pair, which JSON can hold, has no UTF-8.
    return hashlib.sha256(prompt.encode(errors="replace")).digest()


def reward_vector(row: Mapping[str, Any], components: Sequence[str]) -> Vector:
    """A row's components, None where it is not scored."""
    return tuple(reward_of(row.get(key)) for key in components)


def ties_split_elsewhere(first: Sequence[float], second: Sequence[float]) -> list[bool]:
    """For each response: does another share its first advantage but not its second?

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
      keys: the names of the rewards.
      vectors: the rewards of each response.
      scored, constant: for each reward, whether a response has it, and whether all have one value.
      dead: all rewards are constant, and there are several responses.
      advantages: those of each response by GDPO and by GRPO; None where one was not dumped.
      compared: each response has both advantages.
      collapsed: for each response, whether GRPO treats it as equal to another, and GDPO does not.
      collapsed_by_gdpo: GDPO treats some as equal that GRPO does not.
    """

    members: Sequence[Response]
    keys: Sequence[str]
    vectors: Sequence[Vector]
    scored: Sequence[bool]
    constant: Sequence[bool]
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
    """Return the groups, each of one mini-batch, with what varies in them.

    First come those with the most that GRPO treats as equal, then an order that knows no score.
    """
    ids = [(each.mini_batch, each.group) for each in responses]
    vectors = [reward_vector(each.row, keys) for each in responses]
    advantages = [reward_vector(each.row, ADVANTAGES) for each in responses]
    # None becomes NaN.
    rewards = np.array(vectors, dtype=np.float64).reshape(len(responses), len(keys))
    table = GroupTable.of(torch.from_numpy(rewards), ids)
    scored = table.scored.tolist()
    constant = table.constant.tolist()
    dead = table.dead.tolist()
    groups = []
    for number, places in enumerate(places_by_group(ids)):
        own = [advantages[place] for place in places]
        compared = bool(keys) and all(None not in pair for pair in own)
        collapsed = [False] * len(places)
        collapsed_by_gdpo = False
        if compared:
            gdpo, grpo = zip(*own, strict=True)
            collapsed = ties_split_elsewhere(grpo, gdpo)
            collapsed_by_gdpo = any(ties_split_elsewhere(gdpo, grpo))
        group = _Group(
            members=[responses[place] for place in places],
            keys=keys,
            vectors=[vectors[place] for place in places],
            scored=scored[number],
            constant=constant[number],
            dead=dead[number],
            advantages=own,
            compared=compared,
            collapsed=collapsed,
            collapsed_by_gdpo=collapsed_by_gdpo,
        )
        groups.append(group)
    groups.sort(key=lambda group: (-sum(group.collapsed), prompt_digest(group.prompt)))
    return groups


def _numbers_of(responses: Sequence[Response]) -> list[str]:
    """Return the columns of numbers of a dump without components, such as the score."""
    row = responses[0].row if responses else {}
    numbers = [name for name, value in row.items() if reward_of(value) is not None]
    return [name for name in numbers if name in ("score", "reward") or may_be_reward(name)]


def read_step(path: Path, components: Sequence[str]) -> DumpSummary:
    """Read a dump, and keep of it what the report shows."""
    size = path.stat().st_size
    responses, incomplete = responses_of(numbered_rows(path, DUMP_BYTES), path)
    name = f"{path.parent.name}/{path.name}"
    notes = []
    if size > DUMP_BYTES:
        notes.append(
            f"{name} has {size / 2**20:,.0f} MiB: only its first {DUMP_BYTES >> 20} MiB were read, "
            "which may cut its last group."
        )
        incomplete = []  # a file that is not read to its end ends within a line
    elif incomplete:
        notes.append(
            f"{name}: {len(incomplete)} lines are not complete rows (the first is line "
            f"{incomplete[0]}). Its responses are shown, and its groups are not counted."
        )
    groups = _groups_of(responses, components)
    scored = [group for group in groups if any(group.scored)]
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
        dead=Counter(_any_rewards(group) for group in dead),
        dead_prompt=short_prompt(dead[0].prompt) if dead else "",
        compared=sum(group.compared for group in counted),
        collapsed=sum(any(group.collapsed) for group in counted),
        collapsed_by_gdpo=sum(group.collapsed_by_gdpo for group in counted),
        shown=tuple(shown),
        shown_of=len(groups),
        notes=tuple(notes),
    )


def _any_rewards(group: _Group) -> Vector:
    """Return a value of each reward; None where no response has it."""
    rewards: list[float | None] = []
    for column in zip(*group.vectors, strict=True):
        values = [value for value in column if value is not None]
        rewards.append(values[0] if values else None)
    return tuple(rewards)


def _shown_group(group: _Group, components: Sequence[str]) -> dict[str, Any]:
    """A group as the page's script reads it.

    `keys` names the scores: the components, or without them every number of the rows. `unscored`
    names components that no response has, `constant` those that do not vary, `variant` the
    estimator whose advantages are there too. Responses are in the order of GDPO's advantage; of
    many, evenly spaced ones are kept.
    """
    members = group.members
    column = variant_column(members[0].row)
    # Of many rewards a prompt may have two: the others are named once.
    scored = [k for k, is_scored in enumerate(group.scored) if is_scored]
    constant = [k for k in scored if group.constant[k] and len(members) > 1]
    names = [group.keys[k] for k in scored]
    # Held-out rows, which have no advantage, stay in the order of the dump.
    order = sorted(range(len(members)), key=lambda i: -(group.advantages[i][0] or 0))
    rows = []
    for i in evenly_spaced(order, GROUP_ROWS):
        row = members[i].row
        gdpo, grpo = group.advantages[i]
        rows.append(
            {
                "text": shorten(members[i].text, TEXT_CHARACTERS),
                "scores": tuple(group.vectors[i][k] for k in scored),
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
        "keys": names,
        "unscored": [name for name in components if name not in names],
        "variant": column.removesuffix(ADVANTAGE),
        "constant": [group.keys[k] for k in constant],
        "size": len(members),
        "rows": rows,
    }
