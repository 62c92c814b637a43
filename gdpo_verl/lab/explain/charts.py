"""The page's markup: the macros of `page.html.j2`, and how they write numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from gdpo_verl.distinct import levels
from gdpo_verl.lab.explain.compare import Rollout, tied_pairs
from gdpo_verl.lab.templates import templates

Table = tuple[Sequence[str], Sequence[Sequence[Any]]]
"""The headings of a table, and its rows."""


def number(value: float) -> str:
    """Write a number as the page does: 1, 0.05, -3, 0.123."""
    return f"{round(value, 3) + 0.0:g}"  # no -0


def vector(rewards: Sequence[float]) -> str:
    """Write rewards in brackets.

    >>> vector((1.0, 0.5))
    '[1, 0.5]'
    """
    return f"[{', '.join(map(number, rewards))}]"


_TEMPLATES = templates(__file__)
_TEMPLATES.filters["vector"] = vector
PARTS: Any = _TEMPLATES.get_template("page.html.j2").module


def block(name: str, content: Markup) -> str:
    """Return the output of one cell; marimo accepts only a plain string."""
    return str(PARTS.block(name, content))


def ties(group: Sequence[Rollout], keys: Sequence[str]) -> list[Table]:
    """Return tables: how many groups each method distinguishes, and why, for a pair of each tie."""
    counts = [len({rollout.rewards for rollout in group})]
    for advantages in ([rollout.grpo for rollout in group], [rollout.gdpo for rollout in group]):
        counts.append(max(levels(advantages)) + 1)  # levels are numbered from 0
    rows = []
    for pair in tied_pairs(group):
        for rollout in pair:
            response = f"{rollout.name} {vector(rollout.rewards)}"
            score = number(rollout.score)  # equal in both rows of a pair; GRPO sees only this
            terms = [f"{term:+.3f}" for term in rollout.terms]
            total = f"{sum(rollout.terms):+.3f}"
            rows.append([rollout.tie, response, score, *terms, total])
    normalised = [f"{key}, normalised" for key in keys]
    head = ["tie", "response", "GRPO's sum", *normalised, "GDPO's sum"]
    tables: list[Table] = [(["different rewards", "GRPO advantages", "GDPO advantages"], [counts])]
    if rows:
        tables.append((head, rows))
    return tables
